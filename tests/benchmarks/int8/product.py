"""edgefuse's own files: a recipe through the command line, and what its quantize stage recorded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefuse.store import Store, default_root

OUT = Path("build/bench-int8")


@dataclass(frozen=True)
class Product:
    """What one run left; of a search that did not reach its goal the best file.

    Attributes:
        seconds: wall time of the quantize stage when it was made.
        evidence: what the stage recorded.
        exit_code: of the run; 1 when a goal was not reached.
    """

    float_file: Path
    int8_file: Path
    seconds: float
    evidence: dict[str, Any]
    exit_code: int


def run_edgefuse(
    recipe: Path, name: str, settings: Sequence[str] = (), anew: bool = False
) -> Product:
    """``edgefuse run RECIPE --until quantize``; stages come from the store where they are there.

    Args:
        name: the output folder's, below ``build/bench-int8``.
        anew: quantise again, for its time.
    """
    out = OUT / name
    words = [str(recipe), "--until", "quantize", "--out", str(out)]
    words += ["--from", "quantize"] if anew else []
    for setting in settings:
        words += ["--set", setting]
    command = [sys.executable, "-m", "edgefuse.cli", "run", *words]
    print(f"edgefuse run {' '.join(words)}", file=sys.stderr, flush=True)
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"edgefuse run ended {done.returncode}:\n{done.stderr[-2000:]}")
    report = json.loads((out / "report.json").read_text())
    stages = {stage["name"]: stage for stage in report["stages"]}
    stage = stages["quantize"]
    float_file = out / stages["convert"]["file"]
    if not stage.get("file"):
        best = out / "reproducer" / "best.tflite"
        if done.returncode != 1 or not best.is_file():
            raise SystemExit(f"{recipe}: no int8 file:\n{done.stderr[-2000:]}")
        evidence = {"search": json.loads(best.with_name("search.json").read_text())}
        return Product(float_file, best, stage["seconds"] or 0.0, evidence, 1)
    record = Store(default_root()).entry("quantize", stage["key"])
    gone = time.monotonic() - start
    print(f"  {gone:.0f} s: {stage['summary']}", file=sys.stderr, flush=True)
    return Product(
        float_file,
        out / stage["file"],
        round(record["seconds"], 1),
        record["evidence"],
        done.returncode,
    )
