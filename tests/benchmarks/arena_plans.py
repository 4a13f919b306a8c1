"""Arenas of inference graphs: at the lower bound, proven, and planned in milliseconds.

usage: python tests/benchmarks/arena_plans.py [--exports FOLDER] [NETWORK ...]

Every model of the zoo, and well-known networks built in code (tests/memory/torch_nets.py), at full
size, batch 1: exported to ONNX, planned as exported and fused. An arena holds the input to the end,
and the output from its making. Written to arena_plans.json and arena_plans.md beside this file when
all are planned. Ends with 1 when an arena is above its bound, is not proven, or took more than 50
ms to plan: median of 5 runs, milliseconds of one processor, so that others who use the machine do
not count; by the clock beside it in the JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from memory import torch_nets
from zoo.exported import export
from zoo.models import MODELS
from zoo.models import build as build_zoo

from edgefuse.graph.pipeline import run_passes
from edgefuse.memory.arena import Arena, Live
from edgefuse.memory.arenas.onnx import load_graph, onnx_arena
from edgefuse.memory.liveness.onnx import ONNX, ONNX_IN_PLACE, live_buffers
from edgefuse.memory.planner.plan import Plan, plan

HERE = Path(__file__).parent
MOST_MS = 50.0
RUNS = 5
OPSET = 18


def networks() -> Iterator[tuple[str, Callable[[], tuple[Any, dict[str, tuple[int, ...]]]]]]:
    """Names, and how to build a module and its input shapes."""
    for model in MODELS:
        shapes = {name: (1, *shape) for name, shape in model.shapes(False).items()}
        yield f"zoo {model.name}", lambda m=model, s=shapes: (build_zoo(m, False).eval(), s)
    for name in torch_nets.NETS:

        def make(name: str = name) -> tuple[Any, dict[str, tuple[int, ...]]]:
            module, shape = torch_nets.build(name)
            return module, {"image": shape}

        yield name, make


def planned(buffers: tuple[Live, ...]) -> tuple[Plan, float, float]:
    """The plan, and medians of milliseconds: of the processor, and by the clock."""
    processor, clock = [], []
    for _ in range(RUNS):
        began = time.process_time(), time.perf_counter()
        made = plan(buffers)
        processor.append((time.process_time() - began[0]) * 1e3)
        clock.append((time.perf_counter() - began[1]) * 1e3)
    return made, statistics.median(processor), statistics.median(clock)


def measure(path: Path) -> dict[str, Any]:
    """Figures of a network, as exported and fused."""
    model = load_graph(path)
    row: dict[str, Any] = {"exported": figures(model)}
    run_passes(model)
    row["fused"] = figures(model)
    return row


def figures(model: Any) -> dict[str, Any]:
    began = time.perf_counter()
    buffers = live_buffers(model, ONNX)
    liveness_ms = (time.perf_counter() - began) * 1e3
    made, plan_ms, wall_ms = planned(buffers)
    in_place: Arena = onnx_arena(model, ONNX_IN_PLACE)
    return {
        "buffers": len(buffers),
        "naive_bytes": sum(buffer.size_bytes for buffer in buffers),
        "bound_bytes": made.bound_bytes,
        "arena_bytes": made.arena_bytes,
        "proven": made.proven,
        "method": made.method,
        "liveness_ms": round(liveness_ms, 1),
        "plan_ms": round(plan_ms, 1),
        "plan_wall_ms": round(wall_ms, 1),
        "in_place_arena_bytes": in_place.arena_bytes,
        "in_place_proven": in_place.proven,
    }


def misses(row: dict[str, Any]) -> list[str]:
    """What of a network is not as it must be."""
    found = []
    for which in ("exported", "fused"):
        of = row[which]
        if not of["proven"] or of["arena_bytes"] != of["bound_bytes"]:
            found.append(f"{which}: {of['arena_bytes']} bytes, the bound is {of['bound_bytes']}")
        if not of["in_place_proven"]:
            found.append(f"{which}, in place: not proven")
        if of["plan_ms"] > MOST_MS:
            found.append(f"{which}: {of['plan_ms']} ms")
    return found


def page(rows: dict[str, dict[str, Any]]) -> str:
    slowest = max(row[which]["plan_ms"] for row in rows.values() for which in ("exported", "fused"))
    missed = sum(bool(misses(row)) for row in rows.values())
    return f"""# Arenas of inference graphs

Written by `python tests/benchmarks/arena_plans.py`; the same as data in `arena_plans.json`. Batch
1, float32, every network as exported and fused. Of {len(rows)} networks {len(rows) - missed} have
both arenas at their lower bounds, proven, planned within {MOST_MS:.0f} ms (median of {RUNS} runs);
the slowest plan of all took {slowest:.1f} ms.

- **naive**: every tensor at a place of its own.
- **arena**: as planned; equal to the bound where it says proven. The input is held to the end.
- **in place**: the same where element-wise operators may write over an operand.
- **ms**: of one processor to plan, on the machine that wrote this table.

{table(rows)}"""


def table(rows: dict[str, dict[str, Any]]) -> str:
    heads = ["network"]
    for which in ("exported", "fused"):
        heads += [f"{which}: buffers", "naive, MiB", "arena, MiB", "proven", "in place, MiB", "ms"]
    lines = [" | ".join(heads), " | ".join(["---", *["---:"] * (len(heads) - 1)])]
    for name, row in rows.items():
        cells = [name]
        for which in ("exported", "fused"):
            of = row[which]
            cells += [
                str(of["buffers"]),
                f"{of['naive_bytes'] / 2**20:.2f}",
                f"{of['arena_bytes'] / 2**20:.2f}",
                "yes" if of["proven"] else "no",
                f"{of['in_place_arena_bytes'] / 2**20:.2f}",
                f"{of['plan_ms']:.1f}",
            ]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help="default: all")
    parser.add_argument("--exports", type=Path, help="folder that keeps exported graphs")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.exports or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, build in networks():
            if arguments.names and name not in arguments.names:
                continue
            path = folder / f"{name.replace(' ', '_')}.onnx"
            if not path.exists():
                export(*build(), path, name=path.stem, opset=OPSET)
            rows[name] = measure(path)
            wrong = "; ".join(misses(rows[name]))
            said = table({name: rows[name]}).splitlines()[-1]
            print(said + (f" MISSED {wrong}" if wrong else ""), flush=True)
    missed = [name for name, row in rows.items() if misses(row)]
    print(
        f"{len(rows) - len(missed)}/{len(rows)} networks at the bound, proven, within {MOST_MS} ms"
    )
    if not arguments.names:
        document = {"command": "python tests/benchmarks/arena_plans.py", "networks": rows}
        (HERE / "arena_plans.json").write_text(json.dumps(document, indent=1) + "\n")
        (HERE / "arena_plans.md").write_text(page(rows))
    return 1 if missed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
