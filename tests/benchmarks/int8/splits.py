"""One model on several seeded splits of a folder: edgefuse's file and others', judged alike.

For each seed the folder's pictures are shuffled; the first ones are for calibration, all others
are judged. Who needs a part of the calibration pictures for something else may split those again.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.artifact import digest_bytes
from edgefuse.data import open_samples
from edgefuse.job import make_job
from edgefuse.recipe import SAMPLE_ROLES
from edgefuse.tflite.read import read_model
from int8.judge import Array, Judgement, boundary_types, judge, outputs, spread
from int8.page import Check
from int8.peers import say
from int8.product import run_edgefuse

OURS = "edgefuse"
METRICS = ("agreement", "drop", "sqnr_db")


@dataclass(frozen=True)
class Subject:
    """A model and whom edgefuse is compared with.

    Attributes:
        others: by producer, its file for each seed.
        labelled: whether the folder's labels are the model's classes.
        settings: of every run of the recipe, as ``--set``.
    """

    name: str
    title: str
    recipe: Path
    others: Mapping[str, Mapping[int, Path]]
    labelled: bool = True
    settings: tuple[str, ...] = ()


@dataclass
class Pictures:
    """Every picture of a recipe's folder, decoded once."""

    rows: Array
    labels: Array | None
    places: Mapping[str, int]
    float_outputs: dict[str, Array] = field(default_factory=dict)

    def reference(self, float_file: Path) -> Array:
        """Outputs of a float file on every picture; equal files are run once."""
        digest = digest_bytes(float_file.read_bytes())
        if digest not in self.float_outputs:
            self.float_outputs[digest] = outputs(float_file, self.rows)
        return self.float_outputs[digest]


def decode(subject: Subject) -> Pictures:
    job = make_job(subject.recipe)
    samples = job.recipe.data.evaluation.model_copy(update={"split": None})
    contract = job.recipe.preprocess
    found = open_samples(
        samples, preprocess=contract, inputs=job.recipe.model.inputs, base=job.base
    )
    rows = np.concatenate([next(iter(s.feeds.values())) for s in found.samples()])
    if contract is not None and contract.layout == "NCHW":
        rows = np.ascontiguousarray(rows.transpose(0, 2, 3, 1))
    labels = np.array([e.label for e in found.entries]) if subject.labelled else None
    return Pictures(rows, labels, {name: k for k, name in enumerate(found.names)})


def seeded(subject: Subject, seed: int) -> tuple[str, ...]:
    """Settings that give every part of the recipe's data the same shuffle."""
    data = make_job(subject.recipe, subject.settings).recipe.data
    roles = [r for r in SAMPLE_ROLES if (part := getattr(data, r)) is not None and part.split]
    return (*subject.settings, *(f"data.{role}.split.seed={seed}" for role in roles))


def judge_splits(subject: Subject, seeds: Sequence[int], anew: bool = False) -> dict[str, Any]:
    """The figures of one subject, split by split and in the mean."""
    pictures = decode(subject)
    rows: dict[str, list[dict[str, Any]]] = {OURS: [], **{name: [] for name in subject.others}}
    for seed in seeds:
        settings = seeded(subject, seed)
        made = run_edgefuse(subject.recipe, f"{subject.name}/{seed}", settings, anew)
        judged = make_job(subject.recipe, settings).samples_of("evaluation").names
        chosen = np.array([pictures.places[name] for name in judged])
        reference = pictures.reference(made.float_file)[chosen]
        files = {OURS: made.int8_file, **{n: theirs[seed] for n, theirs in subject.others.items()}}
        for name, file in files.items():
            answers = outputs(file, pictures.rows[chosen])
            labels = None if pictures.labels is None else pictures.labels[chosen]
            found = judge(reference, answers, labels)
            rows[name].append({"seed": seed, **found.to_json(), **facts(file)})
            say(f"  split {seed}  {name:<13}{_line(found)}")
        rows[OURS][-1]["quantize_seconds"] = made.seconds
    metrics = METRICS if subject.labelled else ("agreement", "sqnr_db")
    return {
        "recipe": str(subject.recipe),
        "producers": {
            name: {
                **{metric: spread([row[metric] for row in found]) for metric in metrics},
                "splits": found,
            }
            for name, found in rows.items()
        },
        "best_in_every_split": {metric: best_everywhere(rows, metric) for metric in metrics},
    }


def best_everywhere(rows: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> bool:
    """Whether edgefuse is strictly better than every other producer in every split."""
    sign = -1 if metric == "drop" else 1
    others = [found for name, found in rows.items() if name != OURS]
    return all(
        sign * own[metric] > sign * other[place][metric]
        for place, own in enumerate(rows[OURS])
        for other in others
    )


def facts(file: Path) -> dict[str, Any]:
    return {
        "bytes": file.stat().st_size,
        "sha256": digest_bytes(file.read_bytes()),
        "boundary": boundary_types(file),
        "float_operators": len(read_model(file).float_operators()),
    }


def _line(found: Judgement) -> str:
    drop = "" if found.drop is None else f"drop {found.drop:5.2f} +- {found.drop_error:.2f}  "
    return f"agreement {found.agreement:6.2f}  {drop}sqnr {found.sqnr_db:6.2f} dB"


def whole_integer(section: Mapping[str, Any]) -> list[Check]:
    """That edgefuse's files hold no float operator and take and give int8."""
    rows = section["producers"][OURS]["splits"]
    floats = max(row["float_operators"] for row in rows)
    types = sorted({kind for row in rows for kind in row["boundary"]})
    return [
        Check("float operators", str(floats), "0", floats == 0),
        Check("types of input and output", ", ".join(types), "int8", types == ["int8"]),
    ]


def mean(section: Mapping[str, Any], producer: str, metric: str) -> float:
    return float(section["producers"][producer][metric]["mean"])


def latency(ours: Path, theirs: Path, log: Path, processes: int = 9) -> dict[str, Any]:
    """Time of our file over theirs, interleaved in fresh processes, with theirs against itself."""
    from edgefuse.devices.measure.bench import measure_latency

    log.parent.mkdir(parents=True, exist_ok=True)
    found = measure_latency(theirs, ours, log=log, processes=processes, rounds=100)
    again = [statistics.median(row) for row in found.noise_ratios]
    summary = found.summary()
    return {
        "ratio": summary["ratio"],
        "ratio_half_width": summary["ratio_spread"],
        "again": round(statistics.median(again), 4),
        "again_half_width": round((max(again) - min(again)) / 2, 4),
        "ours_p50_ms": summary["int8"]["p50_ms"],
        "theirs_p50_ms": summary["float"]["p50_ms"],
        "again_p50_ms": round(statistics.median(t for row in found.again_ms for t in row), 4),
        "conditions": summary["conditions"],
    }
