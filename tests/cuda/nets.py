"""Small ONNX graphs, fused, and MobileNetV2 without numbers, for tests of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.verify import Runner

Array = np.ndarray[Any, Any]

BLOCK = """
(float[2, 3, 9, 11] x, float[8, 3, 3, 3] w0, float[8] b0, float[16, 8, 1, 1] w1, float[16] b1,
 float[16, 1, 3, 3] w2, float[16] b2, float[8, 16, 1, 1] w3, float[8] b3, float[5, 8] w4,
 float[5] b4) => (float[2, 5] y)
<int64[2] axes = {2, 3}>
{
  c0 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w0, b0)
  a0 = Relu(c0)
  c1 = Conv(a0, w1, b1)
  a1 = HardSwish(c1)
  c2 = Conv<group = 16, pads = [1, 1, 1, 1]>(a1, w2, b2)
  a2 = Relu(c2)
  c3 = Conv(a2, w3, b3)
  r = Add(c3, a0)
  m = ReduceMean<keepdims = 0>(r, axes)
  y = Gemm<transB = 1>(m, w4, b4)
}
"""


def graph(text: str, seed: int = 3) -> onnx.ModelProto:
    """A model of a graph's text; inputs but those that start with ``x`` are seeded constants."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]>\nnet {text.strip()}')
    random = np.random.default_rng(seed)
    for info in [i for i in proto.graph.input if not i.name.startswith("x")]:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        array = (random.normal(size=shape) * 0.4).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
        proto.graph.input.remove(info)
    return proto


def fused(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnx_ir as ir

    model = prepare(proto)
    run_passes(model)
    made: onnx.ModelProto = ir.serde.serialize_model(model)
    return made


def expected(proto: onnx.ModelProto, feed: dict[str, Array]) -> dict[str, Array]:
    return Runner(proto)(feed)
