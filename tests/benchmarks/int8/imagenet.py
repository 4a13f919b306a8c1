"""The ImageNet models, beside onnx2tf and litert-torch on the same splits."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.job import make_job
from int8 import peers
from int8.page import Check
from int8.splits import OURS, Subject, judge_splits, latency, mean, whole_integer

if TYPE_CHECKING:
    from int8_accuracy import Found, Options

CONFIGS = Path("configs")
# The recipe's own techniques, without a search: all but the calibration pictures are judged.
SETTINGS = (
    "quantize.goal=null",
    "data.validation=null",
    f"data.evaluation.split.after={peers.CALIBRATED}",
)
SEARCH_LIMIT_S = 600


def mobilenet(options: Options) -> list[Found]:
    return _measure("mobilenet", "MobileNetV2", CONFIGS / "mobilenet-accurate.yaml", options)


def efficientnet(options: Options) -> list[Found]:
    recipe = CONFIGS / "efficientnet_lite0-accurate.yaml"
    return _measure("efficientnet", "EfficientNet-Lite0", recipe, options)


def _measure(name: str, title: str, recipe: Path, options: Options) -> list[Found]:
    recipe = options.recipe or recipe

    sources = [peers.source_of(recipe, seed) for seed in options.seeds]
    others = {peer.name: dict(zip(options.seeds, peer.files(sources))) for peer in peers.PEERS}
    subject = Subject(name, title, recipe, others, settings=SETTINGS)
    section = judge_splits(subject, options.seeds, options.anew)
    checks = [*_accuracy(section), *whole_integer(section)]
    slowest = max(row["quantize_seconds"] for row in section["producers"][OURS]["splits"])
    checks.append(
        Check(
            "quantize stage, longest",
            f"{slowest:.0f} s",
            f"at most {SEARCH_LIMIT_S} s",
            slowest <= SEARCH_LIMIT_S,
        )
    )
    if options.latency:
        seed = options.seeds[0]
        folder = Path("build/bench-int8") / name
        named = make_job(recipe, SETTINGS).recipe.name
        ours = folder / str(seed) / f"{named}_full_integer_quant.tflite"
        found = latency(ours, others["onnx2tf"][seed], folder / "latency.log")
        section["latency"] = found
        limit = 1.02 + found["again_half_width"]
        checks.append(
            Check(
                "latency, ratio to onnx2tf's file",
                f"{found['ratio']:.3f}",
                f"at most 1.02 + {found['again_half_width']:.3f}",
                found["ratio"] <= limit,
            )
        )
    return [(title, section, checks)]


def _accuracy(section: dict[str, Any]) -> list[Check]:
    agreement, drop = (mean(section, OURS, metric) for metric in ("agreement", "drop"))
    best = section["best_in_every_split"]
    return [
        Check("agreement, mean", f"{agreement:.2f}%", "at least 96.5%", agreement >= 96.5),
        Check("drop, mean", f"{drop:.2f} points", "at most 0.5 points", drop <= 0.5),
        Check(
            "agreement better than both in every split",
            "yes" if best["agreement"] else "no",
            "yes",
            best["agreement"],
        ),
        Check(
            "drop less than both in every split",
            "yes" if best["drop"] else "no",
            "yes",
            best["drop"],
            aim=True,
        ),
        Check(
            "SQNR better than both in every split",
            "yes" if best["sqnr_db"] else "no",
            "yes",
            best["sqnr_db"],
            aim=True,
        ),
        Check("agreement, mean", f"{agreement:.2f}%", "at least 97.5%", agreement >= 97.5, True),
        Check("drop, mean", f"{drop:.2f} points", "at most 0", drop <= 0, True),
    ]


def prove_onnx2tf() -> bool:
    """Run the plain command of onnx2tf on one split; its full-integer file must be the kept one."""
    source = peers.source_of(CONFIGS / "mobilenet-accurate.yaml", 3)
    (peer,) = (peer for peer in peers.PEERS if peer.name == "onnx2tf")
    (kept,) = peer.files([source])
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        np.save(work / "calibration.npy", source.pictures)
        arguments = peers.onnx2tf_files(source, work, "calibration.npy")
        worker = str(peers.HERE / "onnx2tf_worker.py")
        peers.run([sys.executable, worker, "--plain", *arguments], work, work / "log")
        files = sorted(path.name for path in (work / "out").glob("*.tflite"))
        plain = (work / "out" / "model_full_integer_quant.tflite").read_bytes()
    equal = plain == kept.read_bytes()
    print(f"onnx2tf wrote {len(files)} files; full-integer {'equal' if equal else 'DIFFERENT'}")
    return equal
