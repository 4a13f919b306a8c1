"""``edgefuse compare``: one model through the toolchains that people use, measured in turns."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse import console as consoles
from edgefuse.artifact import Artifact
from edgefuse.compare import document as documents
from edgefuse.compare.interleave import WORKER, Measured, Task, run
from edgefuse.compare.prepared import Request
from edgefuse.compare.rows import Row, select, why_not_from, why_not_installed
from edgefuse.errors import UsageError
from edgefuse.fetch import Downloads
from edgefuse.job import make_job, output_folder
from edgefuse.keys import local_file
from edgefuse.log_file import logged
from edgefuse.plan import Job
from edgefuse.recipe import Blob
from edgefuse.runner import run_aside
from edgefuse.store import raise_disk_error, write_changed

if TYPE_CHECKING:
    from edgefuse.console import Console

_SAMPLES = 4
_LOG = "compare.log"
_CONVERTER = "edgefuse.tflite.convert_worker"
_SAVED_MODEL = "TensorFlow SavedModel"
# The last stage that a row needs, by what it reads; fuse comes with the unfused graph before it.
_STAGES = {
    **dict.fromkeys(("torch", "unfused", "fused"), "fuse"),
    **{"float": "convert", "int8": "quantize"},
}


def compare_recipe(
    recipe: Path,
    *,
    settings: Sequence[str] = (),
    names: Sequence[str] = (),
    rounds: int = 15,
    invokes: int = 5,
    out: Path | None = None,
    quiet: bool = False,
    verbose: bool = False,
    command: str = "",
) -> tuple[dict[str, Any], Path]:
    """Make the recipe's models, measure every row, write compare.json and compare.html.

    Args:
        names: of the rows; all when empty.
        rounds: bursts of each row.
        invokes: timed invocations in a burst, at most.

    Returns:
        The document (see :mod:`edgefuse.compare.document`) and the output folder.

    Raises:
        RecipeError, UsageError: before anything is run.
        EdgefuseError: of the stage that could not make a model.
        StoreError: the output folder cannot be written.
    """
    begun = time.monotonic()
    rows = select(names)
    job = make_job(recipe, settings)
    folder = out if out is not None else output_folder(job, None) / "compare"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file", hint="give a folder")
    logs = (folder / "logs").absolute()
    try:
        logs.mkdir(parents=True, exist_ok=True)
        earlier = (folder / name for name in ("compare.json", "compare.html"))
        for left in (*logs.glob("*.log"), *earlier):
            left.unlink(missing_ok=True)
    except OSError as error:
        raise_disk_error(error, folder)
    gc.enable()
    console = consoles.choose(quiet=quiet, verbose=verbose)
    try:
        with logged(logs / _LOG, command), job.store.work_folder() as work:
            measured = [_absent(row, job) for row in rows]
            there = [m.row for m in measured if m.status == "measured"]
            made, warnings = _artifacts(job, there, work, console, logs)
            comparison = _Comparison(job, work, logs, made)
            tasks = comparison.tasks(there)
            load = os.getloadavg()[0]
            _run(measured, tasks, work, console, rounds, invokes)
            document = documents.build(
                job.recipe.name,
                measured,
                {m.row.name: comparison.results(m.row) for m in measured},
                command=command,
                rounds=rounds,
                invokes=invokes,
                load=load,
                seconds=time.monotonic() - begun,
                warnings=warnings,
            )
    finally:
        console.close()
    _write(document, folder)
    return document, folder


def _artifacts(
    job: Job, rows: Sequence[Row], work: Path, console: Console, logs: Path
) -> tuple[dict[str, Artifact], list[str]]:
    """The recipe's models that the rows read, by stage, and the warnings that came with them."""
    read = {_STAGES[row.reads] for row in rows}
    last = next((name for name in ("quantize", "convert", "fuse") if name in read), None)
    if last is None:
        return {}, []
    result = run_aside(job, last, work, console, logs / _LOG)
    if result.error is not None:
        raise result.error
    return result.made, result.warnings


def _absent(row: Row, job: Job) -> Measured:
    """The row, unavailable where this recipe or this environment does not have it."""
    reason = why_not_from(row, job.recipe.model.source) or why_not_installed(row)
    return Measured(row, "unavailable" if reason else "measured", reason)


def _run(
    measured: Sequence[Measured],
    tasks: Sequence[Task],
    work: Path,
    console: Console,
    rounds: int,
    invokes: int,
) -> None:
    begun: list[float] = []

    def start(name: str, index: int) -> None:
        begun.append(time.monotonic())
        console.stage_started(name, index, 2, None)

    def prepared(done: int, total: int, what: str) -> None:
        console.progress(done, total, f"{what} ready,")
        if done == total:
            console.stage_ended("prepare", "ran", time.monotonic() - begun[-1], f"{total} tasks")
            start("measure", 2)

    if tasks:
        start("prepare", 1)
    run(
        measured,
        tasks,
        rounds=rounds,
        invokes=invokes,
        scratch=work,
        prepared=prepared,
        measured=console.progress,
    )
    if not tasks:
        return
    there = sum(m.status == "measured" for m in measured)
    summary = f"{there} rows, {rounds} rounds"
    console.stage_ended("measure", "ran", time.monotonic() - begun[-1], summary)


class _Comparison:
    """What the rows start from, in a work folder, and each row's first job."""

    def __init__(self, job: Job, work: Path, logs: Path, made: Mapping[str, Artifact]) -> None:
        from edgefuse.data import take

        self._job, self._work, self._logs, self._made = job, work, logs, made
        self._downloads = Downloads(job.store.root / "downloads", job.base, lambda _: None)
        samples = job.samples_of("evaluation")
        self._feeds = take(samples, self._downloads, _SAMPLES, job.recipe.model.batch)

    def results(self, row: Row) -> Path:
        """Where a row's outputs are written."""
        return self._work / f"{row.name}.npz"

    def tasks(self, rows: Sequence[Row]) -> list[Task]:
        """What to prepare, slow ones first."""
        import numpy as np

        feeds = self._work / "feeds.npz"
        named = {f"{k}/{n}": v for k, feed in enumerate(self._feeds) for n, v in feed.items()}
        np.savez(feeds, **named)
        if any(row.reads == "unfused" for row in rows):
            self._write_unfused()
        tasks = []
        for row in sorted(rows, key=lambda row: not row.slow):
            job = {
                "do": "prepare",
                "family": row.family,
                "request": asdict(self._request(row)),
                "feeds": str(feeds),
                "results": str(self.results(row)),
            }
            log = self._logs / f"{row.name}.log"
            after = _SAVED_MODEL if row.family == "tensorflow" else ""
            task = Task(row.name, WORKER, job, log, after=after, environment=row.environment)
            tasks.append(task)
        if any(task.after for task in tasks):
            tasks.insert(0, self._conversion())
        return tasks

    def _request(self, row: Row) -> Request:
        from edgefuse.tflite.feeds import source_layouts

        recipe = self._job.recipe
        outputs = self._made["fuse"].signature.outputs if "fuse" in self._made else ()
        return Request(
            variant=row.variant,
            path="" if row.reads == "torch" else str(self._path(row)),
            outputs=tuple(spec.name for spec in outputs),
            layouts=dict(source_layouts(recipe)),
            torch=self._torch() if row.reads == "torch" else {},
            fusions=self._folded() if row.ours else {},
        )

    def _path(self, row: Row) -> Path:
        if row.family == "tensorflow":
            return self._work / "tensorflow" / "saved_model"
        if row.reads == "unfused":
            return self._work / "unfused.onnx"
        return self._made[_STAGES[row.reads]].path

    def _torch(self) -> dict[str, Any]:
        model, job = self._job.recipe.model.torch, self._job
        assert model is not None
        weights: Path | None = None
        if isinstance(model.weights, Blob):
            weights = self._downloads.get(model.weights)
        elif not isinstance(model.weights, str):
            weights = local_file(job.base, model.weights)[0]
        return {
            "model": model.model_dump(mode="json"),
            "seed": job.recipe.seed,
            "base": str(job.base),
            "weights_file": str(weights) if weights else "",
        }

    def _folded(self) -> dict[str, int]:
        """What edgefuse folded into weights, so that it is in every file made from the fused
        graph. Groups are counted by what the runtime makes of them; constants are no fusion."""
        passes = self._made["fuse"].evidence["passes"] if "fuse" in self._made else []
        folded = {p["name"]: p["fired"] for p in passes if p["name"].startswith("fold_")}
        return {name: n for name, n in folded.items() if n and name != "fold_constants"}

    def _write_unfused(self) -> None:
        """The export without the exporter's constant programs, which no toolchain is about."""
        from edgefuse.graph.fuse import fuse_file
        from edgefuse.graph.pipeline import ordered_passes

        skip = [p.name for p in ordered_passes() if p.name != "fold_constants"]
        options = self._job.recipe.fuse
        fuse_file(
            self._made["export"].path,
            self._work / "unfused.onnx",
            skip=skip,
            feeds=self._feeds[:1],
            max_relative_error=options.max_relative_error,
            fold_size_limit_bytes=options.fold_size_limit_bytes,
        )

    def _conversion(self) -> Task:
        """The SavedModel that both TensorFlow rows run, by the converter of the convert stage."""
        import numpy as np

        from edgefuse.graph.group import inline_groups

        folder = self._work / "tensorflow"
        folder.mkdir()
        fused = self._made["fuse"]
        inline_groups(fused.path, folder / "inlined.onnx")
        # onnx2tf looks for this file, and on the network when it is not there.
        pictures = np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
        np.save(folder / "calibration_image_sample_data_20x128x128x3_float32.npy", pictures)
        job = {
            "onnx": str(folder / "inlined.onnx"),
            "tflite": str(folder / "float32.tflite"),
            "inputs": [
                {"name": s.name, "channels_first": s.layout == "NCHW"}
                for s in fused.signature.inputs
            ],
            "outputs": [s.name for s in fused.signature.outputs],
        }
        log = self._logs / "tensorflow.log"
        return Task(_SAVED_MODEL, _CONVERTER, job, log, folder=folder)


def _write(document: dict[str, Any], folder: Path) -> None:
    from edgefuse.report.comparison import render

    write_changed(folder / "compare.json", (json.dumps(document, indent=1) + "\n").encode())
    write_changed(folder / "compare.html", render(document).encode())
