"""Weights of a layer along its channels: what follows a layer, or precedes it, goes into them.

A *layer* is y = W * x + b with a constant W: Conv, ConvTranspose, Gemm, MatMul by a matrix, and
MatMul with the Add of its bias; a Transpose of its result only moves the channels. With one factor
f and one shift t for each output channel, f (W * x + b) + t = (f W) * x + (f b + t). Everything is
computed in float64 and cast last; a result that is not finite, or too small for the weight's type,
is refused.

Left alone: weights and biases that are computed or that a caller may override, biases that are not
the same for every row and pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.rule import Refusal
from edgefuse.graph.values import (
    Array,
    attribute,
    constant,
    describe,
    is_constant,
    is_overridable,
    read,
    reads_alone,
    set_origin,
    why_not_constant,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}
FLOAT32_EPSILON = 2.0**-23


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer whose weights can be changed.

    Attributes:
        nodes: the operator; for MatMul with a bias, the Add too.
        turned: the Transpose of its result, if what follows reads that.
        weight: ONNX layout, its own type.
        bias: what is added to each output channel, [channels], float64.
        has_bias: whether the graph holds a bias; else ``bias`` is zero.
        channels: output channels.
        rank: of the output.
        axis: of the output's channels, behind the Transpose.
    """

    nodes: tuple[ir.Node, ...]
    turned: ir.Node | None
    weight: Array
    bias: Array
    has_bias: bool
    channels: int
    rank: int
    axis: int

    @property
    def node(self) -> ir.Node:
        return self.nodes[0]


@dataclass(frozen=True, eq=False)
class Folded:
    """New weights in the type of the old; no bias where there was none and none is needed."""

    weight: Array
    bias: Array | None


def layer_nodes(value: ir.Value | None) -> tuple[ir.Node, ...]:
    """The operators of the layer that computes ``value``, in order; empty when it is none."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "":
        return ()
    if node.op_type == "MatMul":
        weight = node.inputs[1]
        return (node,) if is_constant(weight) or is_overridable(weight) else ()
    if node.op_type in LAYERS:
        return (node,)
    if node.op_type == "Transpose":
        inner = node.inputs[0]
    elif node.op_type == "Add" and (place := bias_place(node)) is not None:
        inner = node.inputs[1 - place]
    else:
        return ()
    if inner is None or not reads_alone(node, inner):
        return ()
    found = layer_nodes(inner)
    if node.op_type == "Transpose":
        return (*found, node) if found and found[-1].op_type != "Transpose" else ()
    return (*found, node) if len(found) == 1 and found[0].op_type == "MatMul" else ()


def bias_place(node: ir.Node) -> int | None:
    """Which operand of an operator with two is the constant; None unless exactly one is."""
    if len(node.inputs) != 2 or is_constant(node.inputs[0]) == is_constant(node.inputs[1]):
        return None
    return 0 if is_constant(node.inputs[0]) else 1


def read_layer(nodes: tuple[ir.Node, ...], anchor: ir.Node) -> Layer | Refusal:
    """The layer's numbers, or why ``anchor`` cannot be folded into it."""
    import numpy as np

    node, turned = nodes[0], None
    if nodes[-1].op_type == "Transpose":
        *rest, turned = nodes
        nodes = tuple(rest)
    arrays: dict[str, Array] = {}
    biased = (node, 2) if len(nodes) == 1 else (nodes[1], bias_place(nodes[1]) or 0)
    for name, owner, index in (("weight", node, 1), ("layer bias", *biased)):
        source = read(owner, index)
        if source is None:
            continue
        array = constant(source)
        if array is None:
            what, remedy = why_not_constant(source)
            return _refuse(anchor, node, f"the {name} of {describe(owner)} {what}", remedy)
        arrays[name] = array
    weight = arrays["weight"]
    rank, axis = weight.ndim, 1
    if node.op_type == "MatMul":
        shape = node.outputs[0].shape
        if weight.ndim != 2:
            return _refuse(
                anchor, node, f"the weight of {describe(node)} is of rank {weight.ndim}, not 2"
            )
        if shape is None:
            return _refuse(anchor, node, f"the rank of what {describe(node)} computes is unknown")
        rank, axis = len(shape), len(shape) - 1
    channels = _channels(node, weight)
    bias = np.zeros(channels)
    if "layer bias" in arrays:
        given = arrays["layer bias"].astype(np.float64)
        if node.op_type == "Gemm":
            given = given * attribute(node, "beta", 1.0)
        own = node.op_type in (
            "Conv",
            "ConvTranspose",
        )  # their biases are [channels], not broadcast
        flat = per_channel(
            given, rank=1 if own else rank, axis=0 if own else axis, channels=channels
        )
        if flat is None:
            return _refuse(
                anchor,
                node,
                f"the bias of {describe(node)}, {list(given.shape)}, is not per channel",
            )
        bias = flat
    if turned is not None:
        order = list(attribute(turned, "perm", range(rank)[::-1]))
        axis = order.index(axis)
    return Layer(nodes, turned, weight, bias, "layer bias" in arrays, channels, rank, axis)


def per_channel(array: Array, *, rank: int, axis: int, channels: int) -> Array | None:
    """A constant operand as [channels] in float64; None when broadcasting does anything else.

    Args:
        rank: of the other operand; a constant of a higher rank would raise it.
        axis: of the other operand's channels.
        channels: its extent there.
    """
    import numpy as np

    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(extent != 1 for place, extent in enumerate(shape) if place != axis):
        return None
    if shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,)).copy()


def along_outputs(layer: Layer, factor: Array) -> Array:
    """A factor for each output channel, in a shape that scales the weight."""
    import numpy as np

    node, weight = layer.node, layer.weight
    ones = (1,) * (weight.ndim - 2)
    if node.op_type == "MatMul":
        return factor[None, :]
    if node.op_type == "Gemm":
        return factor[:, None] if attribute(node, "transB", 0) else factor[None, :]
    if node.op_type == "ConvTranspose":
        groups = int(attribute(node, "group", 1))
        per_group = factor.reshape(groups, 1, -1)
        rows = np.repeat(per_group, weight.shape[0] // groups, axis=1)
        return rows.reshape(weight.shape[0], weight.shape[1], *ones)
    return factor.reshape(-1, 1, *ones)


def fold_behind(layer: Layer, anchor: ir.Node, factor: Array, shift: Array) -> Folded | Refusal:
    """The layer's weights with ``factor * y + shift``, both [channels], applied to its result."""
    import numpy as np

    with np.errstate(all="ignore"):
        weight = layer.weight.astype(np.float64) * along_outputs(layer, factor)
        bias = layer.bias * factor + shift
    return in_own_type(layer, anchor, weight, bias)


def in_own_type(layer: Layer, anchor: ir.Node, weight: Array, bias: Array) -> Folded | Refusal:
    """Float64 weights cast to the layer's type, or why that type cannot hold them."""
    import numpy as np

    node, dtype = layer.node, layer.weight.dtype
    if not layer.has_bias and not bias.any() and np.isfinite(bias).all():
        cast_bias = None
    else:
        with np.errstate(all="ignore"):
            cast_bias = bias.astype(dtype)
    with np.errstate(all="ignore"):
        cast_weight = weight.astype(dtype)
    if not _is_finite(cast_weight):
        return _refuse(
            anchor,
            node,
            f"the folded weight of {describe(node)} is not finite in {dtype}",
            "export in float32",
        )
    if cast_bias is not None and not _is_finite(cast_bias):
        return _refuse(
            anchor,
            node,
            f"the folded bias of {describe(node)} is not finite in {dtype}",
            "export in float32",
        )
    if _loses_precision(weight, cast_weight):
        return _refuse(
            anchor,
            node,
            f"the folded weight of {describe(node)} is too small for {dtype}",
            "export in float32",
        )
    return Folded(cast_weight, cast_bias)


def why_bias_has_no_place(layer: Layer, folded: Folded) -> str:
    """Empty when the bias has a place: only Gemm adds one to a product, and only of matrices."""
    if folded.bias is None or layer.node.op_type != "MatMul" or len(layer.nodes) == 2:
        return ""
    if layer.rank == 2:
        return ""
    return f"{describe(layer.node)} computes a tensor of rank {layer.rank} and has no bias"


def write_weights(builder: GraphBuilder, layer: Layer, folded: Folded) -> ir.Node:
    """Put the folded weights into the graph: the node that then computes the layer's result."""
    node = layer.node
    weight_name = str(node.inputs[1].name)
    stem = weight_name[: -len("weight")] if weight_name.endswith("weight") else f"{weight_name}_"
    if node.op_type == "MatMul" and folded.bias is not None and layer.rank == 2:
        node = builder.node("Gemm", node.inputs, replaces=layer.nodes)
    builder.set_constant(node, 1, folded.weight, f"{weight_name}_folded")
    if folded.bias is None:
        return node
    if node.op_type == "MatMul":
        adding = layer.nodes[1]
        builder.set_constant(adding, bias_place(adding) or 0, folded.bias, f"{stem}bias")
        return adding
    builder.set_constant(node, 2, folded.bias, f"{stem}bias")
    if "beta" in node.attributes:
        del node.attributes["beta"]
    return node


def absorb_behind(builder: GraphBuilder, layer: Layer, anchor: ir.Node, folded: Folded) -> None:
    """Write the folded weights and let the users of ``anchor`` read the layer."""
    node = write_weights(builder, layer, folded)
    set_origin(node, (node, anchor))
    result = node if layer.turned is None else layer.turned
    builder.bypass(anchor, result.outputs[0], keep_name=True)


def _channels(node: ir.Node, weight: Array) -> int:
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1] * attribute(node, "group", 1))
    if node.op_type == "MatMul":
        return int(weight.shape[1])
    if node.op_type == "Gemm":
        return int(weight.shape[0 if attribute(node, "transB", 0) else 1])
    return int(weight.shape[0])


def _is_finite(array: Array) -> bool:
    import numpy as np

    return bool(np.isfinite(array.astype(np.float64)).all())


def _loses_precision(exact: Array, cast: Array) -> bool:
    """Whether rounding leaves an error beyond the type's own, not counting negligible values."""
    import numpy as np

    epsilon = EPSILON.get(cast.dtype.name, FLOAT32_EPSILON)
    error = float(np.abs(cast.astype(np.float64) - exact).max(initial=0.0))
    peak = float(np.abs(exact).max(initial=0.0))
    return error > 2 * epsilon * peak


def _refuse(anchor: ir.Node, layer: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(anchor.name), str(layer.name)), remedy)
