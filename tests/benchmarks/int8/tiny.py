"""MLPerf Tiny's picture models: float .tflite files of other origin, and their official int8 twins.

Visual wake words (MobileNetV1, width 0.25) takes pixels in 0..1, ResNet-8 takes them as they are;
the scales of the official files' inputs say so (1/255 and 1). The pictures are natural ones,
resized to 96 and 32; they are not the models' own test sets, so nothing is said of accuracy: only
how near each int8 file stays to the float one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from int8.page import Check
from int8.splits import OURS, Subject, judge_splits, mean, whole_integer

if TYPE_CHECKING:
    from int8_accuracy import Found, Options

RECIPES = Path("tests/benchmarks/recipes")
OFFICIAL = "official"
MODELS = (
    ("visual_wake_words", "MLPerf Tiny, visual wake words", "vww_96_int8.tflite"),
    ("resnet8", "MLPerf Tiny, ResNet-8", "pretrainedResnet_quant.tflite"),
)


def measure(options: Options) -> list[Found]:
    folder = Path(os.environ["EDGEFUSE_DATA"]) / "mlperf-tiny"
    found = []
    for name, title, official in MODELS:
        others = {OFFICIAL: dict.fromkeys(options.seeds, folder / official)}
        subject = Subject(name, title, RECIPES / f"{name}.yaml", others, labelled=False)
        section = judge_splits(subject, options.seeds, options.anew)
        found.append((title, section, [*_checks(section), *whole_integer(section)]))
    return found


def _checks(section: dict[str, Any]) -> list[Check]:
    ours, theirs = (section["producers"][name] for name in (OURS, OFFICIAL))
    sqnr = mean(section, OURS, "sqnr_db"), mean(section, OFFICIAL, "sqnr_db")
    agreement = mean(section, OURS, "agreement"), mean(section, OFFICIAL, "agreement")
    size = max(row["bytes"] for row in ours["splits"]) / theirs["splits"][0]["bytes"]
    judged = min(row["samples"] for row in ours["splits"])
    return [
        Check("SQNR, mean", f"{sqnr[0]:.2f} dB", f"at least {sqnr[1]:.2f} dB", sqnr[0] >= sqnr[1]),
        Check(
            "agreement, mean",
            f"{agreement[0]:.2f}%",
            f"at least {agreement[1] - 1:.2f}%",
            agreement[0] >= agreement[1] - 1,
        ),
        Check("file size, of the official's", f"{size:.3f}", "at most 1.02", size <= 1.02),
        Check("samples judged", str(judged), "at least 400", judged >= 400),
    ]
