"""GroupNorm as exporters write it: an InstanceNormalization between two reshapes.

Reshape(x, [N, G, ...]) -> InstanceNormalization(1, 0) -> Reshape(shape of x) -> Mul s -> Add b is
s n(x) + b with means over the C / G channels of a group and all places: reading C as G blocks of
neighbouring channels moves no element.

Scope: N kept, G static, a scale of 1 and a bias of 0 inside; s and b are constants with one
number a channel, or absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.rule import Refusal
from edgefuse.graph.values import (
    attribute,
    constant,
    describe,
    is_constant,
    reads_alone,
    same_shape,
    sole_user,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class GroupNorm:
    """result = scale * n(source) + bias, n over groups of channels.

    Attributes:
        source: x, channels on axis 1.
        nodes: all of its operators in graph order.
        groups: how many.
        channels: of x.
        epsilon: what is added to the variance.
        scale, bias: constants with at most one long axis, the channels'; None where absent.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    groups: int
    channels: int
    epsilon: float
    scale: ir.Value | None
    bias: ir.Value | None


def recognise_group_norm(node: ir.Node) -> GroupNorm | Refusal | None:
    """The GroupNorm around an InstanceNormalization; None when none is written there."""
    before = None if node.inputs[0] is None else node.inputs[0].producer()
    if before is None or before.domain != "" or before.op_type != "Reshape":
        return None
    after = sole_user(node.outputs[0])
    if after is None or after.domain != "" or after.op_type != "Reshape":
        return None
    source, inner, result = before.inputs[0], node.inputs[0], after.outputs[0]
    if before.graph is not node.graph or source.shape is None or inner.shape is None:
        return None
    if not same_shape(source, result) or len(source.shape) < 3 or len(inner.shape) < 3:
        return None
    channels, groups = source.shape[1], inner.shape[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return None
    if not _keeps_batch(before):
        return _refuse(node, f"the first extent of {describe(before)} is not known to stay")
    for value, wanted, what in ((node.inputs[1], 1.0, "scale"), (node.inputs[2], 0.0, "bias")):
        array = constant(value)
        if array is None or bool((array != wanted).any()):
            return _refuse(node, f"the {what} ({value.name}) of {describe(node)} is not {wanted:g} "
                                 "for every group")  # fmt: skip
    if not reads_alone(node, inner):
        return _refuse(node, f"the output of {describe(before)} {why_shared(inner, node)}")
    nodes, scale, bias = [before, node, after], None, None
    for op_type in ("Mul", "Add"):
        follower = sole_user(nodes[-1].outputs[0])
        operand = None if follower is None else _channel_operand(follower, op_type, nodes[-1])
        if follower is None or operand is None:
            continue
        nodes.append(follower)
        scale, bias = (operand, bias) if op_type == "Mul" else (scale, operand)
    epsilon = float(attribute(node, "epsilon", 1e-5))
    return GroupNorm(source, tuple(nodes), groups, channels, epsilon, scale, bias)


def _keeps_batch(reshape: ir.Node) -> bool:
    source, result = reshape.inputs[0], reshape.outputs[0]
    target = constant(reshape.inputs[1])
    if target is not None and int(target[0]) == 0 and not attribute(reshape, "allowzero", 0):
        return True
    old, new = source.shape[0], result.shape[0]
    named = isinstance(old, int) or getattr(old, "value", None) is not None
    return named and bool(old == new)


def _channel_operand(node: ir.Node, op_type: str, before: ir.Node) -> ir.Value | None:
    """The constant that the node applies to a channel each."""
    if node.domain != "" or node.op_type != op_type or len(node.inputs) != 2:
        return None
    value = before.outputs[0]
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    if other is value or not is_constant(other):
        return None
    shape = list(other.const_value.shape)
    rank, channels = len(value.shape), value.shape[1]
    first = rank - len(shape)
    if first < 0:
        return None
    fits = all(n == 1 or (first + k == 1 and n == channels) for k, n in enumerate(shape))
    return other if fits else None


def _refuse(node: ir.Node, reason: str) -> Refusal:
    return Refusal(reason, (str(node.name),))
