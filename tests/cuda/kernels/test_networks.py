"""Blocks of every supported network, and a whole MobileNetV2, in Triton's interpreter.

The judge is onnxruntime on the fused ONNX, not the NumPy reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda.kernels.blocks import BLOCKS
from cuda.nets import expected, fused, graph
from edgefuse.cuda.lower.choose import every_depthwise
from edgefuse.cuda.lower.graph import lower
from edgefuse.cuda.run_interp import Interpreter
from edgefuse.cuda.storage import Precision
from edgefuse.graph.normalise import load_proto
from edgefuse.graph.shapes import at_shapes
from edgefuse.graph.verify import seeded_feed

#: Largest difference over the largest magnitude.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "fp16": 2e-2}


def worst(
    running: Interpreter, proto: Any, precision: Precision, *, merged: bool
) -> tuple[float, list[str]]:
    """The largest difference from onnxruntime, and the kernels that ran."""
    model = at_shapes(proto, {}).model
    kernels = every_depthwise(model) if merged else None
    program, weights = lower(model, precision, name="net", kernels=kernels)
    feed = seeded_feed(proto, seed=3)
    made, wanted = running.run(program, weights, feed), expected(proto, feed)
    differences = []
    for name, values in wanted.items():
        assert made[name].shape == values.shape and float(np.std(values)) > 0
        difference = np.max(np.abs(made[name] - values)) / np.max(np.abs(values))
        differences.append(float(difference) if np.isfinite(difference) else float("inf"))
    return max(differences), [launch.kernel for launch in program.launches]


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str, precision: Precision, triton_interpreter: Interpreter) -> None:
    proto = fused(graph(BLOCKS[name]))
    difference, kernels = worst(triton_interpreter, proto, precision, merged=True)
    assert difference <= TOLERANCE[precision]
    merged = name in ("mobilenet_v2", "efficientnet_lite")
    assert ("depthwise_project" in kernels) == merged
    if name == "vit":
        assert "attention" in kernels


def test_a_whole_mobilenet(triton_interpreter: Interpreter, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from zoo.exported import export
    from zoo.models import build, by_name

    clean = tmp_path / "net.onnx"
    net = build(by_name("mobilenet_v2"), small=True)
    export(net, {"image": (1, 3, 64, 48)}, clean, name="net")
    proto = fused(load_proto(clean))
    difference, kernels = worst(triton_interpreter, proto, "fp32", merged=True)
    assert len(kernels) == 37
    assert kernels.count("depthwise_project") == 17
    assert difference <= TOLERANCE["fp32"]
