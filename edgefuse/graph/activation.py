"""Activations: which operators are one, their bounds, and what TFLite calls them.

``Relu``, ``Clip``, ``Max`` and ``Min`` with constant scalars are all clip(x, low, high) with a
bound possibly missing. Bounds that are computed or overridable cannot be baked in: the reason is
returned as a :class:`Refusal`. :func:`activation_after` also knows activations that exporters spell
out (SiLU, GELU, HardSwish, Mish): it compares what a region of pointwise operators computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.pointwise import (
    MAX_READERS,
    named,
    regions,
    regions_before,
    results_from,
    running_order,
)
from edgefuse.graph.rule import Refusal
from edgefuse.graph.values import (
    attribute,
    constant,
    describe,
    is_constant,
    is_overridable,
    read,
    reads_alone,
    why_not_constant,
    why_shared,
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
    "ThresholdedRelu",
)
#: What a spelt-out activation is called in the name of a group.
TITLES = {
    "GELU": "Gelu",
    "GELU_TANH": "GeluTanh",
    "HARDSIGMOID": "HardSigmoid",
    "HARDSWISH": "HardSwish",
    "MISH": "Mish",
    "QUICKGELU": "QuickGelu",
    "SIGMOID": "Sigmoid",
    "SILU": "Silu",
    "SOFTPLUS": "Softplus",
    "TANH": "Tanh",
}
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


@dataclass(frozen=True)
class Activation:
    """An activation that reads one value and that nothing else comes between.

    Attributes:
        nodes: its operators in the order they run; one, or a spelt-out form.
        kind: RELU, RELU6, RELU_N1_TO_1, CLIP, SILU, GELU, GELU_TANH, HARDSWISH, PRELU, or a single
            operator's name in capitals.
        title: its part of a group's name: the operator type, or what the operators are together.
    """

    nodes: tuple[ir.Node, ...]
    kind: str
    title: str


def activation_after(value: ir.Value, opset: int) -> Activation | Refusal | None:
    """The activation that alone reads ``value``, however it is spelt.

    Returns:
        The longest spelling that is known; a refusal when what reads the value is an activation
        that cannot join a group, or not the only reader; None when no activation reads it.
    """
    spelt = [r for r in regions(value) if len(r.nodes) > 1]
    for region in reversed(spelt):
        if kind := named(region):
            nodes = running_order(region.result, region.nodes)
            return Activation(nodes, kind, TITLES[kind])
    readers = [u.node for u in value.uses() if u.idx == 0 and u.node.domain == ""]
    single = [n for n in readers if n.op_type in (*ACTIVATIONS, "PRelu")]
    if not single:
        return _spelt_but_shared(value)
    node = single[0]
    if not reads_alone(node, value):
        return _spelt_but_shared(value) or _shared(value, node)
    if node.op_type == "PRelu":
        slope = read(node, 1)
        if slope is None or not is_constant(slope):
            what, remedy = why_not_constant(slope) if slope is not None else ("is missing", "")
            return _refuse(node, f"the slope of {describe(node)} {what}", remedy)
        return Activation((node,), "PRELU", "PRelu")
    bounds = read_bounds(node, opset)
    if isinstance(bounds, Refusal):
        return bounds
    if isinstance(bounds, Bounds):
        return Activation((node,), bounds_kind(bounds.low, bounds.high), str(node.op_type))
    tanh = node.op_type == "Gelu" and attribute(node, "approximate", "none") == "tanh"
    return Activation((node,), "GELU_TANH" if tanh else node.op_type.upper(), str(node.op_type))


def activation_before(
    value: ir.Value, opset: int, wanted: Callable[[ir.Value], bool]
) -> tuple[Activation, ir.Value] | None:
    """The activation that computes ``value``, and what it alone reads; the longest spelling.

    Args:
        wanted: which values it may read.
    """
    last = value.producer()
    if last is None or last.domain != "":
        return None
    spelt = [r for r in regions_before(value) if len(r.nodes) > 1 and wanted(r.source)]
    sources = [r.source for r in reversed(spelt) if named(r)]
    if last.op_type in (*ACTIVATIONS, "PRelu") and last.inputs[0] is not None:
        sources += [v for v in last.inputs[:1] if wanted(v)]
    for source in sources:
        found = activation_after(source, opset)
        if isinstance(found, Activation) and found.nodes[-1] is last:
            return found, source
    return None


def _spelt_but_shared(value: ir.Value) -> Refusal | None:
    """Why a spelt-out activation that reads the value cannot have it for itself."""
    for use in list(value.uses())[:MAX_READERS]:
        for result in results_from(use.node):
            for region in regions_before(result):
                if region.source is value and len(region.nodes) > 1 and named(region):
                    return _shared(value, *region.nodes)
    return None


def _shared(value: ir.Value, *nodes: ir.Node) -> Refusal:
    """The refusal of an activation that does not alone read the value."""
    producer = value.producer()
    source = f"the output of {describe(producer)}" if producer else "what it reads"
    others = sorted({describe(u.node) for u in value.uses() if u.node not in nodes})
    if value.is_graph_output() or len(nodes) == 1 or not others:
        return _refuse(nodes[0], f"{source} {why_shared(value, nodes[0])}")
    return _refuse(nodes[0], f"{source} ({value.name}) is also read by {', '.join(others)}")
