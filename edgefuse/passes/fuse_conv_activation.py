"""Conv and the activation behind it, as one group.

Problem: y = act(conv(x, w, b)) as two operators writes the whole tensor, reads it and writes it
again; every target applies cheap activations on the accumulator.

Rewrite: act(Conv(x, w, b)) = edgefuse.Conv<Act>(x, w, b, ...).

Scope: Conv or ConvTranspose of any rank read by the activation alone; Clip with constant bounds.
Whether a target's runtime fuses the activation too is for the fusion contract to check. Left
alone: activations behind anything else, bounds that are computed or overridable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import ACTIVATIONS, activation_reason
from edgefuse.graph.group import fuse_chain
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, reads_alone, why_shared

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

LAYERS = ("Conv", "ConvTranspose")


def match(node: ir.Node, context: Context) -> Verdict:
    value = node.inputs[0]
    if value is None:
        return None
    layer = value.producer()
    if layer is None or layer.domain != "" or layer.op_type not in LAYERS:
        origin = f"({value.name}) is a graph input" if layer is None else f"is {describe(layer)}"
        return Refusal(
            f"what {describe(node)} reads {origin}, not the output of {' or '.join(LAYERS)}",
            (str(node.name),),
        )
    names = (str(node.name), str(layer.name))
    if not reads_alone(node, value):
        return Refusal(f"the output of {describe(layer)} {why_shared(value, node)}", names)
    if (refusal := activation_reason(node, context.opset)) is not None:
        return refusal
    return Match((layer, node))


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_chain(builder, found.nodes)


PASS = PASSES.add(
    Pass(
        name="fuse_conv_activation",
        summary="Conv or ConvTranspose and its activation become one group.",
        phase="fuse",
        anchors=ACTIVATIONS,
        match=match,
        rewrite=rewrite,
        after=("fuse_residual_add",),
    ),
    __name__,
)
