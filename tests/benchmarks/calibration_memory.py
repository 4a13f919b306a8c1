"""Peak memory of calibration with 100 and with 2,000 samples: crops of photographs, MobileNetV2.

Run as ``python tests/benchmarks/calibration_memory.py [RECIPE]``; writes
``calibration_memory.json`` beside this script and fails when the two differ by more than 5%. Every
count runs in a process of its own, which decodes, calibrates with two interpreters, estimates the
ranges on the way and saves its state, as the ``quantize`` stage does.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
COUNTS = (100, 2000)
LIMIT = 0.05


def float_model(recipe: Path, folder: Path) -> Path:
    """Run the recipe up to ``convert``; the float .tflite."""
    command = [sys.executable, "-m", "edgefuse.cli", "run", str(recipe), "--until", "convert"]
    subprocess.run([*command, "--out", str(folder)], check=True, cwd=ROOT)
    return next(folder.glob("*_float32.tflite"))


def measure(recipe: Path, model: Path, count: int) -> dict[str, float]:
    """Calibrate in this process on ``count`` crops of the recipe's calibration pictures."""
    from edgefuse.data import batches, open_samples
    from edgefuse.fetch import Downloads
    from edgefuse.quant.calibration.measure import measure_ranges
    from edgefuse.recipe import Crops, Recipe
    from edgefuse.store import default_root
    from edgefuse.tflite.feeds import source_layouts, streamed
    from edgefuse.tflite.read import read_model, signature_of
    from edgefuse.yaml_file import load

    made = load(recipe, Recipe)
    wanted = made.data.calibration.model_copy(update={"crops": Crops(count=count, seed=0)})
    opened = open_samples(
        wanted, preprocess=made.preprocess, inputs=made.model.inputs, base=recipe.parent
    )
    downloads = Downloads(default_root() / "downloads", recipe.parent, print)

    def feeds() -> Iterator[dict[str, Any]]:
        held = (feed for feed, _ in batches(opened.samples(downloads), made.model.batch))
        return streamed(signature_of(read_model(model)), source_layouts(made), held)

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure_ranges(
            model,
            feeds(),
            made.quantize,
            samples=opened.count,
            samples_digest=opened.digest,
            batch=made.model.batch,
            scratch=Path(scratch),
            warn=print,
        )
    status = Path("/proc/self/status").read_text()
    return {
        "samples": opened.count,
        "peak_rss_bytes": int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024,  # type: ignore
        "seconds": round(time.monotonic() - start, 1),
        "evidence": found.evidence["convergence"]["summary"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default=str(ROOT / "configs" / "mobilenet.yaml"))
    parser.add_argument("--model", help="a float .tflite, instead of running the recipe")
    parser.add_argument("--count", type=int, help="measure this process only")
    given = parser.parse_args()
    recipe = Path(given.recipe).absolute()
    if given.count:
        print(json.dumps(measure(recipe, Path(given.model), given.count)))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(given.model) if given.model else float_model(recipe, Path(folder))
        rows = []
        for count in COUNTS:
            command = [sys.executable, __file__, str(recipe), "--model", str(model)]
            done = subprocess.run(
                [*command, "--count", str(count)], check=True, stdout=subprocess.PIPE, text=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1])
    peaks = [row["peak_rss_bytes"] for row in rows]
    growth = peaks[1] / peaks[0] - 1
    result = {"recipe": recipe.name, "rows": rows, "growth": round(growth, 4), "limit": LIMIT}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"peak memory with {COUNTS[1]} samples: {growth:+.1%} of that with {COUNTS[0]}")
    sys.exit(abs(growth) > LIMIT)


if __name__ == "__main__":
    main()
