"""Fold BatchNormalization into the layer before it.

Problem: in inference mode a BatchNormalization is an affine map per channel, and costs a pass over
the whole tensor.

Rewrite, with s = gamma / sqrt(var + epsilon):
BN(W * x + b) = (s W) * x + ((b - mean) s + beta), s along the output channels of W.

Scope: Conv and ConvTranspose of any rank and grouping, Gemm, and MatMul by a constant matrix with
or without the Add of its bias (as a matrix it becomes a Gemm), whose output the BatchNormalization
alone reads, directly or transposed. Computed in float64 and cast last; refused when the result is
not finite or loses its precision in the weight's type. Left alone: parameters that are computed or
overridable, a MatMul whose channels are another axis than the BatchNormalization's second, and a
BatchNormalization behind anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.batch_norm import read_batch_norm
from edgefuse.graph.fold import (
    LAYERS,
    Layer,
    absorb_behind,
    fold_behind,
    layer_nodes,
    read_layer,
    why_bias_has_no_place,
)
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, reads_alone, why_shared

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    value = node.inputs[0]
    if value is None:
        return None
    nodes = layer_nodes(value)
    if not nodes:
        producer = value.producer()
        origin = (
            f"({value.name}) is a graph input" if producer is None else f"is {describe(producer)}"
        )
        return Refusal(
            f"what {describe(node)} reads {origin}, not the output of {', '.join(LAYERS)}",
            (str(node.name),),
            "put the normalisation directly behind the layer, before the activation",
        )
    if not reads_alone(node, value):
        return _refuse(
            node, nodes[0], f"the output of {describe(nodes[-1])} {why_shared(value, node)}"
        )
    parameters = read_batch_norm(node)
    if isinstance(parameters, Refusal):
        return parameters
    layer = read_layer(nodes, node)
    if isinstance(layer, Refusal):
        return layer
    if layer.axis != 1:
        return _refuse(
            node,
            layer.node,
            f"{describe(node)} normalises axis 1, the channels of {describe(layer.node)} are "
            f"axis {layer.axis}",
        )
    if parameters.channels != layer.channels:
        return _refuse(
            node, layer.node, f"the parameters of {describe(node)} are not of [{layer.channels}]"
        )
    folded = fold_behind(layer, node, parameters.factor, parameters.shift)
    if isinstance(folded, Refusal):
        return folded
    if lack := why_bias_has_no_place(layer, folded):
        return _refuse(node, layer.node, lack)
    return Match((*nodes, node), {"layer": layer, "folded": folded})


def _refuse(node: ir.Node, layer: ir.Node, reason: str) -> Refusal:
    return Refusal(reason, (str(node.name), str(layer.name)))


def rewrite(found: Match, builder: GraphBuilder) -> None:
    layer: Layer = found.data["layer"]
    absorb_behind(builder, layer, found.nodes[-1], found.data["folded"])


PASS = PASSES.add(
    Pass(
        name="fold_conv_batch_norm",
        summary="BatchNormalization goes into the weights of the Conv, ConvTranspose, Gemm or "
        "MatMul before it.",
        phase="fold",
        anchors=("BatchNormalization",),
        match=match,
        rewrite=rewrite,
        tolerance=5e-5,
        example="""(float[1,3,8,8] x, float[4,3,3,3] w, float[4] gamma, float[4] beta,
            float[4] mean, float[4] var) => (float[1,4,6,6] y) {
            a = Conv(x, w)
            y = BatchNormalization(a, gamma, beta, mean, var) }""",
    ),
    __name__,
)
