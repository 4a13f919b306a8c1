"""The pointwise part of a kernel as data: what happens to an accumulator before it is stored.

A kernel computes an accumulator for every element of its output; its steps turn it into the result,
in registers. They are a straight-line program: each step names its operands and makes one value,
the last one's is stored, rounded once to the output's dtype (to nearest, ties to even). No steps:
the accumulator is stored. An operand is

- ``acc``: the accumulator, float32, or int32 in int8 kernels;
- ``%k``: the value of step k, counted from 0;
- ``$i``: in ``pointwise`` launches the i-th input through its view (``acc`` is ``$0``);
- else the name of a tensor, which broadcasts to the output's shape by NumPy's rule (axes aligned at
  the right): a bias [C], a gate [N, 1, 1, C], a residual of the output's shape. A float16, bfloat16
  or float32 tensor is read as float32, an int8 or int32 tensor as int32.

Everything is computed in float32, in int32 where all operands are int32 (``add``, ``sub``, ``mul``,
``max``, ``min``). Integer steps are exact and the same everywhere if products and sums are not
contracted into fused multiply-adds: ``round`` is to nearest, ties to even, float32(int32)
likewise::

    requantize      round(clamp(float32(x) * m, low - zero, high - zero)) + zero
                    operands x (int32), m (float32 [C] or [1]); constants zero, low, high
    requantize_add  round(clamp(float32(a - za) * ma + float32(b - zb) * mb, low - zero,
                    high - zero)) + zero; operands a, b; constants za, ma, zb, mb, zero, low, high
    dequantize      float32(x - zero) * scale; constants scale, zero
    quantize        round(clamp(x * inverse_scale, low - zero, high - zero)) + zero
                    constants inverse_scale, zero, low, high

The clamp comes first: its bounds are whole numbers, so that nothing changes, and what is rounded
lies within +-255. Constants are float32 values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.cuda.storage import Array
from edgefuse.errors import StageError

ACCUMULATOR = "acc"


@dataclass(frozen=True)
class Step:
    """One pointwise step.

    Attributes:
        kind: a key of :data:`KINDS`.
        operands: ``acc``, ``%k``, ``$i`` or names of tensors; as many as the kind takes.
        constants: as the kind takes them.
    """

    kind: str
    operands: tuple[str, ...] = (ACCUMULATOR,)
    constants: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "operands": list(self.operands),
            "constants": list(self.constants),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Step:
        return cls(row["kind"], tuple(row["operands"]), tuple(row["constants"]))


@dataclass(frozen=True)
class Kind:
    """What a kind of step takes.

    Attributes:
        operands, constants: how many.
        integers: whether it stays in int32 where all operands are.
    """

    operands: int
    constants: int
    compute: Callable[..., Array]
    integers: bool = False


def _erf(x: Array) -> Array:
    """The error function in float64, by its Taylor series and its continued fraction."""
    flat = np.abs(x.astype(np.float64)).reshape(-1)
    answer = np.ones_like(flat)
    small = flat < 3.0
    t = flat[small]
    term, total = t.copy(), t.copy()
    for n in range(1, 60):
        term = -term * t * t / n
        total += term / (2 * n + 1)
    answer[small] = 2.0 / math.sqrt(math.pi) * total
    large = ~small & (flat < 6.0)
    t = flat[large]
    tail = np.zeros_like(t)
    for n in range(60, 0, -1):
        tail = n / 2.0 / (t + tail)
    answer[large] = 1.0 - np.exp(-t * t) / math.sqrt(math.pi) / (t + tail)
    signed: Array = (np.copysign(1.0, x) * answer.reshape(x.shape)).astype(np.float32)
    return signed


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        answer: Array = np.float32(1) / (np.float32(1) + np.exp(-x))
    return answer


def _hard_sigmoid(x: Array, alpha: np.float32, beta: np.float32) -> Array:
    clamped: Array = np.clip(x * alpha + beta, np.float32(0), np.float32(1))
    return clamped


def _gelu(x: Array) -> Array:
    return np.float32(0.5) * x * (np.float32(1) + _erf(x * np.float32(math.sqrt(0.5))))


def _gelu_tanh(x: Array) -> Array:
    inner: Array = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    answer: Array = np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))
    return answer


def _round_within(x: Array, zero: np.float32, low: np.float32, high: np.float32) -> Array:
    whole: Array = np.rint(np.clip(x, low - zero, high - zero)).astype(np.int32)
    return whole + np.int32(zero)


def _requantize(x: Array, m: Array, zero: np.float32, low: np.float32, high: np.float32) -> Array:
    return _round_within(x.astype(np.float32) * m, zero, low, high)


def _requantize_add(a: Array, b: Array, *constants: np.float32) -> Array:
    za, ma, zb, mb, zero, low, high = constants
    left = (a - np.int32(za)).astype(np.float32) * ma
    return _round_within(left + (b - np.int32(zb)).astype(np.float32) * mb, zero, low, high)


def _dequantize(x: Array, scale: np.float32, zero: np.float32) -> Array:
    real: Array = (x - np.int32(zero)).astype(np.float32) * scale
    return real


def _quantize(
    x: Array, inverse: np.float32, zero: np.float32, low: np.float32, high: np.float32
) -> Array:
    return _round_within(x * inverse, zero, low, high)


#: Every kind of step. Formulas that are not plain are in this module's docstring.
KINDS: Mapping[str, Kind] = {
    "add": Kind(2, 0, np.add, integers=True),
    "sub": Kind(2, 0, np.subtract, integers=True),
    "mul": Kind(2, 0, np.multiply, integers=True),
    "div": Kind(2, 0, np.divide),
    "max": Kind(2, 0, np.maximum, integers=True),
    "min": Kind(2, 0, np.minimum, integers=True),
    "pow": Kind(2, 0, np.power),
    # With one constant: x + c, x - c, c - x, x * c, x / c, c / x, x ** c.
    "add_constant": Kind(1, 1, np.add),
    "mul_constant": Kind(1, 1, np.multiply),
    "div_constant": Kind(1, 1, np.divide),
    "rsub_constant": Kind(1, 1, lambda x, c: c - x),
    "rdiv_constant": Kind(1, 1, lambda x, c: c / x),
    "pow_constant": Kind(1, 1, np.power),
    # clamp(x, low, high); infinite bounds are none.
    "clip": Kind(1, 2, lambda x, low, high: np.clip(x, low, high)),
    "relu": Kind(1, 0, lambda x: np.maximum(x, np.float32(0))),
    # x where x > 0, else alpha * x.
    "leaky_relu": Kind(1, 1, lambda x, alpha: np.where(x > 0, x, alpha * x)),
    # x where x > 0, else alpha * (exp(x) - 1).
    "elu": Kind(1, 1, lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))),
    # 1 / (1 + exp(-x)).
    "sigmoid": Kind(1, 0, _sigmoid),
    # clamp(alpha * x + beta, 0, 1).
    "hard_sigmoid": Kind(1, 2, _hard_sigmoid),
    # x * clamp(x / 6 + 1/2, 0, 1).
    "hard_swish": Kind(1, 0, lambda x: x * _hard_sigmoid(x, np.float32(1 / 6), np.float32(0.5))),
    # x * sigmoid(x).
    "silu": Kind(1, 0, lambda x: x * _sigmoid(x)),
    # x / 2 * (1 + erf(x / sqrt(2))).
    "gelu": Kind(1, 0, _gelu),
    # x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).
    "gelu_tanh": Kind(1, 0, _gelu_tanh),
    "tanh": Kind(1, 0, np.tanh),
    "erf": Kind(1, 0, _erf),
    "exp": Kind(1, 0, np.exp),
    "log": Kind(1, 0, np.log),
    "sqrt": Kind(1, 0, np.sqrt),
    "abs": Kind(1, 0, np.abs),
    "neg": Kind(1, 0, np.negative),
    # log(1 + exp(x)), without overflow.
    "softplus": Kind(1, 0, lambda x: np.logaddexp(np.float32(0), x)),
    "requantize": Kind(2, 3, _requantize),
    "requantize_add": Kind(2, 7, _requantize_add),
    "dequantize": Kind(1, 2, _dequantize),
    "quantize": Kind(1, 4, _quantize),
}

#: Kinds that make int32 values; the others make float32 unless all operands are int32.
TO_INTEGERS = frozenset({"requantize", "requantize_add", "quantize"})
FROM_INTEGERS = frozenset({"requantize", "requantize_add", "dequantize"})


def evaluate(steps: Sequence[Step], accumulator: Array, read: Callable[[str], Array]) -> Array:
    """The result of the steps in NumPy: what every other implementation has to agree with.

    Args:
        accumulator: float32 or int32, of the output's shape.
        read: the value of a ``$i`` or a tensor, float32 or int32, that broadcasts to that shape.

    Returns:
        float32 or int32, of the accumulator's shape.

    Raises:
        StageError: an integer where a number is asked for, or the other way round.
    """
    values: list[Array] = []
    for place, step in enumerate(steps):
        given = [
            accumulator if name == ACCUMULATOR
            else values[int(name[1:])] if name.startswith("%")
            else read(name)
            for name in step.operands
        ]  # fmt: skip
        kind = KINDS[step.kind]
        whole = [value.dtype.kind == "i" for value in given]
        fits = whole[0] if step.kind in FROM_INTEGERS else kind.integers and all(whole)
        if not fits and any(whole):
            raise StageError(
                f"step {place} ({step.kind}) mixes integers and numbers",
                hint="a dequantize or requantize step has to come between",
            )
        constants = [np.float32(c) for c in step.constants]
        values.append(np.broadcast_to(kind.compute(*given, *constants), accumulator.shape))
    return values[-1] if values else accumulator
