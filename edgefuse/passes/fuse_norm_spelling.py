"""A normalisation that is written out, and its activation, as one group.

Problem: RMSNorm has no operator below opset 23, LayerNorm none below 17, GroupNorm none below 21,
and the operators compute in float32 whatever the type. Written out, the tensor passes through
memory once an operator.

Rewrite, with n(x) = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) and
r(x) = x / sqrt(mean(x^2) + e):
act(s r(x)) = edgefuse.RmsNormalization<Act>(x, s, ...), means over the last axes;
act(s n(x) + b) = edgefuse.LayerNormalization<Act>(x, s, b, ...), and likewise
edgefuse.InstanceNormalization<Act> and edgefuse.GroupNormalization<Act>; scale, bias and act
optional.

Scope: what replace_norm_spelling recognises and cannot replace, and RMSNorm; any floating type. The
body keeps the spelling, so the numbers stay bit for bit. Left alone: an RMSNorm over other axes, or
one whose inner values something else reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import Activation, activation_after
from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.group_norm import GroupNorm, recognise_group_norm
from edgefuse.graph.norm import Norm, Statistics, recognise, statistics
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    norm: Norm | GroupNorm
    if node.op_type == "InstanceNormalization":
        grouped = recognise_group_norm(node)
        if not isinstance(grouped, GroupNorm):
            return None  # replace_norm_spelling says why
        norm, kind = grouped, "GroupNormalization"
    else:
        found = statistics(node)
        if not isinstance(found, Statistics):
            return None
        recognised = recognise(found, context.opset)
        if isinstance(recognised, Refusal):
            return None if found.centred else recognised
        norm, kind = recognised, recognised.kind
    follower = activation_after(norm.nodes[-1].outputs[0], context.opset)
    if not isinstance(follower, Activation):
        return Match(norm.nodes, {"name": kind})
    nodes = (*norm.nodes, *follower.nodes)
    return Match(nodes, {"name": kind + follower.title, "activation": follower.kind})


def rewrite(found: Match, builder: GraphBuilder) -> None:
    activation = found.data.get("activation", "NONE")
    fuse_nodes(builder, found.nodes, name=found.data["name"], activation=activation)


PASS = PASSES.add(
    Pass(
        name="fuse_norm_spelling",
        summary="Written-out norms that have no operator, and their activation, become one group.",
        phase="fuse",
        anchors=("InstanceNormalization", "Pow", "Sqrt"),
        match=match,
        rewrite=rewrite,
        after=("replace_norm_spelling",),
        instead_of=("replace_norm_spelling",),
        example="""(float[2,8] x, float[8] scale) => (float[2,8] y) {
            axes = Constant<value_ints = [-1]>()
            two = Constant<value_float = 2.0>()
            epsilon = Constant<value_float = 0.00001>()
            p = Pow(x, two)
            m = ReduceMean(p, axes)
            e = Add(m, epsilon)
            s = Sqrt(e)
            n = Div(x, s)
            y = Mul(n, scale) }""",
    ),
    __name__,
)
