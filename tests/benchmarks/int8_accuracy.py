"""Int8 accuracy against other producers, and what edgefuse's search, memory and repairs come to.

usage: python tests/benchmarks/int8_accuracy.py [SECTION ...] [--splits 0,1] [--anew]

Sections (default: all):
    mobilenet     MobileNetV2 on six splits of labelled pictures, onnx2tf and litert-torch beside
    efficientnet  EfficientNet-Lite0, the same
    tiny          MLPerf Tiny's two picture models against their official int8 files
    trained       MobileNetV3 and a ConvNeXt trained here: the search reaches its goal
    memory        peak memory of calibration with 100 and with 2,000 samples
and, by name only:
    prove-onnx2tf that the shortened onnx2tf command writes the same bytes as the whole one

EDGEFUSE_DATA names the folder with the pictures and models. Everything made is kept by content in
EDGEFUSE_CACHE, so that an interrupted run goes on where it was. Whole sections are written to
int8_accuracy.json and int8_accuracy.md beside this file; with --splits they are only printed.
Exit code 1 when a figure is not what it must be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from int8 import imagenet, memory, tiny, trained
from int8.page import Check, finished, keep

SEEDS = (0, 1, 2, 3, 4, 5)
Found = tuple[str, dict[str, Any], list[Check]]


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        seeds: of the splits.
        anew: quantise again what is in the store.
        recipe: instead of the section's own.
        latency: whether to measure it.
    """

    seeds: tuple[int, ...]
    anew: bool
    recipe: Path | None
    latency: bool


SECTIONS: dict[str, Callable[[Options], list[Found]]] = {
    "mobilenet": imagenet.mobilenet,
    "efficientnet": imagenet.efficientnet,
    "tiny": tiny.measure,
    "trained": trained.measure,
    "memory": memory.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--splits", default=",".join(map(str, SEEDS)), help="seeds")
    parser.add_argument("--anew", action="store_true", help="quantise again, for its time")
    parser.add_argument("--recipe", type=Path, help="another recipe, for one section")
    parser.add_argument("--no-latency", action="store_true", help="on a busy machine")
    chosen = parser.parse_args()
    if unknown := set(chosen.sections) - {*SECTIONS, "prove-onnx2tf"}:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    seeds = tuple(int(seed) for seed in chosen.splits.split(","))
    options = Options(seeds, chosen.anew, chosen.recipe, not chosen.no_latency)
    whole = seeds == SEEDS and options.recipe is None and options.latency
    missed = 0
    for name in chosen.sections or SECTIONS:
        if name == "prove-onnx2tf":
            missed += not imagenet.prove_onnx2tf()
            continue
        command = f"python tests/benchmarks/int8_accuracy.py {name}"
        for title, section, checks in SECTIONS[name](options):
            print(f"\n{title}")
            for check in checks:
                print(f"  {check}", flush=True)
            missed += sum(not check.met and not check.aim for check in checks)
            if whole:
                keep(title, finished(section, title, command, checks))
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
