"""FLOPs of single operators, counted by hand."""

from __future__ import annotations

import onnx.parser
import pytest

from edgefuse.errors import StageError
from edgefuse.graph.flops import flops, is_dense, is_depthwise
from edgefuse.graph.shapes import spelt_out


def counted(inputs: str, body: str, weights: str = "", opset: int = 18) -> int | None:
    """FLOPs of the last node of ``y = ...``."""
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => (float[?] y)'
    proto = onnx.parser.parse_model(f"{text} {weights} {{ {body} }}")
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return flops(list(spelt_out(proto).graph)[-1])


X = "float[2,8,6,6] x"


@pytest.mark.parametrize(
    ("inputs", "body", "expected"),
    [
        # 2 * results (2*4*6*6) * taps (8*3*3)
        (f"{X}, float[4,8,3,3] w", "y = Conv <pads=[1,1,1,1]> (x, w)", 2 * 288 * 72),
        (f"{X}, float[4,8,1,1] w, float[4] b", "y = Conv(x, w, b)", 2 * 288 * 8 + 288),
        # Depthwise: 2 * (2*8*4*4) * 9; two groups: 2 * (2*4*6*6) * 4.
        (f"{X}, float[8,1,3,3] w", "y = Conv <group=8> (x, w)", 2 * 256 * 9),
        (f"{X}, float[4,4,1,1] w", "y = Conv <group=2> (x, w)", 2 * 288 * 4),
        # Strides halve both extents.
        (f"{X}, float[4,8,1,1] w", "y = Conv <strides=[2,2]> (x, w)", 2 * 72 * 8),
        # Each of the 2*8*6*6 operands meets 4 channels of 2x2 taps.
        (f"{X}, float[8,4,2,2] w", "y = ConvTranspose <strides=[2,2]> (x, w)", 2 * 576 * 16),
        ("float[3,5] a, float[5,7] b", "y = MatMul(a, b)", 2 * 21 * 5),
        ("float[2,4,3,5] a, float[2,4,5,7] b", "y = MatMul(a, b)", 2 * 8 * 21 * 5),
        ("float[3,5] a, float[7,5] b, float[7] c", "y = Gemm <transB=1> (a, b, c)", 210 + 21),
        ("float[5,3] a, float[5,7] b", "y = Gemm <transA=1> (a, b)", 210),
        (X, "y = Relu(x)", 576),
        (X, "y = Sigmoid(x)", 4 * 576),
        (X, "y = HardSwish(x)", 5 * 576),
        (f"{X}, float[8,1,1] b", "y = Add(x, b)", 576),
        (f"{X}, {X.replace(' x', ' z')}", "y = Max(x, z, x)", 2 * 576),
        (X, "y = Softmax(x)", 5 * 576),
        (f"{X}, float[6] s", "y = LayerNormalization(x, s)", 7 * 576),
        (f"{X}, float[8] s, float[8] b", "y = InstanceNormalization(x, s, b)", 7 * 576),
        (
            f"{X}, float[8] s, float[8] b, float[8] m, float[8] v",
            "y = BatchNormalization(x, s, b, m, v)",
            2 * 576,
        ),
        (X, "y = ReduceMean <keepdims=0> (x)", 576),
        (X, "y = GlobalAveragePool(x)", 576),
        (X, "y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x)", 144 * 4),
        (X, "y = Transpose(x)", 0),
        (X, "y = Flatten(x)", 0),
        (X, "y = Concat <axis=1> (x, x)", 0),
        (X, "y = LRN <size=3> (x)", None),
    ],
)
def test_by_hand(inputs: str, body: str, expected: int | None) -> None:
    assert counted(inputs, body) == expected


def test_depthwise_is_no_matrix_product() -> None:
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[1,4,5,5] x) => (float[1,4,5,5] y)'
    weights = "<float[4,1,1,1] d = {1,1,1,1}, float[1,1,1,1] one = {1}>"
    body = "{ m = Conv <group=4> (x, d) y = Relu(m) }"
    conv, relu = spelt_out(onnx.parser.parse_model(f"{text} {weights} {body}")).graph
    assert is_depthwise(conv) and not is_dense(conv)
    assert not is_depthwise(relu) and not is_dense(relu)
    single = '<ir_version: 10, opset_import: ["": 18]> g (float[1,1,5,5] x) => (float[1,1,5,5] y)'
    one = spelt_out(onnx.parser.parse_model(f"{single} {weights} {{ y = Conv(x, one) }}")).graph[0]
    assert is_dense(one)


def test_a_symbolic_shape_has_no_count() -> None:
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[N,4] x) => (float[N,4] y)'
    model = spelt_out(onnx.parser.parse_model(f"{text} {{ y = Relu(x) }}"))
    with pytest.raises(StageError, match="a cost needs static shapes") as caught:
        flops(model.graph[0])
    assert "buckets" in caught.value.hint
