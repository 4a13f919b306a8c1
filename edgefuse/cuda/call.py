"""What a kernel's NumPy reference is given, and what every reference is.

A reference computes the accumulator of a launch; whoever calls it applies the epilogue
(:func:`edgefuse.cuda.steps.evaluate`) and stores the result. It is written for clarity, not for
speed: what every other implementation has to agree with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edgefuse.cuda.steps import Step, evaluate
from edgefuse.cuda.storage import Array, Dtype, rounded


@dataclass(frozen=True, eq=False)
class Call:
    """One launch with its numbers.

    Attributes:
        inputs, weights: decoded: float32, or int32 in int8 programs; in the launch's order.
        attributes: the launch's.
        shape: of the output.
        integers: whether the accumulator is int32.
        inner: the launch's inner steps.
        dtype: what activations are held in: inner results are rounded to it.
        read: the value of a tensor that a step names.
    """

    inputs: tuple[Array, ...]
    weights: tuple[Array, ...]
    attributes: Mapping[str, Any]
    shape: tuple[int, ...]
    integers: bool
    inner: tuple[Step, ...]
    dtype: Dtype
    read: Callable[[str], Array]

    def operand(self, values: Array) -> Array:
        """Values after the inner steps, as if they had been stored in between."""
        return rounded(evaluate(self.inner, values, self.read), self.dtype)


class Reference(Protocol):
    """``reference`` of every module in :mod:`edgefuse.cuda.kernels`."""

    def __call__(self, call: Call) -> Array:
        """The accumulator: float32, or int32 where ``call.integers``, of ``call.shape``."""
        ...
