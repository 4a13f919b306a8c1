"""Activations: which operators are one, their bounds, and what TFLite calls them.

``Relu``, ``Clip``, ``Max`` and ``Min`` with constant scalars are all clip(x, low, high) with a
bound possibly missing. Bounds that are computed or overridable cannot be baked in: the reason is
returned as a :class:`Refusal`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.rule import Refusal
from edgefuse.graph.values import (
    attribute,
    constant,
    describe,
    is_constant,
    is_overridable,
    read,
    why_not_constant,
)

if TYPE_CHECKING:
    import onnx_ir as ir

ACTIVATIONS = (
    "Celu",
    "Clip",
    "Elu",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Relu",
    "Selu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Tanh",
)
CLIP_INPUTS_SINCE = 11
LARGEST_FLOAT32 = 3.4e38


@dataclass(frozen=True)
class Bounds:
    """clip(source, low, high); None is an absent bound."""

    source: ir.Value
    low: float | None
    high: float | None


def bounds_kind(low: float | None, high: float | None) -> str:
    """TFLite's name of a fused clip, or ``CLIP`` when it has none."""
    known: dict[tuple[float | None, float | None], str] = {
        (0.0, None): "RELU",
        (0.0, 6.0): "RELU6",
        (-1.0, 1.0): "RELU_N1_TO_1",
    }
    return known.get((low, high), "CLIP")


def activation_reason(node: ir.Node, opset: int) -> Refusal | None:
    """Why an activation cannot join a group; None when it can."""
    bounds = read_bounds(node, opset)
    return bounds if isinstance(bounds, Refusal) else None


def read_bounds(node: ir.Node, opset: int) -> Bounds | Refusal | None:
    """The bounds of Relu, Clip, Max or Min; None when the node is not a clip at all."""
    if node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type == "Relu":
        return Bounds(node.inputs[0], 0.0, None)
    if node.op_type == "Clip":
        return _clip(node, opset)
    if node.op_type in ("Max", "Min") and len(node.inputs) == 2:
        return _extremum(node)
    return None


def _clip(node: ir.Node, opset: int) -> Bounds | Refusal:
    found: list[float | None] = []
    for position, name in ((1, "min"), (2, "max")):
        if opset < CLIP_INPUTS_SINCE:
            number = attribute(node, name, None)
        elif (value := read(node, position)) is None:
            number = None
        elif (array := constant(value)) is None:
            what, remedy = why_not_constant(value)
            return _refuse(node, f"the {name} bound of {describe(node)} {what}", remedy)
        elif array.size != 1:
            return _refuse(node, f"the {name} bound of {describe(node)} is no scalar")
        elif value.dtype != node.inputs[0].dtype:
            return _refuse(node, f"the {name} bound of {describe(node)} is of another type")
        else:
            number = float(array.reshape(()))
        found.append(_present(number))
    low, high = found
    if any(b is not None and math.isnan(b) for b in found):
        return _refuse(node, f"a bound of {describe(node)} is NaN")
    return Bounds(node.inputs[0], low, high)


def _present(number: float | None) -> float | None:
    return None if number is None or abs(number) >= LARGEST_FLOAT32 else float(number)


def _extremum(node: ir.Node) -> Bounds | Refusal | None:
    left, right = node.inputs
    if right is None or is_constant(left) == is_constant(right):
        for value in node.inputs:
            if is_overridable(value):
                what, remedy = why_not_constant(value)
                return _refuse(node, f"the bound of {describe(node)} {what}", remedy)
        return None
    source, bound = (right, left) if is_constant(left) else (left, right)
    array = constant(bound)
    assert array is not None
    if array.size != 1:
        return _refuse(
            node, f"the bound ({bound.name}) of {describe(node)} has {array.size} values, not one"
        )
    if source.shape is None or array.ndim > len(source.shape):
        return _refuse(node, f"the bound ({bound.name}) of {describe(node)} may change the rank")
    number = float(array.reshape(()))
    if math.isnan(number):
        return _refuse(node, f"the bound of {describe(node)} is NaN")
    low, high = (number, None) if node.op_type == "Max" else (None, number)
    return Bounds(source, _present(low), _present(high))


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)
