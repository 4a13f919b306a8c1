"""MatMul or Gemm, its bias and its activation, as one group.

Problem: exporters write a linear layer as MatMul, Add and an activation of its own; each writes the
whole tensor and reads it again, where one kernel adds the bias and bends the accumulator.

Rewrite: act(MatMul(x, W) + b) = edgefuse.MatMulAdd<Act>(x, W, b), with b, act or both;
act(Gemm(x, W, b)) = edgefuse.Gemm<Act>(x, W, b).

Scope: a weight [K, N] that is no result of the graph, x of any rank, a constant bias [N], or [1, N]
where x has two axes or more; any activation that fuse_conv_activation takes. Left alone: products
of two computed tensors (attention), other shapes of bias (they change the shape, or add something
else to each row), a Gemm alone, a result that something else reads too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import Activation, activation_after
from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.linear import bias_after, is_linear
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    if not is_linear(node):
        return None
    found = activation_after(node.outputs[0], context.opset)
    nodes = [node]
    if not isinstance(found, Activation):
        bias = bias_after(node)
        if isinstance(bias, Refusal):
            return bias
        if bias is not None:
            nodes.append(bias)
            found = activation_after(bias.outputs[0], context.opset)
    name = "".join(str(n.op_type) for n in nodes)
    if isinstance(found, Activation):
        data = {"name": name + found.title, "activation": found.kind}
        return Match((*nodes, *found.nodes), data)
    if len(nodes) > 1:
        return Match(tuple(nodes), {"name": name, "activation": "NONE"})
    return found


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, name=found.data["name"], activation=found.data["activation"])


PASS = PASSES.add(
    Pass(
        name="fuse_linear",
        summary="MatMul or Gemm, its bias and its activation become one group.",
        phase="fuse",
        anchors=("Gemm", "MatMul"),
        match=match,
        rewrite=rewrite,
        after=("fuse_residual_add",),
        example="""(float[1,6,4] x, float[4,8] w, float[8] b) => (float[1,6,8] y) {
            a = MatMul(x, w)
            c = Add(a, b)
            y = Relu(c) }""",
    ),
    __name__,
)
