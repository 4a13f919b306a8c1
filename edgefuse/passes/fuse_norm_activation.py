"""A normalisation and the activation behind it, as one group.

Problem: y = act(norm(x)) as two operators writes and reads the whole tensor once more than it must.

Rewrite: act(LayerNormalization(x, s, b)) = edgefuse.LayerNormalization<Act>(x, s, b, ...), and
likewise InstanceNormalization<Act> and GroupNormalization<Act>.

Scope: the standard operators, with any activation that alone reads the result, however it is
spelt, a Reshape in between or not. Left alone: a normalisation in front of a Conv, MatMul or Gemm.
Unlike BatchNorm it cannot be folded into the weights, because its mean and variance are those of
each input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import Activation, activation_after
from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, origin, sole_user

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

ANCHORS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")
LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LAYOUT = ("Reshape", "Transpose")


def match(node: ir.Node, context: Context) -> Verdict:
    found = activation_after(node.outputs[0], context.opset)
    view = None if isinstance(found, Activation) else sole_user(node.outputs[0])
    nodes: tuple[ir.Node, ...] = (node,)
    if view is not None and view.domain == "" and view.op_type == "Reshape":
        viewed = activation_after(view.outputs[0], context.opset)
        found, nodes = (viewed, (node, view)) if isinstance(viewed, Activation) else (found, nodes)
    if isinstance(found, Activation):
        if any(list(output.uses()) or output.is_graph_output() for output in node.outputs[1:]):
            return Refusal(
                f"the mean or the deviation of {describe(node)} is read", (str(node.name),)
            )
        name = str(node.op_type) + found.title
        return Match((*nodes, *found.nodes), {"name": name, "activation": found.kind})
    if (layer := _layer_behind(node.outputs[0])) is not None:
        (name, *_), (op_type, *_) = origin(layer)
        return Refusal(
            f"{describe(node)} cannot be folded into {op_type} {name!r}: its mean and variance "
            "are those of each input, so they are no constants",
            (str(node.name), name),
        )
    return found


def _layer_behind(value: ir.Value) -> ir.Node | None:
    """The first linear layer that reads the value, or a fused one, seen through layout changes."""
    for use in sorted(value.uses(), key=lambda u: str(u.node.name)):
        reader: ir.Node = use.node
        if use.idx == 0 and origin(reader)[1][0] in LINEAR:
            return reader
        if use.idx == 0 and reader.domain == "" and reader.op_type in LAYOUT:
            layer = _layer_behind(reader.outputs[0])
            if layer is not None:
                return layer
    return None


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, name=found.data["name"], activation=found.data["activation"])


PASS = PASSES.add(
    Pass(
        name="fuse_norm_activation",
        summary="LayerNorm, InstanceNorm or GroupNorm and its activation become one group.",
        phase="fuse",
        anchors=ANCHORS,
        match=match,
        rewrite=rewrite,
        after=("fuse_norm_spelling",),
        example="""(float[2,8] x, float[8] scale, float[8] bias) => (float[2,8] y) {
            a = LayerNormalization(x, scale, bias)
            y = Relu(a) }""",
    ),
    __name__,
)
