"""Fold a constant Mul, Add, Sub or Div into the layer before it.

Problem: a scale or an offset for each channel (a learnt scale, a normalised output, a bias that was
written as an addition) costs a pass over the whole tensor behind a layer that could hold it.

Rewrite, with c one number, or one for each output channel:
(W * x + b) c = (c W) * x + c b;
(W * x + b) / c = (W / c) * x + b / c;
(W * x + b) + c = W * x + (b + c);
(W * x + b) - c = W * x + (b - c);
c - (W * x + b) = (-W) * x + (c - b).

Scope: Conv and ConvTranspose of any rank and grouping, Gemm, MatMul by a constant matrix, with or
without the Add of its bias, read by the operator alone, directly or transposed (a learnt scale
behind a block that keeps its channels last). A product of two matrices takes an offset by becoming
a Gemm. Computed in float64 and cast last. Left alone: constants of any other shape (one for each
row or pixel, or of a higher rank), c / (W * x + b), the Add behind a MatMul of a higher rank (it is
the bias already), and what is part of an activation that exporters spell out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.fold import (
    Layer,
    absorb_behind,
    bias_place,
    fold_behind,
    layer_nodes,
    per_channel,
    read_layer,
    why_bias_has_no_place,
)
from edgefuse.graph.pointwise import named, regions
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    Array,
    constant,
    describe,
    is_float,
    is_overridable,
    reads_alone,
    why_not_constant,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    if not is_float(node.outputs[0]):
        return None
    place = bias_place(node)
    if place is None:
        return _overridable(node)
    value = node.inputs[1 - place]
    operand = constant(node.inputs[place])
    nodes = layer_nodes(value)
    if not nodes or value is None or operand is None:
        return None
    if any(node in r.nodes and named(r) for r in regions(value) if len(r.nodes) > 1):
        return None
    if not reads_alone(node, value):
        return _refuse(
            node, nodes[0], f"the output of {describe(nodes[-1])} {why_shared(value, node)}"
        )
    if node.op_type == "Div" and place == 0:
        return _refuse(node, nodes[0], f"{describe(node)} divides by what the layer computes")
    layer = read_layer(nodes, node)
    if isinstance(layer, Refusal):
        return layer
    return _fold(node, layer, operand, place)


def _overridable(node: ir.Node) -> Verdict:
    for index, value in enumerate(node.inputs):
        nodes = layer_nodes(node.inputs[1 - index]) if len(node.inputs) == 2 else ()
        if nodes and value is not None and is_overridable(value):
            what, remedy = why_not_constant(value)
            return _refuse(node, nodes[0], f"the operand of {describe(node)} {what}", remedy)
    return None


def _fold(node: ir.Node, layer: Layer, operand: Array, place: int) -> Verdict:
    numbers = per_channel(operand, rank=layer.rank, axis=layer.axis, channels=layer.channels)
    if numbers is None:
        return _refuse(
            node,
            layer.node,
            f"the operand of {describe(node)}, {list(operand.shape)}, is not one number for each "
            f"of the {layer.channels} output channels of {describe(layer.node)}",
        )
    factor, shift = _affine(node.op_type, numbers, place)
    folded = fold_behind(layer, node, factor, shift)
    if isinstance(folded, Refusal):
        return folded
    if lack := why_bias_has_no_place(layer, folded):
        return None if node.op_type == "Add" else _refuse(node, layer.node, lack)
    nodes = layer.nodes if layer.turned is None else (*layer.nodes, layer.turned)
    return Match((*nodes, node), {"layer": layer, "folded": folded})


def _affine(op_type: str, numbers: Array, place: int) -> tuple[Array, Array]:
    """The factor and the shift that the operator applies."""
    import numpy as np

    zero, one = np.zeros_like(numbers), np.ones_like(numbers)
    if op_type == "Mul":
        return numbers, zero
    if op_type == "Div":
        with np.errstate(all="ignore"):
            return one / numbers, zero
    if op_type == "Add":
        return one, numbers
    return (one, -numbers) if place == 1 else (-one, numbers)


def _refuse(node: ir.Node, layer: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name), str(layer.name)), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    absorb_behind(builder, found.data["layer"], found.nodes[-1], found.data["folded"])


PASS = PASSES.add(
    Pass(
        name="fold_conv_affine",
        summary="A constant Mul, Add, Sub or Div goes into the weights of the layer before it.",
        phase="fold",
        anchors=("Mul", "Add", "Sub", "Div"),
        match=match,
        rewrite=rewrite,
        after=("fold_conv_batch_norm", "fold_batch_norm_conv"),
        tolerance=5e-5,
        example="""(float[1,3,8,8] x, float[4,3,3,3] w, float[4,1,1] c) => (float[1,4,6,6] y)
            {
            a = Conv(x, w)
            y = Mul(a, c) }""",
    ),
    __name__,
)
