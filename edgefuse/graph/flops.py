"""How many FLOPs one standard ONNX operator takes, from its static shapes.

Conventions: a multiplication with its addition is 2 FLOPs; a comparison, an exponential, an error
function, a root or a division is 1; activations and normalisations count as spelt out; moving,
reshaping and converting is 0.

Scope: standard operators of the field's networks. What is not listed has no count, which is not
the same as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING

from edgefuse.errors import StageError
from edgefuse.graph.values import attribute, describe, read

if TYPE_CHECKING:
    import onnx_ir as ir

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
SHAPE_ONLY = frozenset({"Shape", "Size"})
_NO_FLOPS = frozenset(
    {
        *("Transpose", "Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND", "Pad"),
        *("Expand", "Tile", "Cast", "CastLike", "DepthToSpace", "SpaceToDepth", "Constant"),
        *("ConstantOfShape", "Range", "Trilu", "ReverseSequence", "EyeLike", *SHAPE_ONLY, *VIEWS),
    }
)
# FLOPs an element of the result.
_POINTWISE: Mapping[str, int] = {
    **dict.fromkeys(
        (
            *("Abs", "Add", "And", "BitShift", "Ceil", "Cos", "Div", "Equal", "Erf", "Exp"),
            *("Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log"),
            *("Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sign"),
            *("Sin", "Sqrt", "Sub", "Tanh", "Where", "Xor"),
        ),
        1,
    ),
    **dict.fromkeys(("Clip", "LeakyRelu", "PRelu", "ThresholdedRelu", "DequantizeLinear"), 2),
    **dict.fromkeys(("Elu", "Softsign", "Softplus", "QuantizeLinear"), 3),
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "Selu", "Celu"), 4),
    **dict.fromkeys(("HardSwish", "Swish", "Gelu", "Mish"), 5),
}
_VARIADIC = frozenset({"Sum", "Mean", "Max", "Min"})
# FLOPs an element of the first input.
_PER_INPUT: Mapping[str, int] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), 1),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"), 2),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "ArgMax", "ArgMin", "CumSum"), 1),
    "ReduceLogSumExp": 4,
    # x * scale + shift, both folded when the model is loaded.
    "BatchNormalization": 2,
    # Largest value, difference, exponential, sum, division.
    **dict.fromkeys(("Softmax", "LogSoftmax"), 5),
    # Square, its sum, product, scale; with a mean also its sum, the difference and the shift.
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "LpNormalization"), 4),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization"), 7),
}
_WINDOWS = frozenset({"AveragePool", "MaxPool", "LpPool"})
POINTWISE = frozenset({*_POINTWISE, *_VARIADIC, "Cast", "BatchNormalization"})


def extents(value: ir.Value) -> tuple[int, ...]:
    """The static shape of a value.

    Raises:
        StageError: a size is unknown or symbolic.
    """
    shape = value.shape
    if shape is None or not all(isinstance(extent, int) for extent in shape):
        raise StageError(
            f"the shape of {value.name!r} is {shape or 'unknown'}: a cost needs static shapes",
            hint="give every size in model.inputs, and several as shapes: {buckets: [...]}",
        )
    return tuple(int(extent) for extent in shape)


def elements(value: ir.Value) -> int:
    return prod(extents(value))


def is_depthwise(node: ir.Node) -> bool:
    """A convolution of each channel by itself."""
    return (
        is_operator(node, "Conv")
        and _channels_of_a_filter(node) == 1
        and int(group_count(node)) > 1
    )


def is_dense(node: ir.Node) -> bool:
    """A matrix product: MatMul, Gemm, a convolution that is not depthwise, a transposed one."""
    return is_operator(node, "MatMul", "Gemm", "ConvTranspose") or (
        is_operator(node, "Conv") and not is_depthwise(node)
    )


def group_count(node: ir.Node) -> int:
    return int(attribute(node, "group", 1))


def flops(node: ir.Node) -> int | None:
    """FLOPs of one standard operator; None when they are not known."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _NO_FLOPS:
        return 0
    if node.op_type in _POINTWISE:
        return _POINTWISE[node.op_type] * elements(node.outputs[0])
    if node.op_type in _VARIADIC:
        return (len(node.inputs) - 1) * elements(node.outputs[0])
    if node.op_type in _PER_INPUT:
        return _PER_INPUT[node.op_type] * elements(_given(node, 0))
    if node.op_type in _WINDOWS:
        return int(prod(attribute(node, "kernel_shape", ()))) * elements(node.outputs[0])
    counted = _PRODUCTS.get(node.op_type)
    return None if counted is None else counted(node)


def is_operator(node: ir.Node, *op_types: str) -> bool:
    """Whether the node is one of these standard operators."""
    return node.domain in ("", "ai.onnx") and node.op_type in op_types


def _given(node: ir.Node, index: int) -> ir.Value:
    value = read(node, index)
    if value is None:
        raise StageError(f"{describe(node)} has no input {index}")
    return value


def _channels_of_a_filter(node: ir.Node) -> int:
    return extents(_given(node, 1))[1]


def _conv(node: ir.Node) -> int:
    out, weight = elements(node.outputs[0]), extents(_given(node, 1))
    return 2 * out * prod(weight[1:]) + (out if read(node, 2) is not None else 0)


def _conv_transpose(node: ir.Node) -> int:
    weight, out = extents(_given(node, 1)), elements(node.outputs[0])
    bias = out if read(node, 2) is not None else 0
    return 2 * elements(_given(node, 0)) * prod(weight[1:]) + bias


def _matmul(node: ir.Node) -> int:
    return 2 * elements(node.outputs[0]) * extents(_given(node, 0))[-1]


def _gemm(node: ir.Node) -> int:
    left, out = extents(_given(node, 0)), elements(node.outputs[0])
    shared = left[0] if attribute(node, "transA", 0) else left[1]
    return 2 * out * shared + (out if read(node, 2) is not None else 0)


_PRODUCTS: Mapping[str, Callable[[ir.Node], int]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
}
