"""What fusion does to each model of the zoo, level by level: operators, bytes, peak.

usage: python tests/benchmarks/fusion_table.py [MODEL ...]

Every model at its full size with seeded random weights, exported, fused with every application
proven, and converted to float TFLite. Views (Reshape, Flatten, Squeeze, Unsqueeze, Identity) are no
operators: they move no bytes. Written to fusion_table.json and fusion_table.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from cases import pipeline
from zoo.models import MODELS, ZooModel, write_recipe

from edgefuse.errors import EdgefuseError
from edgefuse.graph.cost import Balance
from edgefuse.graph.dynamic import plan_kernels
from edgefuse.graph.normalise import load_proto, prepare
from edgefuse.graph.pipeline import ordered_passes, run_passes
from edgefuse.graph.shapes import at_shapes
from edgefuse.graph.summary import figures
from edgefuse.tflite.read import read_model

HERE = Path(__file__).parent
#: Launches, bytes and FLOPs of an NVIDIA H200: TF32 in tensor cores, float32 elsewhere.
BALANCE = Balance(2e-6, 4.3e12, 790e12, vector_flops_per_s=67e12, parallel_tiles=132)
BATCHES = (1, 64)
LEVELS = ("unfused", "graph", "kernel")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", help="default: all")
    chosen = parser.parse_args().models
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ["EDGEFUSE_CACHE"] = f"{name}/cache"
        for model in MODELS:
            if chosen and model.name not in chosen:
                continue
            folder = Path(name) / model.name
            folder.mkdir()
            rows[model.name] = measure(model, folder)
            print(table({model.name: rows[model.name]}).splitlines()[-1], flush=True)
    if chosen:
        return
    document = {
        "command": "python tests/benchmarks/fusion_table.py",
        "balance": BALANCE.to_json(),
        "models": rows,
    }
    (HERE / "fusion_table.json").write_text(json.dumps(document, indent=1) + "\n")
    (HERE / "fusion_table.md").write_text(page(rows))


def measure(model: ZooModel, folder: Path) -> dict[str, Any]:
    """The figures of one model; what could not be made is None, with the error beside it."""
    # Random weights: some models amplify a rounding several hundredfold.
    lenient = {"max_relative_error": 1e-3}
    sections = dict.fromkeys(("export", "fuse", "convert"), lenient)
    recipe = write_recipe(model, folder, small=False, **sections)
    found = pipeline.run(recipe, until="convert")
    row: dict[str, Any] = {"inputs": {n: [1, *s] for n, s in model.shapes(False).items()}}
    row["fuse_seconds"] = round(found.seconds.get("fuse", 0.0), 2)
    unfused = prepare(load_proto(found.out / f"{model.name}.onnx"))
    row["unfused"] = level(unfused)
    weights_folded = [entry for entry in ordered_passes() if entry.phase != "fuse"]
    run_passes(unfused, passes=weights_folded)
    row["graph"] = level(unfused)
    fused = load_proto(found.file("_fused.onnx"))
    row["kernel"] = level(prepare(fused))
    for batch in BATCHES:
        shapes = {name: (batch, *shape) for name, shape in model.shapes(False).items()}
        try:
            plan = plan_kernels(at_shapes(fused, shapes).model, BALANCE, bucket=f"batch {batch}")
            row[f"dynamic_{batch}"] = len(plan.kernels)
        except EdgefuseError as error:
            row[f"dynamic_{batch}"], row[f"dynamic_{batch}_error"] = None, error.message
    if found.report["error"] is None:
        row["tflite"] = read_model(found.float_file).operator_counts()
    else:
        row["tflite"], row["tflite_error"] = None, found.error
    return row


def level(model: Any) -> dict[str, int]:
    found = figures(model)
    return {
        "operators": found.operators,
        "views": found.views,
        "intermediate_bytes": found.intermediate_bytes,
        "peak_bytes": found.peak_bytes,
    }


def page(rows: dict[str, dict[str, Any]]) -> str:
    return f"""# Operators and bytes, before and after fusion

Written by `python tests/benchmarks/fusion_table.py`; the same as data, with reasons for what is
missing, in `fusion_table.json`. Every model of the zoo at its full size, batch 1.

- **unfused**: operators of the export that run for every picture; views (Reshape, Flatten, Squeeze,
  Unsqueeze, Identity) move no bytes and are none.
- **graph**: weights folded, spellings replaced, no groups yet. A spelling may take more operators
  than it had (a BatchNorm that no convolution takes is a Mul and an Add).
- **kernel**: a fused group is one operator.
- **dynamic**: kernels that the cost model chooses from the shapes, for an NVIDIA H200, at batch 1
  and 64.
- **TFLite**: operators of the float file; with PAD in brackets.
- **MiB**: of all intermediate tensors; **peak**: most bytes live at once in graph order.
- **fuse, s**: wall time of the fuse stage, proof of every application included, on the machine that
  wrote this table.

{table(rows)}"""


def table(rows: dict[str, dict[str, Any]]) -> str:
    heads = [
        *("model", "unfused", "graph", "kernel", "dynamic, 1", "dynamic, 64", "TFLite"),
        *("MiB unfused", "MiB graph", "MiB kernel", "peak unfused", "peak kernel", "peak ratio"),
        "fuse, s",
    ]
    lines = [" | ".join(heads), " | ".join(["---", *["---:"] * (len(heads) - 1)])]
    for name, row in rows.items():
        operators = [str(row[which]["operators"]) for which in LEVELS]
        dynamic = [str(row[f"dynamic_{batch}"] or "-") for batch in BATCHES]
        peaks = [row[which]["peak_bytes"] for which in ("unfused", "kernel")]
        cells = [
            name,
            *operators,
            *dynamic,
            _tflite(row["tflite"]),
            *(f"{row[which]['intermediate_bytes'] / 2**20:.2f}" for which in LEVELS),
            *(f"{peak / 2**20:.2f}" for peak in peaks),
            f"{peaks[0] / peaks[1]:.2f}",
            f"{row['fuse_seconds']:.1f}",
        ]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def _tflite(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "-"
    whole, pads = sum(counts.values()), counts.get("PAD", 0)
    return f"{whole - pads} ({whole})" if pads else str(whole)


if __name__ == "__main__":
    main()
