"""A layer, the addition of a residual and the activation on either side, as one group.

Problem: y = act(conv(x, w, b) + r) writes and reads the convolution's result once more than it
must; the addition can be done on the accumulator.

Rewrite: act(Add(Conv(x, w, b), r)) = edgefuse.ConvAdd<Act>(x, w, b, r, ...), act optional;
Add(act(Conv(x, w, b)), r) = edgefuse.Conv<Act>Add(x, w, b, r, ...): another group.

Scope: Conv, ConvTranspose, Gemm, or MatMul with a weight, with the Add of its bias; read by the Add
of the residual alone, r of the same shape and not a constant. Where both operands are layers, one
without an activation of its own before the one that has it, then the one that runs last, takes the
addition. Left alone: broadcasts, constants (they are biases), activations on both sides of the Add
(the layer keeps the first, the Add the second).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.activation import Activation, activation_after, activation_before
from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.linear import bias_after, is_linear
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

CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Branch:
    """An operand of the Add that a layer computes: the layer, its bias, its activation."""

    value: ir.Value
    residual: ir.Value
    nodes: tuple[ir.Node, ...]
    activation: Activation | None = None

    @property
    def parts(self) -> tuple[ir.Node, ...]:
        return self.nodes + (self.activation.nodes if self.activation else ())

    @property
    def name(self) -> str:
        title = self.activation.title if self.activation else ""
        return "".join(str(n.op_type) for n in self.nodes) + title


def match(node: ir.Node, context: Context) -> Verdict:
    left, right = node.inputs
    if left is None or right is None or _is_bias(left, right):
        return None
    pairs = ((left, right), (right, left))
    branches = [b for pair in pairs if (b := _branch(*pair, context.opset)) is not None]
    if not branches:
        return None
    free = [b for b in branches if reads_alone(node, b.value)]
    if not free:
        value = branches[0].value
        return _refuse(node, value, f"the output of {describe(value.producer())} "
                       f"{why_shared(value, node)}")  # fmt: skip
    chosen = _best(free, node)
    if is_constant(chosen.residual):
        return _refuse(
            node,
            chosen.value,
            f"{describe(node)} adds a constant ({chosen.residual.name}): a bias, no residual",
        )
    if not same_shape(chosen.value, chosen.residual):
        return _refuse(
            node,
            chosen.value,
            f"{describe(node)} adds {chosen.residual.name} of shape {_shape(chosen.residual)} "
            f"to {chosen.value.name} of shape {_shape(chosen.value)}: not known to be equal",
        )
    follower = activation_after(node.outputs[0], context.opset)
    parts, name = (*chosen.parts, node), f"{chosen.name}Add"
    if not isinstance(follower, Activation):
        kind = chosen.activation.kind if chosen.activation else "NONE"
        return Match(parts, {"name": name, "activation": kind})
    if chosen.activation is not None:
        return _refuse(
            node,
            chosen.value,
            f"{describe(node)} stands between two activations, "
            f"{describe(chosen.activation.nodes[-1])} and {describe(follower.nodes[-1])}: "
            "the layer keeps the first, the addition the second",
        )
    data = {"name": name + follower.title, "activation": follower.kind}
    return Match((*parts, *follower.nodes), data)


def _is_bias(left: ir.Value, right: ir.Value) -> bool:
    """Whether an initializer is added to a MatMul: fuse_linear's."""
    return any(
        value.is_initializer()
        and (layer := other.producer()) is not None
        and layer.op_type == "MatMul"
        and is_linear(layer)
        for value, other in ((left, right), (right, left))
    )


def _branch(value: ir.Value, residual: ir.Value, opset: int) -> Branch | None:
    if nodes := _layer(value):
        return Branch(value, residual, nodes)
    if is_constant(residual):
        return None
    before = activation_before(value, opset, lambda source: bool(_layer(source)))
    return None if before is None else Branch(value, residual, _layer(before[1]), before[0])


def _layer(value: ir.Value) -> tuple[ir.Node, ...]:
    """The layer that computes the value, with the Add of its bias; empty when none does."""
    node = value.producer()
    if node is None or node.domain != "":
        return ()
    if node.op_type in CONVOLUTIONS or is_linear(node):
        return (node,)
    if node.op_type != "Add":
        return ()
    for operand in node.inputs:
        maker = None if operand is None else operand.producer()
        if maker is not None and is_linear(maker) and bias_after(maker) is node:
            return maker, node
    return ()


def _best(branches: list[Branch], node: ir.Node) -> Branch:
    """The branch without an activation, then the one that runs last."""
    plain = [b for b in branches if b.activation is None] or branches
    if len(plain) == 1:
        return plain[0]
    makers = {b.value.producer(): b for b in plain}
    return makers[[n for n in node.graph if n in makers][-1]]


def _shape(value: ir.Value) -> str:
    return "unknown" if value.shape is None else str(list(value.shape))


def _refuse(node: ir.Node, value: ir.Value, reason: str) -> Refusal:
    return Refusal(reason, (str(node.name), str(value.producer().name)))


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, name=found.data["name"], activation=found.data["activation"])


PASS = PASSES.add(
    Pass(
        name="fuse_residual_add",
        summary="A layer, the Add of a residual and its activation become one group.",
        phase="fuse",
        anchors=("Add",),
        match=match,
        rewrite=rewrite,
        example="""(float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y) {
            a = Conv(x, w)
            b = Add(a, x)
            y = Relu(b) }""",
    ),
    __name__,
)
