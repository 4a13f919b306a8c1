"""Normalisations that are spelt out operator by operator, recognised by what they compute.

A normalisation is y = s n(x) + b with n(x) = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon),
or n(x) = x / sqrt(mean(x^2) + epsilon) without centring (RMSNorm), means over fixed axes. Exporters
write it in many ways: Pow or Mul, keepdims 0 or 1, the difference once or twice, Div, Reciprocal or
a power of -0.5, the scale before or behind the division. So structure only finds the source x and
the operators that may take part; what they compute is decided by evaluating them on random data in
float64, at two magnitudes (one where epsilon counts), and comparing with the definition.

Scope: constants for epsilon, scale and bias; every operator in one graph. What is not constant, or
not of the right shape, stays outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgefuse.graph.rule import Refusal
from edgefuse.graph.tensor_program import ELEMENTWISE, VIEWS, evaluate_nodes, reduced_axes
from edgefuse.graph.values import (
    Array,
    constant,
    describe,
    is_constant,
    is_float,
    same_shape,
    why_not_constant,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

Kind = Literal["LayerNormalization", "InstanceNormalization", "RmsNormalization"]
MAX_NODES = 24
LIMIT = 1e-8
LARGEST_PROBE = 1 << 22
# Extents that stand for symbolic ones and for long ones: all different, none of them 1.
_SHORT = 3
_SYMBOLIC = (4, 5, 6, 7, 9, 11)


@dataclass(frozen=True)
class Statistics:
    """The square root of a mean of squares: the middle of a normalisation.

    Attributes:
        root: the operator that takes the root (or its reciprocal).
        source: x.
        centred: whether the mean of x is taken off first.
        mean: the operator that averages the squares.
        epsilon: what is added under the root; 0 when nothing is.
    """

    root: ir.Node
    source: ir.Value
    centred: bool
    mean: ir.Node
    epsilon: float


@dataclass(frozen=True)
class Norm:
    """result = scale * n(source) + bias.

    Attributes:
        kind: which normalisation.
        source: x.
        nodes: all of its operators in graph order.
        axes: what the means are over, none negative.
        epsilon: as in :class:`Statistics`.
        scale, bias: constants that broadcast to x; None where there is none.
    """

    kind: Kind
    source: ir.Value
    nodes: tuple[ir.Node, ...]
    axes: tuple[int, ...]
    epsilon: float
    scale: ir.Value | None
    bias: ir.Value | None


def statistics(node: ir.Node) -> Statistics | Refusal | None:
    """What a Sqrt or a Pow takes the root of; None when it is no mean of squares of floats."""
    if not _is_root(node) or not is_float(node.outputs[0]) or node.inputs[0] is None:
        return None
    added = node.inputs[0].producer()
    if added is None or added.domain != "" or added.op_type != "Add":
        return _of_mean(node, node.inputs[0], 0.0)
    for variance, offset in (added.inputs, reversed(added.inputs)):
        found = None if variance is None else _of_mean(node, variance, 0.0)
        if found is None:
            continue
        array = constant(offset)
        if array is None:
            what, remedy = why_not_constant(offset)
            return _refuse(node, f"the epsilon of {describe(added)} {what}", remedy)
        if array.size != 1:
            return _refuse(node, f"the epsilon ({offset.name}) of {describe(added)} is no scalar")
        if not (epsilon := float(array.reshape(()))) >= 0:
            return _refuse(node, f"the epsilon ({offset.name}) of {describe(added)} is below 0")
        return _of_mean(node, variance, epsilon)
    return None


def _is_root(node: ir.Node) -> bool:
    if node.op_type == "Sqrt":
        return True
    return node.op_type == "Pow" and _scalar(node.inputs[1]) in (0.5, -0.5)


def _scalar(value: ir.Value | None) -> float | None:
    if value is None or not is_constant(value) or value.const_value.size != 1:
        return None
    array = constant(value)
    return None if array is None else float(array.reshape(()))


def _of_mean(root: ir.Node, variance: ir.Value, epsilon: float) -> Statistics | None:
    mean = _mean_behind(variance)
    squares = None if mean is None or mean.inputs[0] is None else mean.inputs[0].producer()
    if mean is None or squares is None or squares.domain != "":
        return None
    if squares.op_type == "Pow" and _scalar(squares.inputs[1]) == 2.0:
        bases = [squares.inputs[0]]
    elif squares.op_type == "Mul":
        bases = list(squares.inputs)
    else:
        return None
    sources = {_centred_source(base) for base in bases}
    if len(sources) == 1 and (source := sources.pop()) is not None:
        return None if is_constant(source) else Statistics(root, source, True, mean, epsilon)
    if any(base is not bases[0] for base in bases) or bases[0] is None or is_constant(bases[0]):
        return None
    return Statistics(root, bases[0], False, mean, epsilon)


def _mean_behind(value: ir.Value | None) -> ir.Node | None:
    """The ReduceMean whose result the value is, seen through reshapes."""
    for _ in range(4):
        producer = None if value is None else value.producer()
        if producer is None or producer.domain != "":
            return None
        if producer.op_type == "ReduceMean":
            return producer
        if producer.op_type not in VIEWS:
            return None
        value = producer.inputs[0]
    return None


def _centred_source(value: ir.Value | None) -> ir.Value | None:
    """x, when the value is x - mean(x)."""
    producer = None if value is None else value.producer()
    if producer is None or producer.domain != "" or producer.op_type != "Sub":
        return None
    mean = _mean_behind(producer.inputs[1])
    same = mean is not None and mean.inputs[0] is producer.inputs[0]
    return producer.inputs[0] if same else None


def recognise(found: Statistics, opset: int) -> Norm | Refusal:
    """The largest normalisation around the root that nothing else reads the inside of."""
    node, source = found.root, found.source
    if source.shape is None:
        return _refuse(node, f"the shape of {source.name} is not known")
    rank = len(source.shape)
    axes = reduced_axes(found.mean, rank, opset)
    if axes is None:
        return _refuse(node, f"the axes of {describe(found.mean)} are not constant")
    if all(source.shape[k] in (0, 1) for k in axes):
        return _refuse(node, f"{describe(found.mean)} averages over one element, {list(axes)}")
    kinds = list(_kinds(found.centred, axes, rank))
    if not kinds:
        return _refuse(
            node,
            f"{describe(found.mean)} averages over the axes {list(axes)} of {rank}: "
            "LayerNormalization takes the last ones, InstanceNormalization all from 2 on",
            "turn the tensor so that the axes to normalise come last",
        )
    region = _region(found)
    if math.prod(_probe_shape(source, region)) > LARGEST_PROBE:
        return _refuse(node, f"{source.name} is too large to try out what {describe(node)} is for")
    probes = list(_probes(found, region, opset))
    leak: Refusal | None = None
    for last in reversed(region):
        core = _slice(last.outputs[0], source, {})
        if core is None or found.root not in core or _averages_the_result(core, found):
            continue
        for kind in kinds:
            allowed = {1} if kind == "InstanceNormalization" else set(axes)
            choices = _choices(found, core, allowed, rank)
            affine = _affine(last.outputs[0], choices, probes)
            if affine is None:
                continue
            nodes = tuple(n for n in node.graph if n in core)
            leak = _leak(node, nodes)
            if leak is None:
                return Norm(kind, source, nodes, axes, found.epsilon, *affine)
    return leak or _refuse(
        node,
        f"what {describe(node)} is part of is not (x - mean) / sqrt(variance + epsilon), and not "
        "x / sqrt(mean of squares + epsilon)",
    )


def _kinds(centred: bool, axes: tuple[int, ...], rank: int) -> Iterator[Kind]:
    last = axes == tuple(range(rank - len(axes), rank))
    spatial = rank >= 3 and axes == tuple(range(2, rank))
    if not centred:
        if last:
            yield "RmsNormalization"
        return
    if spatial and len(axes) > 1:
        yield "InstanceNormalization"
    if last:
        yield "LayerNormalization"
    if spatial and len(axes) == 1:
        yield "InstanceNormalization"


def _region(found: Statistics) -> list[ir.Node]:
    """Operators that compute something from the source and constants alone, in graph order."""
    order = {node: place for place, node in enumerate(found.root.graph)}
    members = _slice(found.root.outputs[0], found.source, {}) or {}
    while len(members) < MAX_NODES:
        readers = {u.node for n in members for u in n.outputs[0].uses()} - set(members)
        for reader in sorted(readers & set(order), key=order.__getitem__):
            grown = _slice(reader.outputs[0], found.source, members)
            if grown is not None:
                members = grown
                break
        else:
            break
    return sorted(members, key=order.__getitem__)


def _slice(
    value: ir.Value, source: ir.Value, known: dict[ir.Node, None]
) -> dict[ir.Node, None] | None:
    """``known`` and the operators between the source and a value; None if others take part."""
    nodes = dict(known)
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current is source or is_constant(current):
            continue
        node = current.producer()
        if node in nodes:
            continue
        if node is None or len(nodes) >= 2 * MAX_NODES or not _may_take_part(node, source):
            return None
        nodes[node] = None
        waiting += [v for v in node.inputs if v is not None]
    return nodes


def _averages_the_result(core: Iterable[ir.Node], found: Statistics) -> bool:
    """Whether a mean is taken behind the root: the start of another normalisation."""
    means = (n for n in core if n.op_type == "ReduceMean")
    return any(found.root in (_slice(n.inputs[0], found.source, {}) or {}) for n in means)


def _may_take_part(node: ir.Node, source: ir.Value) -> bool:
    if node.domain != "" or len(node.outputs) != 1:
        return False
    if node.op_type in VIEWS:
        return node.inputs[0] is not source and not same_shape(node.inputs[0], source)
    return node.op_type in (*ELEMENTWISE, "ReduceMean")


Probe = tuple[dict["ir.Value", Array], Array]


def _probes(found: Statistics, region: Sequence[ir.Node], opset: int) -> Iterator[Probe]:
    """Every value of the region on random data, and n(x) by its definition."""
    import numpy as np

    shape = _probe_shape(found.source, region)
    axes = reduced_axes(found.mean, len(shape), opset)
    rng = np.random.default_rng(10)
    for spread, offset in ((3.0, 1.0), (math.sqrt(found.epsilon) or 1.0, 0.0)):
        x = rng.standard_normal(shape) * spread + offset
        centre = x - x.mean(axes, keepdims=True) if found.centred else x
        square = np.mean(centre**2, axes, keepdims=True)
        with np.errstate(all="ignore"):
            normal = centre / np.sqrt(square + found.epsilon)
        yield evaluate_nodes(region, {found.source: x}, opset), normal


def _probe_shape(source: ir.Value, region: Sequence[ir.Node]) -> list[int]:
    """The source's shape with long extents cut and symbolic ones fixed, where no constant says."""
    fixed = any(n.op_type in ("Reshape", "Expand") for n in region)
    said = {
        int(extent)
        for node in region
        if node.op_type in ELEMENTWISE
        for value in node.inputs
        if is_constant(value)
        for extent in value.const_value.shape
    }
    sizes: dict[object, int] = {}
    shape = []
    for place, extent in enumerate(source.shape):
        if isinstance(extent, int):
            shape.append(extent if fixed or extent in said else min(extent, _SHORT))
            continue
        name = getattr(extent, "value", None) or place
        sizes.setdefault(name, _SYMBOLIC[len(sizes) % len(_SYMBOLIC)])
        shape.append(sizes[name])
    return shape


def _choices(
    found: Statistics, core: Iterable[ir.Node], allowed: set[int], rank: int
) -> dict[ir.Value, Array]:
    """Constants that may be scale or bias: they vary along the allowed axes only."""
    import numpy as np

    return {
        value: array.astype(np.float64)
        for node in core
        if node.op_type in ("Add", "Div", "Mul", "Sub")
        for value in node.inputs
        if node.outputs[0] is not found.root.inputs[0]
        and (array := constant(value)) is not None
        and _long_axes(array, rank) <= allowed
    }


def _affine(
    value: ir.Value, constants: Mapping[ir.Value, Array], probes: Sequence[Probe]
) -> tuple[ir.Value | None, ir.Value | None] | None:
    """Scale and bias with which the value is scale * n(x) + bias; None when there are none."""
    choices: list[tuple[ir.Value | None, Array | float]] = [
        (constant_value, array)
        for constant_value, array in constants.items()
        if all(_fits(array, normal) for _, normal in probes)
    ]
    for scale, s in (*choices, (None, 1.0)):
        for bias, b in (*choices, (None, 0.0)):
            if all(_equal(values.get(value), normal * s + b) for values, normal in probes):
                return scale, bias
    return None


def _long_axes(array: Array, rank: int) -> set[int]:
    """The axes of a tensor of that rank along which a constant varies; -1 when it has more."""
    first = rank - array.ndim
    return {-1} if first < 0 else {first + k for k, n in enumerate(array.shape) if n != 1}


def _fits(array: Array, tensor: Array) -> bool:
    """Whether the constant broadcasts to the tensor's shape."""
    pairs = zip(reversed(array.shape), reversed(tensor.shape))
    return array.ndim <= tensor.ndim and all(n in (1, extent) for n, extent in pairs)


def _equal(found: Array | None, wanted: Array) -> bool:
    import numpy as np

    if found is None or found.shape != wanted.shape or not np.isfinite(wanted).all():
        return False
    return bool(np.max(np.abs(found - wanted), initial=0.0) <= LIMIT * np.max(np.abs(wanted)))


def _leak(node: ir.Node, nodes: Sequence[ir.Node]) -> Refusal | None:
    """Why the operators cannot become one: something else reads what is inside."""
    members = set(nodes)
    for inner in nodes[:-1]:
        value = inner.outputs[0]
        others = [u.node for u in value.uses() if u.node not in members]
        if others or value.is_graph_output():
            reader = next((u.node for u in value.uses() if u.node in members), node)
            what = (
                f"({value.name}) is also read by {describe(others[0])}"
                if others and not value.is_graph_output()
                else why_shared(value, reader)
            )
            return _refuse(node, f"the output of {describe(inner)} {what}")
    return None


def full_shape(norm: Norm) -> tuple[int, ...] | None:
    """The shape that the operator wants of its scale; None when it is not static."""
    extents = norm.source.shape
    places = (1,) if norm.kind == "InstanceNormalization" else norm.axes
    found = tuple(extents[k] for k in places)
    return found if all(isinstance(extent, int) for extent in found) else None


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)
