"""The Pad operator in all its forms: amounts as attributes (until opset 10) or inputs, chosen axes.

Amounts that are computed, overridable or for axes that are not known are returned as a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.rule import Refusal
from edgefuse.graph.values import attribute, constant, describe, read, why_not_constant

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Padding:
    """Padding by a constant.

    Attributes:
        near, far: elements added before and after each axis of the tensor; negative ones crop.
        value: what is added.
    """

    near: tuple[int, ...]
    far: tuple[int, ...]
    value: float


def read_padding(node: ir.Node) -> Padding | Refusal:
    """What a Pad adds to each axis, or why that is not known."""
    mode = attribute(node, "mode", "constant")
    if mode != "constant":
        return _refuse(node, f"{describe(node)} pads by mode {mode}, not by a constant")
    source = node.inputs[0]
    if source is None or source.shape is None:
        return _refuse(node, f"the rank of what {describe(node)} pads is unknown")
    rank = len(source.shape)
    if "pads" in node.attributes:  # until opset 10
        amounts = [int(n) for n in attribute(node, "pads", [])]
        return _spread(node, amounts, list(range(rank)), rank, attribute(node, "value", 0.0))
    found: list[list[float] | None] = []
    for index, name in ((1, "amounts"), (2, "value"), (3, "axes")):
        given = read(node, index)
        if given is None:
            found.append(None)
            continue
        array = constant(given)
        if array is None:
            what, remedy = why_not_constant(given)
            return _refuse(node, f"the {name} of {describe(node)} {what}", remedy)
        found.append([float(n) for n in array.reshape(-1)])
    amounts_given, value, axes_given = found
    axes = list(range(rank)) if axes_given is None else [int(a) % rank for a in axes_given]
    amounts = [int(n) for n in amounts_given or []]
    return _spread(node, amounts, axes, rank, value[0] if value else 0.0)


def _spread(
    node: ir.Node, amounts: list[int], axes: list[int], rank: int, value: float
) -> Padding | Refusal:
    if len(amounts) != 2 * len(axes):
        return _refuse(node, f"{describe(node)} has {len(amounts)} amounts for {len(axes)} axes")
    near, far = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        near[axis], far[axis] = amounts[place], amounts[len(axes) + place]
    return Padding(tuple(near), tuple(far), float(value))


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)
