"""The allocation problems of EDGEFUSE_DATA's minimalloc folder, solved within their capacity.

usage: python tests/benchmarks/minimalloc.py [--limit-s 60] [NAME ...]

Each file is planned by itself, with the capacity that its name states. A line a file: buffers, the
bound, the arena, seconds, what made the plan. Every plan is looked at by the independent checker,
which must find nothing, and then has to find each of the overlaps that are planted in it. Ends
with 1 when a file is not solved in time or the checker is wrong.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path

from edgefuse.errors import EdgefuseError
from edgefuse.memory.arena import Live
from edgefuse.memory.planner.check import faults
from edgefuse.memory.planner.plan import Plan, plan

EFFORT = 10**7


def read(path: Path) -> list[Live]:
    """Buffers of a file with half-open lifetimes."""
    with path.open(newline="") as rows:
        return [
            Live(row["id"], int(row["size"]), int(row["lower"]), int(row["upper"]) - 1)
            for row in csv.DictReader(rows)
        ]


def planted(buffers: list[Live], made: Plan) -> tuple[int, int]:
    """Overlaps planted in a plan, one buffer moved onto a neighbour each, and those found."""
    count = found = 0
    for place, one in enumerate(buffers):
        for other in buffers[place + 1 :]:
            if one.first <= other.last and other.first <= one.last:
                moved = {**made.offsets, one.name: made.offsets[other.name]}
                # The pair alone, and its size alone: the fault must be this overlap.
                wrong = faults([one, other], {n: moved[n] for n in (one.name, other.name)}, 2**62)
                count += 1
                found += len(wrong) == 1 and "share an address" in wrong[0]
                break
    return count, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="A to K; default: all")
    parser.add_argument("--limit-s", type=float, default=60.0)
    arguments = parser.parse_args()
    data = os.environ.get("EDGEFUSE_DATA")
    files = sorted(Path(data).glob("minimalloc/*.csv")) if data else []
    if not files:
        print("minimalloc: no files below EDGEFUSE_DATA/minimalloc", file=sys.stderr)
        return 1
    files = [path for path in files if not arguments.names or path.name[0] in arguments.names]
    solved, sound = 0, True
    for path in files:
        name, capacity = path.name.split(".")[0], int(path.name.split(".")[1])
        buffers = read(path)
        began = time.monotonic()
        try:
            made = plan(buffers, capacity=capacity, time_limit_s=arguments.limit_s, effort=EFFORT)
        except EdgefuseError as error:
            seconds = time.monotonic() - began
            print(f"{name}: {len(buffers)} buffers, {seconds:.1f} s: {error.message}", flush=True)
            continue
        wrong = faults(buffers, made.offsets, capacity)
        count, found = planted(buffers, made)
        sound = sound and not wrong and count == found
        solved += not wrong and made.seconds <= arguments.limit_s
        print(
            f"{name}: {len(buffers)} buffers, bound {made.bound_bytes}, arena {made.arena_bytes} "
            f"of {capacity}, {made.seconds:.1f} s, {made.method}; {len(wrong)} overlaps, "
            f"{found} of {count} planted ones found",
            flush=True,
        )
    print(f"{solved}/{len(files)}")
    return 0 if sound and solved == len(files) else 1


if __name__ == "__main__":
    sys.exit(main())
