"""Whether the latency gate sees a planted slowdown, and leaves an equal file alone.

usage: python tests/benchmarks/regression_gates.py BUNDLE [--runs 20] [--target NAME ...]

BUNDLE is an earlier release (`edgefuse run configs/mobilenet.yaml` makes one). The candidate is its
own int8 model, or that model with 3x3 maxima put behind some of its activations until it is slower
by the planted share. Each is judged against the bundle as the gate does it: interleaved, limit 1.05
of the baseline's time on a machine, 1.02 of its instructions on an emulated CPU.

On a machine: of 20 runs with the equal file none may fail and at most 2 be inconclusive; with a
slowdown of 10% at least 18 must fail. On an emulated CPU one run each: equal passes, 5% fails.
Written to regression_gates.json beside this file. Exit code 1 when that does not hold.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from edgefuse.archive import unpack
from edgefuse.devices.device import Device, open_device
from edgefuse.devices.measure.bench_worker import random_feeds
from edgefuse.devices.measure.cost import checks_of, measure
from edgefuse.recipe import LatencyGate
from edgefuse.target import load_target
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import read_model, signature_of

KEPT = Path(__file__).with_suffix(".json")
LIMITS = {"ms": 1.05, "instructions": 1.02}
PLANTED = {"ms": 1.10, "instructions": 1.05}
_PLACES = ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD")


def slowed(data: bytes, count: int) -> bytes:
    """The same file with a 3x3 maximum of stride 1 behind the last ``count`` of its activations.

    The results differ; what is measured here is time.
    """
    edit = Edit(data)
    graph, schema = edit.graph, edit.schema
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.MAX_POOL_2D
    code.version = 2
    edit.model.operatorCodes.append(code)
    eligible = [
        op
        for op in graph.operators
        if edit.code(op) in _PLACES and len(graph.tensors[op.outputs[0]].shape) == 4
    ]
    for op in eligible[::-1][:count]:
        made = int(op.outputs[0])
        held = graph.tensors[made].quantization
        added = edit.like(made, "/slower", edit.dtype(made), held.scale[0], int(held.zeroPoint[0]))
        for reader in graph.operators:
            reader.inputs = [added if int(i) == made else int(i) for i in reader.inputs]
        options = schema.Pool2DOptionsT()
        options.filterHeight = options.filterWidth = 3
        options.strideH = options.strideW = 1
        options.padding = schema.Padding.SAME
        pool = schema.OperatorT()
        pool.opcodeIndex = len(edit.model.operatorCodes) - 1
        pool.inputs, pool.outputs = [made], [added]
        pool.builtinOptionsType = schema.BuiltinOptions.Pool2DOptions
        pool.builtinOptions = options
        place = next(k for k, other in enumerate(graph.operators) if other is op)
        graph.operators.insert(place + 1, copy.copy(pool))
    return edit.packed()


def judge(device: Device, candidate: Path, baseline: Path, gate: LatencyGate) -> dict[str, Any]:
    """One run of the gate."""
    files = {"int8": candidate, "baseline": baseline}
    feeds = {n: random_feeds(signature_of(read_model(p)), 0) for n, p in files.items()}
    series, checks = measure(
        device,
        files,
        feeds,
        gate,
        judge=lambda found: checks_of(found, gate, None, 0),
        progress=lambda *_: None,
    )
    (check,) = checks
    return {
        "verdict": check.answer,
        "unit": series.unit,
        "ratio": round(check.value, 4),
        "bound": round(check.bound, 4),
        "measurements": series.measurements,
        "load": series.conditions.get("load"),
    }


def gate_of(limit: float, bundle: Path, **more: Any) -> LatencyGate:
    return LatencyGate(baseline={"path": str(bundle)}, max_ratio_to_baseline=limit, **more)


def plant(device: Device, model: Path, work: Path, bundle: Path, unit: str) -> tuple[Path, int]:
    """The least slowed copy that is slower by at least the planted share, long measured."""
    long = gate_of(LIMITS[unit], bundle, processes=4, rounds=40, repeats=1)

    def made(count: int) -> Path:
        path = work / f"slower{count}.tflite"
        path.write_bytes(slowed(model.read_bytes(), count))
        return path

    def enough(count: int) -> bool:
        found = judge(device, made(count), model, long)
        print(f"  {count} maxima: ratio {found['ratio']}", flush=True)
        return float(found["ratio"]) >= PLANTED[unit]

    least, most = 0, 4
    while not enough(most):
        if most >= 64:
            raise SystemExit("no slowdown could be planted")
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if enough(middle) else (middle, most)
    return made(most), most


def section(name: str, bundle: Path, model: Path, runs: int, work: Path) -> dict[str, Any]:
    work.mkdir()
    device = open_device(load_target(name), work, work / "log")
    unit = "ms" if load_target(name).device == "host" else "instructions"
    gate = gate_of(LIMITS[unit], bundle)
    slower, count = plant(device, model, work, bundle, unit)
    runs = runs if unit == "ms" else 1
    found: dict[str, Any] = {"target": name, "unit": unit, "limit": LIMITS[unit], "added": count}
    for what, path in (("equal", model), ("slower", slower)):
        rows = []
        for run in range(runs):
            rows.append(judge(device, path, model, gate))
            print(f"  {name} {what} {run + 1}/{runs}: {rows[-1]}", flush=True)
        found[what] = {"runs": rows, "verdicts": dict(Counter(r["verdict"] for r in rows))}
    equal, slow = (Counter(found[what]["verdicts"]) for what in ("equal", "slower"))
    found["met"] = (
        equal["fail"] == 0 and equal["inconclusive"] <= runs // 10 and slow["fail"] >= 0.9 * runs
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--target", action="append", help="default: host, emu-cortex-a53")
    chosen = parser.parse_args()
    kept = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        names = unpack(chosen.bundle, work)
        model = work / next(n for n in names if n.endswith("_full_integer_quant.tflite"))
        for name in chosen.target or ("host", "emu-cortex-a53"):
            kept.append(section(name, chosen.bundle, model, chosen.runs, work / f"on-{name}"))
            row = kept[-1]
            print(f"{name}: equal {row['equal']['verdicts']}, slower {row['slower']['verdicts']}")
    if chosen.runs == 20:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    raise SystemExit(not all(row["met"] for row in kept))


if __name__ == "__main__":
    main()
