"""Programs of zoo models at their full size, for the benchmarks of the CUDA path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edgefuse.cuda.program import Program
from edgefuse.cuda.storage import Precision
from edgefuse.cuda.weights import Weights


def module(name: str) -> Any:
    """The torch module, with the same random weights every time."""
    from zoo.models import build, by_name

    return build(by_name(name), small=False).eval()


def picture(name: str) -> tuple[str, tuple[int, ...]]:
    """Name and shape, without the batch, of its input."""
    from zoo.models import by_name

    (found,) = by_name(name).shapes(small=False).items()
    return found


def fused_file(name: str, net: Any, path: Path, batch: int = 1) -> Any:
    """Export and fuse; the ONNX model."""
    from cuda.nets import fused
    from zoo.exported import export

    from edgefuse.graph.normalise import load_proto

    entry, shape = picture(name)
    export(net, {entry: (batch, *shape)}, path, name="net")
    return fused(load_proto(path))


def lowered(name: str, proto: Any, batch: int, precision: Precision) -> tuple[Program, Weights]:
    """The program that the cost model of an H200 chooses."""
    from edgefuse.cuda.lower.choose import choose
    from edgefuse.cuda.lower.graph import lower
    from edgefuse.graph.cost import Balance
    from edgefuse.graph.shapes import at_shapes

    h200 = Balance(2e-6, 4.3e12, 790e12, vector_flops_per_s=67e12, parallel_tiles=132)
    entry, shape = picture(name)
    model = at_shapes(proto, {entry: (batch, *shape)}).model
    bucket = f"batch {batch}"
    plan = choose(model, h200, precision, bucket=bucket)
    return lower(model, precision, name=name, kernels=plan.kernels, bucket=bucket)
