"""The property test at length: random graphs fused, and held against the unfused ones.

usage: python tests/benchmarks/random_graphs.py [--first 1000] [--count 2000]

Every graph must agree with its unfused form within the passes' own tolerance, inline to the same
numbers bit for bit, and be at rest. Counts are written to random_graphs.json beside this file; the
command ends with 1 when a graph disagrees or a pass crashes, and prints the seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from graph.random_graphs import fuse_and_compare, random_graph

from edgefuse.errors import ParityError

HERE = Path(__file__).parent
CHUNK = 50


@dataclass
class Counts:
    """What a range of seeds came to."""

    operators: Counter[str] = field(default_factory=Counter)
    opsets: Counter[int] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    disagreements: list[int] = field(default_factory=list)
    crashes: list[int] = field(default_factory=list)
    largest: float = 0.0

    def add(self, other: Counts) -> None:
        for name in ("operators", "opsets", "fired", "refused"):
            getattr(self, name).update(getattr(other, name))
        self.disagreements += other.disagreements
        self.crashes += other.crashes
        self.largest = max(self.largest, other.largest)


def prove(seeds: range) -> Counts:
    """Fuse the graphs of some seeds."""
    found = Counts()
    with tempfile.TemporaryDirectory() as name:
        for seed in seeds:
            case = random_graph(seed)
            found.operators.update(node.op_type for node in case.proto.graph.node)
            found.opsets[case.proto.opset_import[0].version] += 1
            try:
                evidence = fuse_and_compare(case, Path(name))
            except Exception as error:
                disagrees = isinstance(error, (ParityError, AssertionError))
                (found.disagreements if disagrees else found.crashes).append(seed)
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                continue
            if case.allowed < 1e-3:
                found.largest = max(found.largest, evidence["parity"]["max_relative_error"])
            for row in evidence["passes"]:
                found.fired[row["name"]] += row["fired"]
                found.refused[row["name"]] += row["refused"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.count)
    start = time.perf_counter()
    found = Counts()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for part in pool.map(prove, (seeds[k : k + CHUNK] for k in range(0, len(seeds), CHUNK))):
            found.add(part)
    wrong = len(found.disagreements) + len(found.crashes)
    document: dict[str, Any] = {
        "command": "python tests/benchmarks/random_graphs.py "
        f"--first {arguments.first} --count {arguments.count}",
        "graphs": len(seeds),
        "seeds": [seeds[0], seeds[-1]],
        "disagreements": len(found.disagreements),
        "crashes": len(found.crashes),
        "wrong_seeds": sorted(found.disagreements + found.crashes),
        "largest_relative_error_in_float32": found.largest,
        "seconds": round(time.perf_counter() - start, 1),
        "opsets": {str(version): found.opsets[version] for version in sorted(found.opsets)},
        "operators": dict(sorted(found.operators.items())),
        "fired": dict(found.fired),
        "refused": dict(found.refused),
    }
    (HERE / "random_graphs.json").write_text(json.dumps(document, indent=1) + "\n")
    print(
        f"{len(seeds)} graphs, {sum(found.operators.values())} operators of "
        f"{len(found.operators)} types, {sum(found.fired.values())} rewrites: "
        f"{len(found.disagreements)} disagreements, {len(found.crashes)} crashes, "
        f"{document['seconds']} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
