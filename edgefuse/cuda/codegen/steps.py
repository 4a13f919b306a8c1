"""Each kind of :mod:`edgefuse.cuda.steps` as an expression of Triton.

The numbers are those of the NumPy reference: float32 in the same order. Rounding to whole numbers
adds and takes away 1.5 * 2^23, which rounds to nearest, ties to even, what lies within +-2^22; the
clamp before it sees to that, and keeps products and sums apart, which must not be contracted.
Divisions and exponentials are the GPU's, good to a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgefuse.cuda.steps import Step
from edgefuse.errors import StageError

_ROUND = "12582912.0"
_MOST_PRODUCTS = 8


def number(value: float) -> str:
    """A float32 as text."""
    single = float(np.float32(value))
    return repr(single) if math.isfinite(single) else f'float("{single}")'


def _clamped(x: str, low: str, high: str) -> str:
    if low != 'float("-inf")':
        x = f"tl.maximum({x}, {low})"
    return x if high == 'float("inf")' else f"tl.minimum({x}, {high})"


def _rounded(x: str, zero: float, low: float, high: float) -> str:
    within = _clamped(x, number(low - zero), number(high - zero))
    whole = f"(({within} + {_ROUND}) - {_ROUND}).to(tl.int32)"
    return f"{whole} + {int(zero)}" if zero else whole


def _sigmoid(x: str) -> str:
    return f"(1.0 / (1.0 + tl.exp(-{x})))"


def _tanh(x: str) -> str:
    return f"(2.0 / (1.0 + tl.exp(-2.0 * ({x}))) - 1.0)"


def _hard_sigmoid(x: str, alpha: float, beta: float) -> str:
    return _clamped(f"({x} * {number(alpha)} + {number(beta)})", "0.0", "1.0")


def _power(x: str, exponent: float) -> str:
    if exponent == 0.5:
        return f"tl.sqrt({x})"
    if exponent == -0.5:
        return f"1.0 / tl.sqrt({x})"
    if float(exponent).is_integer() and 1 <= abs(exponent) <= _MOST_PRODUCTS:
        product = " * ".join([x] * int(abs(exponent)))
        return product if exponent > 0 else f"1.0 / ({product})"
    if float(exponent).is_integer():
        odd = int(exponent) % 2 == 1
        magnitude = f"tl.exp2({number(exponent)} * tl.log2(tl.abs({x})))"
        return f"tl.where({x} < 0.0, -1.0, 1.0) * {magnitude}" if odd else magnitude
    return f"tl.exp2({number(exponent)} * tl.log2({x}))"


def _general_power(x: str, y: str) -> str:
    whole = f"tl.floor({y})"
    odd = f"{whole} - 2.0 * tl.floor({whole} * 0.5) == 1.0"
    negative = f'tl.where({whole} == {y}, tl.where({odd}, -1.0, 1.0), float("nan"))'
    sign = f"tl.where({x} < 0.0, {negative}, 1.0)"
    return f"tl.where({y} == 0.0, 1.0, {sign} * tl.exp2({y} * tl.log2(tl.abs({x}))))"


def _requantize_add(a: str, b: str, c: Sequence[float]) -> str:
    za, ma, zb, mb, zero, low, high = c
    left = f"({a} - {int(za)}).to(tl.float32) * {number(ma)}"
    right = f"({b} - {int(zb)}).to(tl.float32) * {number(mb)}"
    return _rounded(f"({left} + {right})", zero, low, high)


def expression(step: Step, operands: Sequence[str], integer: bool) -> str:
    """The step's value.

    Args:
        operands: names.
        integer: whether it is computed in int32 alone.
    """
    x, c = operands[0], step.constants
    y = operands[-1]
    match step.kind:
        case "add" | "sub" | "mul" | "div":
            sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[step.kind]
            return f"{x} {sign} {y}"
        case "max":
            return f"tl.maximum({x}, {y})"
        case "min":
            return f"tl.minimum({x}, {y})"
        case "pow":
            return _general_power(x, y)
        case "add_constant":
            return f"{x} + {number(c[0])}"
        case "mul_constant":
            return f"{x} * {number(c[0])}"
        case "div_constant":
            return f"{x} / {number(c[0])}"
        case "rsub_constant":
            return f"{number(c[0])} - {x}"
        case "rdiv_constant":
            return f"{number(c[0])} / {x}"
        case "pow_constant":
            return _power(x, c[0])
        case "clip":
            return _clamped(x, number(c[0]), number(c[1]))
        case "relu":
            return f"tl.maximum({x}, 0.0)"
        case "leaky_relu":
            return f"tl.where({x} > 0.0, {x}, {number(c[0])} * {x})"
        case "elu":
            return (
                f"tl.where({x} > 0.0, {x}, {number(c[0])} * (tl.exp(tl.minimum({x}, 0.0)) - 1.0))"
            )
        case "sigmoid":
            return _sigmoid(x)
        case "hard_sigmoid":
            return _hard_sigmoid(x, c[0], c[1])
        case "hard_swish":
            return f"{x} * {_hard_sigmoid(x, 1 / 6, 0.5)}"
        case "silu":
            return f"{x} * {_sigmoid(x)}"
        case "gelu":
            return f"0.5 * {x} * (1.0 + tl.erf({x} * {number(math.sqrt(0.5))}))"
        case "gelu_tanh":
            scale = number(math.sqrt(2 / math.pi))
            inner = f"{scale} * ({x} + {number(0.044715)} * {x} * {x} * {x})"
            return f"0.5 * {x} * (1.0 + {_tanh(inner)})"
        case "tanh":
            return _tanh(x)
        case "erf" | "exp" | "log" | "sqrt" | "abs":
            return f"tl.{step.kind}({x})"
        case "neg":
            return f"-{x}"
        case "softplus":
            return f"tl.maximum({x}, 0.0) + tl.log(1.0 + tl.exp(-tl.abs({x})))"
        case "requantize":
            return _rounded(f"({x}.to(tl.float32) * {y})", c[0], c[1], c[2])
        case "requantize_add":
            return _requantize_add(x, y, c)
        case "dequantize":
            return f"({x} - {int(c[1])}).to(tl.float32) * {number(c[0])}"
        case "quantize":
            return _rounded(f"({x} * {number(c[0])})", c[1], c[2], c[3])
    raise StageError(f"no code is generated for step {step.kind!r}")
