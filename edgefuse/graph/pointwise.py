"""Pointwise operators as real functions, and regions of them with one variable.

A *region* is a set of pointwise operators that read one value and scalar constants, whose inner
results nobody else reads, and that has one result: y = f(x) for a function f of one real number.
Exporters spell one activation in many ways; as functions all of its spellings are equal, so a
region is named by evaluating it and comparing it with what it may be (:data:`FUNCTIONS`).

Scope: floating types, scalar constants. Left alone: operators with per-channel constants (PRelu),
and regions of more than :data:`MAX_NODES` operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.graph.values import Array, attribute, constant, is_constant, is_float

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_NODES = 12
# Unary and binary operators that compute each output element from the inputs' elements there.
UNARY = (
    "Abs", "Celu", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Log", "Mish", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt",
    "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = ("Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub")
POINTWISE = tuple(sorted((*UNARY, *BINARY)))


@dataclass(frozen=True)
class Region:
    """y = f(x).

    Attributes:
        source: x.
        nodes: in graph order.
        result: y.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    result: ir.Value


def regions(source: ir.Value) -> Iterator[Region]:
    """Every region that starts at a value, smaller ones first."""
    if source.is_graph_output() or not is_float(source):
        return
    nodes: list[ir.Node] = []
    inside = [source]
    while len(nodes) < MAX_NODES:
        added = next((n for v in inside for n in _readers(v, inside, nodes)), None)
        if added is None:
            return
        nodes.append(added)
        inside.append(added.outputs[0])
        if (result := _only_result(inside, nodes)) is not None and result is not source:
            yield Region(source, _in_order(nodes), result)


def _readers(value: ir.Value, inside: list[ir.Value], nodes: list[ir.Node]) -> Iterator[ir.Node]:
    """In the order of their names: the same graph gives the same region."""
    for use in sorted(value.uses(), key=lambda u: str(u.node.name)):
        node = use.node
        if nodes and node.graph is not nodes[0].graph:
            continue
        if node not in nodes and _is_scalar_function(node, inside):
            yield node


def _is_scalar_function(node: ir.Node, inside: list[ir.Value]) -> bool:
    if node.domain != "" or node.op_type not in POINTWISE or node.op_type == "PRelu":
        return False
    for value in node.inputs:
        if value is None or any(value is known for known in inside):
            continue
        if not is_constant(value) or value.const_value.size != 1:
            return False
        if value.shape is not None and len(value.shape) > 1:
            return False
    return True


def _only_result(inside: list[ir.Value], nodes: list[ir.Node]) -> ir.Value | None:
    members = set(nodes)
    open_values = [
        v
        for v in inside
        if v.is_graph_output() or not list(v.uses()) or any(u.node not in members for u in v.uses())
    ]
    return open_values[0] if len(open_values) == 1 else None


def _in_order(nodes: list[ir.Node]) -> tuple[ir.Node, ...]:
    members = set(nodes)
    return tuple(node for node in nodes[0].graph if node in members)


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
            values[node.outputs[0]] = np.broadcast_to(np.asarray(result), x.shape)
    return values[region.result]


def _apply(node: ir.Node, operands: list[Any]) -> Any:
    import numpy as np

    simple = _simple().get(node.op_type)
    if simple is not None:
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

    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: Array) -> Array:
    import numpy as np

    answer: Array = 1 / (1 + np.exp(-x))
    return answer


def _softplus(x: Array) -> Array:
    import numpy as np

    answer: Array = np.logaddexp(0.0, x)
    return answer


def _simple() -> Mapping[str, Callable[..., Any]]:
    import numpy as np

    return {
        "Abs": np.abs,
        "Add": lambda a, b: a + b,
        "Div": lambda a, b: a / b,
        "Erf": _erf,
        "Exp": np.exp,
        "HardSwish": FUNCTIONS["HARDSWISH"],
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
        "Softplus": _softplus,
        "Softsign": lambda a: a / (1 + np.abs(a)),
        "Sqrt": np.sqrt,
        "Sub": lambda a, b: a - b,
        "Tanh": np.tanh,
    }


def _clip01(x: Array) -> Array:
    import numpy as np

    answer: Array = np.clip(x, 0, 1)
    return answer


def _tanh(x: Array) -> Array:
    import numpy as np

    answer: Array = np.tanh(x)
    return answer


#: Activations that exporters spell out, as functions of float64 arrays. Sources: Hendrycks and
#: Gimpel, arXiv:1606.08415 (GELU, its tanh form and x sigmoid(1.702 x)); Ramachandran et al.,
#: arXiv:1710.05941 (SiLU); Howard et al., arXiv:1905.02244 (hard forms); Misra, arXiv:1908.08681.
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "GELU": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "GELU_TANH": lambda x: 0.5 * x * (1 + _tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "HARDSIGMOID": lambda x: _clip01(x / 6 + 0.5),
    "HARDSWISH": lambda x: x * _clip01(x / 6 + 0.5),
    "MISH": lambda x: x * _tanh(_softplus(x)),
    "QUICKGELU": lambda x: x * _sigmoid(1.702 * x),
    "SIGMOID": _sigmoid,
    "SILU": lambda x: x * _sigmoid(x),
    "SOFTPLUS": _softplus,
}
TOLERANCE = {"FLOAT16": 2e-4, "BFLOAT16": 4e-4}
FLOAT32_TOLERANCE = 4e-6


def named(region: Region) -> str:
    """The key of :data:`FUNCTIONS` that the region computes; empty when it is none of them.

    Compared at 513 points in -10..10, in float64, relative to max(1, |f|): 4e-6 for constants that
    were rounded to float32, 2e-4 for float16.
    """
    import numpy as np

    grid = np.linspace(-10.0, 10.0, 513)
    found = evaluate(region, grid)
    if found is None or not np.isfinite(found).all():
        return ""
    best, error = "", math.inf
    for name, function in FUNCTIONS.items():
        wanted = function(grid)
        gap = float(np.max(np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))))
        if gap < error:
            best, error = name, gap
    limit = TOLERANCE.get(region.source.dtype.name, FLOAT32_TOLERANCE)
    return best if error <= limit else ""
