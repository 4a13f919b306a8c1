"""Pointwise operators as real functions, and regions of them with one variable.

A *region* is a set of pointwise operators that read one value and scalar constants, whose inner
results nobody else reads, and that has one result: y = f(x) for a function f of one real number.
Exporters spell one activation in many ways; as functions all of its spellings are equal, so a
region is named by evaluating it and comparing it with what it may be (:data:`FUNCTIONS`).

Scope: floating types, constants of one value. Left alone: operators with per-channel constants
(PRelu), and regions of more than :data:`MAX_NODES` operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from edgefuse.graph.values import Array, attribute, constant, is_constant, is_float

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_NODES = 12
MAX_READERS = 8
# Operators that compute each output element from the inputs' elements there.
UNARY = (
    "Abs", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu",
    "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = (
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min",
    "Mul", "Or", "Pow", "PRelu", "Sub", "Where",
)  # fmt: skip
POINTWISE = tuple(sorted((*UNARY, *BINARY)))
# Regions of the others are lines, powers and quotients: no activation.
CURVED = (
    "Celu", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
    "Max", "Min", "Mish", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "Where",
)  # fmt: skip


@dataclass(frozen=True)
class Region:
    """y = f(x).

    Attributes:
        source: x.
        nodes: in an order in which they can run; the last one computes y.
        result: y.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    result: ir.Value


def regions(source: ir.Value) -> Iterator[Region]:
    """Every region that reads a value and that alone reads it, smaller ones first."""
    if source.is_graph_output() or not is_float(source):
        return
    inside = {source}
    nodes: list[ir.Node] = []
    while len(nodes) < MAX_NODES:
        added = next((n for v in list(inside) for n in _readers(v, source, inside, nodes)), None)
        if added is None:
            return
        nodes.append(added)
        inside.add(added.outputs[0])
        result = _only_result(inside, nodes)
        if result is not None and result is not source and is_float(result):
            yield Region(source, tuple(nodes), result)


def regions_before(result: ir.Value, spare: ir.Value | None = None) -> Iterator[Region]:
    """Every region that computes a value, smaller ones first; others may read the source too.

    Args:
        spare: an inner value that may be read elsewhere: what would be a region without that.
    """
    added = result.producer()
    if added is None or not is_float(result):
        return
    nodes: list[ir.Node] = []
    outer = {result: None}
    rank = 0
    while added is not None and _is_scalar(added) and len(nodes) < MAX_NODES:
        nodes.append(added)
        outer.pop(added.outputs[0])
        for value in added.inputs:
            if is_constant(value):
                rank = max(rank, len(value.const_value.shape))
            elif value is not None:
                outer[value] = None
        if len(outer) == 1:
            (source,) = outer
            known = 0 if source.shape is None else len(source.shape)
            if is_float(source) and rank <= known:
                yield Region(source, tuple(reversed(nodes)), result)
        added = next((p for v in outer if (p := _inner_producer(v, nodes, spare))), None)


def read_elsewhere(result: ir.Value) -> list[ir.Value]:
    """Values among the pointwise operators before a result that others read, or are outputs."""
    nodes: dict[ir.Node, None] = {}
    pending = [result.producer()]
    while pending and len(nodes) < MAX_NODES:
        node = pending.pop(0)
        if node is not None and node not in nodes and _is_scalar(node):
            nodes[node] = None
            pending += [v.producer() for v in node.inputs if v is not None]
    if not any(node.op_type in CURVED for node in nodes):
        return []
    values = [node.outputs[0] for node in nodes if node.outputs[0] is not result]
    return [v for v in values if v.is_graph_output() or any(u.node not in nodes for u in v.uses())]


def _readers(
    value: ir.Value, source: ir.Value, inside: set[ir.Value], nodes: list[ir.Node]
) -> Iterator[ir.Node]:
    """What reads the value and, beside it, only what is inside or constant."""
    if len(uses := list(value.uses())) > MAX_READERS:
        return
    producer = source.producer()
    graph = uses[0].node.graph if producer is None and uses else None
    graph = producer.graph if producer is not None else graph
    for use in uses:
        node = use.node
        if node in nodes or node.graph is not graph or not _fits(node, source):
            continue
        if all(v is None or v in inside or is_constant(v) for v in node.inputs):
            yield node


def _inner_producer(
    value: ir.Value, nodes: list[ir.Node], spare: ir.Value | None
) -> ir.Node | None:
    """The producer of a value that only these nodes read, if it can join them."""
    node = value.producer()
    if node is None or node.graph is not nodes[0].graph or not _is_scalar(node):
        return None
    if value is spare:
        return node
    if value.is_graph_output() or any(use.node not in nodes for use in value.uses()):
        return None
    return node


def _is_scalar(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in POINTWISE or node.op_type == "PRelu":
        return False
    return all(v is None or not is_constant(v) or v.const_value.size == 1 for v in node.inputs)


def _fits(node: ir.Node, source: ir.Value) -> bool:
    """Whether the node is pointwise and no constant of it can change the rank."""
    if not _is_scalar(node):
        return False
    rank = 0 if source.shape is None else len(source.shape)
    return all(
        v is None or not is_constant(v) or len(v.const_value.shape) <= rank for v in node.inputs
    )


def _only_result(inside: set[ir.Value], nodes: list[ir.Node]) -> ir.Value | None:
    members = set(nodes)
    open_values = [
        v
        for v in inside
        if v.is_graph_output() or not list(v.uses()) or any(u.node not in members for u in v.uses())
    ]
    return open_values[0] if len(open_values) == 1 else None


def running_order(result: ir.Value, nodes: Iterable[ir.Node]) -> tuple[ir.Node, ...]:
    """The nodes that compute a value, each after what it reads, by the order of their inputs.

    Equal structures give equal orders, whatever the nodes are called and wherever they stand.
    """
    members = set(nodes)
    done: dict[ir.Node, None] = {}
    pending = [(result.producer(), False)]
    while pending:
        node, ready = pending.pop()
        if node is None or node in done or node not in members:
            continue
        if ready:
            done[node] = None
            continue
        pending.append((node, True))
        pending += [(v.producer(), False) for v in reversed(node.inputs) if v is not None]
    return tuple(done)


def results_from(node: ir.Node) -> list[ir.Value]:
    """Results of ``node`` and the pointwise operators behind it, each the only reader of the one
    before, nearest first, as many as a region may hold."""
    found: list[ir.Value] = []
    while _is_scalar(node) and len(found) < MAX_NODES:
        found.append(node.outputs[0])
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            break
        node = uses[0].node
    return found


def evaluate(region: Region, x: Array) -> Array | None:
    """f(x) in float64, for any shape; None when an operator or a bound cannot be evaluated."""
    import numpy as np

    values: dict[ir.Value, Array] = {region.source: x.astype(np.float64)}
    with np.errstate(all="ignore"):
        for node in region.nodes:
            operands: list[Any] = []
            for value in node.inputs:
                if value is None or value in values:
                    operands.append(None if value is None else values[value])
                else:
                    array = constant(value)
                    operands.append(None if array is None else float(array.reshape(())))
            result = _apply(node, operands)
            if result is None:
                return None
            values[node.outputs[0]] = result
    return np.broadcast_to(values[region.result], x.shape)


def _apply(node: ir.Node, operands: list[Any]) -> Any:
    import numpy as np

    if (simple := _simple().get(node.op_type)) is not None:
        return simple(*operands)

    def number(name: str, default: float) -> float:
        return float(attribute(node, name, default))

    x = operands[0]
    if node.op_type == "Clip":
        low = operands[1] if len(operands) > 1 else attribute(node, "min", None)
        high = operands[2] if len(operands) > 2 else attribute(node, "max", None)
        return np.clip(x, -math.inf if low is None else low, math.inf if high is None else high)
    if node.op_type == "HardSigmoid":
        return np.clip(number("alpha", 0.2) * x + number("beta", 0.5), 0, 1)
    if node.op_type == "LeakyRelu":
        return np.where(x < 0, number("alpha", 0.01) * x, x)
    if node.op_type == "ThresholdedRelu":
        return np.where(x > number("alpha", 1.0), x, 0.0)
    if node.op_type == "Elu":
        return np.where(x < 0, number("alpha", 1.0) * np.expm1(x), x)
    if node.op_type == "Celu":
        alpha = number("alpha", 1.0)
        return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))
    if node.op_type == "Selu":
        alpha, gamma = number("alpha", 1.6732632423543772), number("gamma", 1.0507009873554805)
        return gamma * np.where(x < 0, alpha * np.expm1(x), x)
    if node.op_type == "Gelu":
        tanh = attribute(node, "approximate", "none") == "tanh"
        return FUNCTIONS["GELU_TANH" if tanh else "GELU"](x)
    return None


def _erf(x: Array) -> Array:
    import numpy as np

    answer: Array = np.vectorize(math.erf, otypes=[np.float64])(x)
    return answer


def _sigmoid(x: Array) -> Array:
    import numpy as np

    answer: Array = 1 / (1 + np.exp(-x))
    return answer


def _softplus(x: Array) -> Array:
    import numpy as np

    answer: Array = np.logaddexp(0.0, x)
    return answer


def _tanh(x: Array) -> Array:
    import numpy as np

    answer: Array = np.tanh(x)
    return answer


@cache
def _simple() -> Mapping[str, Callable[..., Any]]:
    import numpy as np

    return {
        "Abs": np.abs,
        "Add": lambda a, b: a + b,
        "Div": lambda a, b: a / b,
        "Erf": _erf,
        "Exp": np.exp,
        "Greater": lambda a, b: a > b,
        "GreaterOrEqual": lambda a, b: a >= b,
        "HardSwish": FUNCTIONS["HARDSWISH"],
        "Less": lambda a, b: a < b,
        "LessOrEqual": lambda a, b: a <= b,
        "Log": np.log,
        "Max": lambda *v: np.maximum.reduce(np.broadcast_arrays(*v)),
        "Min": lambda *v: np.minimum.reduce(np.broadcast_arrays(*v)),
        "Mish": FUNCTIONS["MISH"],
        "Mul": lambda a, b: a * b,
        "Neg": lambda a: -a,
        "Pow": lambda a, b: a**b,
        "Reciprocal": lambda a: 1 / a,
        "Relu": lambda a: np.maximum(a, 0),
        "Sigmoid": _sigmoid,
        "Sign": np.sign,
        "Softplus": _softplus,
        "Softsign": lambda a: a / (1 + np.abs(a)),
        "Sqrt": np.sqrt,
        "Sub": lambda a, b: a - b,
        "Tanh": np.tanh,
        "Where": np.where,
    }


#: Activations that exporters spell out, as functions of float64 arrays. Sources: Hendrycks and
#: Gimpel, arXiv:1606.08415 (GELU, its tanh form and x sigmoid(1.702 x)); Ramachandran et al.,
#: arXiv:1710.05941 (SiLU); Howard et al., arXiv:1905.02244 (hard forms); Misra, arXiv:1908.08681.
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "GELU": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "GELU_TANH": lambda x: 0.5 * x * (1 + _tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "HARDSIGMOID": lambda x: (x / 6 + 0.5).clip(0, 1),
    "HARDSWISH": lambda x: x * (x / 6 + 0.5).clip(0, 1),
    "MISH": lambda x: x * _tanh(_softplus(x)),
    "QUICKGELU": lambda x: x * _sigmoid(1.702 * x),
    "SIGMOID": _sigmoid,
    "SILU": lambda x: x * _sigmoid(x),
    "SOFTPLUS": _softplus,
    "TANH": _tanh,
}
TOLERANCE = {"FLOAT16": 2e-4, "BFLOAT16": 4e-4}
FLOAT32_TOLERANCE = 4e-6
LARGEST = {"FLOAT16": 6e4}
FLOAT32_LARGEST = 1e38


@cache
def _wanted(largest: float) -> tuple[Array, Array, Mapping[str, Array]]:
    """Where functions are compared: 513 points in -10..10, then 40 on each side up to the largest
    number; which points are the near ones; and what :data:`FUNCTIONS` are there."""
    import numpy as np

    near = np.linspace(-10.0, 10.0, 513)
    far = np.geomspace(10.5, largest, 40)
    grid = np.concatenate([-far[::-1], near, far])
    with np.errstate(all="ignore"):
        return grid, np.abs(grid) <= 10, {name: f(grid) for name, f in FUNCTIONS.items()}


@cache
def _probe() -> tuple[Array, Array]:
    """A few points, and [function, point] of what :data:`FUNCTIONS` are there."""
    import numpy as np

    points = np.array([-2.9, -0.7, 0.4, 1.9])
    return points, np.stack([f(points) for f in FUNCTIONS.values()])


def _may_be_named(region: Region) -> bool:
    import numpy as np

    points, wanted = _probe()
    if not any(node.op_type in CURVED for node in region.nodes):
        return False
    found = evaluate(region, points)
    return found is not None and bool((np.abs(found - wanted) < 0.01).all(axis=1).any())


def named(region: Region) -> str:
    """The key of :data:`FUNCTIONS` that the region computes; empty when it is none of them.

    Compared in float64, relative to max(1, |f|): 4e-6 for constants that were rounded to float32,
    2e-4 for float16. Beyond -10..10 a spelling may overflow where its function does not.
    """
    import numpy as np

    if not _may_be_named(region):
        return ""
    kind = region.source.dtype.name
    grid, near, functions = _wanted(LARGEST.get(kind, FLOAT32_LARGEST))
    found = evaluate(region, grid)
    if found is None or not np.isfinite(found[near]).all():
        return ""
    best, error = "", math.inf
    with np.errstate(all="ignore"):
        for name, wanted in functions.items():
            gaps = np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))
            gap = float(np.max(gaps, where=np.isfinite(found), initial=0.0))
            if gap < error:
                best, error = name, gap
    return best if error <= TOLERANCE.get(kind, FLOAT32_TOLERANCE) else ""
