"""The addition of two branches and its activation, as one group.

Problem: where two branches meet and neither is a layer that could take the addition (pooled, fused
already, or read elsewhere), Add and its activation are two launches over the same tensor.

Rewrite: act(Add(a, b)) = edgefuse.Add<Act>(a, b).

Scope: two computed tensors of a floating type and of one shape, read by the activation alone; any
activation that fuse_conv_activation takes. Left alone: constants and broadcasts, which a chain of
pointwise operators may take; an Add without an activation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import Activation, activation_after
from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, is_constant, is_float, same_shape

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    left, right = node.inputs
    if left is None or right is None or is_constant(left) or is_constant(right):
        return None
    if not is_float(node.outputs[0]):
        return None
    found = activation_after(node.outputs[0], context.opset)
    if not isinstance(found, Activation):
        return found
    if not same_shape(left, right):
        shapes = " and ".join(
            "unknown" if v.shape is None else str(list(v.shape)) for v in (left, right)
        )
        return Refusal(
            f"{describe(node)} adds tensors of shapes {shapes}: not known to be equal",
            (str(node.name), str(found.nodes[0].name)),
        )
    data = {"name": f"Add{found.title}", "activation": found.kind}
    return Match((node, *found.nodes), data)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, name=found.data["name"], activation=found.data["activation"])


PASS = PASSES.add(
    Pass(
        name="fuse_add_activation",
        summary="The Add of two branches and its activation become one group.",
        phase="fuse",
        anchors=("Add",),
        match=match,
        rewrite=rewrite,
        after=("fuse_residual_add", "fuse_linear", "fuse_conv_activation"),
        example="""(float[1,4,8,8] x, float[1,4,8,8] x2) => (float[1,4,8,8] y) {
            a = Add(x, x2)
            y = Relu(a) }""",
    ),
    __name__,
)
