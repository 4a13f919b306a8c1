"""Conv and the activation behind it, as one group.

Problem: y = act(conv(x, w, b)) as two operators writes the whole tensor, reads it and writes it
again; every target applies cheap activations on the accumulator.

Rewrite: act(Conv(x, w, b)) = edgefuse.Conv<Act>(x, w, b, ...).

Scope: Conv or ConvTranspose of any rank whose result the activation alone reads: Relu, Clip with
constant bounds, PRelu with a constant slope, any other activation operator, and the forms that
exporters spell out (SiLU, GELU with erf or tanh, HardSwish, HardSigmoid, Mish). The group is called
after what it computes: ConvGelu. Whether a target's runtime fuses the activation too is for the
fusion contract to check. Left alone: bounds or slopes that are computed or that a caller may
override, a result that something else reads too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import activation_after
from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    found = activation_after(node.outputs[0], context.opset)
    if found is None or isinstance(found, Refusal):
        return found
    name = f"{node.op_type}{found.title}"
    return Match((node, *found.nodes), {"activation": found.kind, "name": name})


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, name=found.data["name"], activation=found.data["activation"])


PASS = PASSES.add(
    Pass(
        name="fuse_conv_activation",
        summary="Conv or ConvTranspose and its activation become one group.",
        phase="fuse",
        anchors=("Conv", "ConvTranspose"),
        match=match,
        rewrite=rewrite,
        after=("fuse_residual_add",),
        example="""(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {
            a = Conv(x, w)
            s = Sigmoid(a)
            y = Mul(a, s) }""",
    ),
    __name__,
)
