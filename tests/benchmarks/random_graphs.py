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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from graph.random_graphs import fuse_and_compare, random_graph

from edgefuse.errors import ParityError

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    operators: Counter[str] = Counter()
    opsets: Counter[int] = Counter()
    fired: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    wrong: dict[str, list[int]] = {"disagreements": [], "crashes": []}
    largest = 0.0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        for seed in range(arguments.first, arguments.first + arguments.count):
            case = random_graph(seed)
            operators.update(node.op_type for node in case.proto.graph.node)
            opsets[case.proto.opset_import[0].version] += 1
            try:
                evidence = fuse_and_compare(case, Path(name))
            except Exception as error:
                disagrees = isinstance(error, (ParityError, AssertionError))
                wrong["disagreements" if disagrees else "crashes"].append(seed)
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                continue
            if case.allowed < 1e-3:
                largest = max(largest, evidence["parity"]["max_relative_error"])
            for row in evidence["passes"]:
                fired[row["name"]] += row["fired"]
                refused[row["name"]] += row["refused"]
    document: dict[str, Any] = {
        "command": "python tests/benchmarks/random_graphs.py "
        f"--first {arguments.first} --count {arguments.count}",
        "graphs": arguments.count,
        "seeds": [arguments.first, arguments.first + arguments.count - 1],
        "disagreements": len(wrong["disagreements"]),
        "crashes": len(wrong["crashes"]),
        "wrong_seeds": wrong,
        "largest_relative_error_in_float32": largest,
        "seconds": round(time.perf_counter() - start, 1),
        "opsets": {str(version): opsets[version] for version in sorted(opsets)},
        "operators": dict(sorted(operators.items())),
        "fired": dict(fired),
        "refused": dict(refused),
    }
    (HERE / "random_graphs.json").write_text(json.dumps(document, indent=1) + "\n")
    print(
        f"{document['graphs']} graphs, {sum(operators.values())} operators of "
        f"{len(operators)} types, {sum(fired.values())} rewrites: "
        f"{document['disagreements']} disagreements, {document['crashes']} crashes, "
        f"{document['seconds']} s"
    )
    return 1 if document["disagreements"] or document["crashes"] else 0


if __name__ == "__main__":
    sys.exit(main())
