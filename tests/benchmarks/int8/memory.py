"""Peak memory of calibration: it must not grow with the number of samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from int8.page import Check

if TYPE_CHECKING:
    from int8_accuracy import Found, Options

SCRIPT = Path(__file__).parent.parent / "calibration_memory.py"


def measure(options: Options) -> list[Found]:
    """Run the script of its own and take over what it wrote; each count is a fresh process."""
    recipe = [str(options.recipe)] if options.recipe else []
    done = subprocess.run([sys.executable, str(SCRIPT), *recipe], stdout=sys.stderr)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{SCRIPT.name} ended {done.returncode}")
    found = json.loads(SCRIPT.with_suffix(".json").read_text())
    rows = [
        {
            "samples": row["samples"],
            "peak, MiB": f"{row['peak_rss_bytes'] / 2**20:.1f}",
            "seconds": row["seconds"],
        }
        for row in found["rows"]
    ]
    growth, limit = found["growth"], found["limit"]
    check = Check(
        f"peak with {rows[-1]['samples']} samples, of that with {rows[0]['samples']}",
        f"{100 * growth:+.1f}%",
        f"within {100 * limit:.0f}%",
        abs(growth) <= limit,
    )
    section = {"recipe": found["recipe"], "rows": rows, "growth": growth}
    return [("Peak memory of calibration", section, [check])]
