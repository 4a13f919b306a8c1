"""Conv, the addition of a residual and the activation behind it, as one group.

Problem: y = act(conv(x, w, b) + r) writes and reads the convolution's result once more than it
must; the addition can be done on the accumulator.

Rewrite: act(Add(Conv(x, w, b), r)) = edgefuse.ConvAdd<Act>(x, w, b, r, ...), act optional.

Scope: Conv or ConvTranspose read by the Add alone, r of the same shape and not a constant. Where
both operands are convolutions, the one that runs last takes the addition. Left alone: broadcasts,
constants (they are biases), a convolution with an activation of its own before the Add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import Activation, activation_after
from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    describe,
    is_constant,
    reads_alone,
    same_shape,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

LAYERS = ("Conv", "ConvTranspose")


def match(node: ir.Node, context: Context) -> Verdict:
    left, right = node.inputs
    candidates = [(a, b) for a, b in ((left, right), (right, left)) if _from_layer(a)]
    if not candidates:
        return None
    free = [pair for pair in candidates if reads_alone(node, pair[0])]
    if not free:
        value = candidates[0][0]
        return _refuse(node, value, f"the output of {describe(value.producer())} "
                       f"{why_shared(value, node)}")  # fmt: skip
    if len(free) == 2:
        order = [n for n in node.graph if n in (left.producer(), right.producer())]
        free = [pair for pair in free if pair[0].producer() is order[-1]]
    value, residual = free[0]
    if is_constant(residual):
        return _refuse(
            node, value, f"{describe(node)} adds a constant ({residual.name}): a bias, no residual"
        )
    if not same_shape(value, residual):
        return _refuse(
            node,
            value,
            f"{describe(node)} adds {residual.name} of shape {_shape(residual)} "
            f"to {value.name} of shape {_shape(value)}: not known to be equal",
        )
    follower = activation_after(node.outputs[0], context.opset)
    if isinstance(follower, Activation):
        nodes = (value.producer(), node, *follower.nodes)
        return Match(nodes, {"activation": follower.kind})
    return Match((value.producer(), node))


def _from_layer(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and producer.domain == "" and producer.op_type in LAYERS


def _shape(value: ir.Value) -> str:
    return "unknown" if value.shape is None else str(list(value.shape))


def _refuse(node: ir.Node, value: ir.Value, reason: str) -> Refusal:
    return Refusal(reason, (str(node.name), str(value.producer().name)))


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, activation=found.data.get("activation", "NONE"))


PASS = PASSES.add(
    Pass(
        name="fuse_residual_add",
        summary="Conv, the Add of a residual and its activation become one group.",
        phase="fuse",
        anchors=("Add",),
        match=match,
        rewrite=rewrite,
    ),
    __name__,
)
