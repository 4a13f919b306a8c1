"""What a float .tflite does to an input before any layer: x * scale + shift, channel by channel.

Problem: a graph that normalises its input by itself must be fed what training code calls pixels;
fed normalised samples it answers nearly the same for all. The leading ADD, SUB, MUL and DIV by
constants, and a depthwise 1x1 (what a BatchNorm becomes), are composed:

    (x * a1 + b1) * a2 + b2 = x * (a1 a2) + (b1 a2 + b2)

TRANSPOSE and padding in between are passed over. Left alone: constants that vary over rows or
columns, and normalisation that was folded into the first convolution, which no file shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgefuse.tflite.read import Operator, TfliteModel

Float64 = npt.NDArray[np.float64]

_ARITHMETIC = frozenset(("ADD", "SUB", "MUL", "DIV"))
_PASSED = frozenset(("PAD", "PADV2", "MIRROR_PAD"))


@dataclass(frozen=True)
class InputAffine:
    """x * scale + shift, one value a channel, or one in all; and the operators that do it."""

    scale: Float64
    shift: Float64
    operators: tuple[Operator, ...]


def input_affine(model: TfliteModel, index: int) -> InputAffine | None:
    """The affine step at the front of input tensor ``index``; None when there is none."""
    tensor = model.tensors[index]
    axis = len(tensor.shape) - 1
    scale, shift = np.ones(1), np.zeros(1)
    done: list[Operator] = []
    while True:
        readers = [op for op in model.operators if index in op.inputs]
        if len(readers) != 1:
            break
        (operator,) = readers
        if operator.code == "TRANSPOSE" and axis >= 0:
            order = model.tensors[operator.inputs[1]]
            if not order.is_constant:
                break
            axis = model.constant(order).tolist().index(axis)
        elif operator.code not in _PASSED:
            step = _step(model, operator, index, axis)
            if step is None:
                break
            scale, shift = scale * step[0], shift * step[0] + step[1]
            done.append(operator)
        index = operator.outputs[0]
    return InputAffine(scale, shift, tuple(done)) if done else None


def _step(
    model: TfliteModel, operator: Operator, index: int, axis: int
) -> tuple[Float64, Float64] | None:
    """Scale and shift of one operator; None when it is no such step."""
    if operator.activation != "NONE":
        return None
    if operator.code == "DEPTHWISE_CONV_2D":
        return _depthwise(model, operator, index)
    if operator.code not in _ARITHMETIC:
        return None
    x_first = operator.inputs[0] == index
    other = model.tensors[operator.inputs[1 if x_first else 0]]
    if not other.is_constant:
        return None
    rank = len(model.tensors[index].shape)
    value = _channels(model.real_constant(other), rank, axis)
    if value is None:
        return None
    one, nought = np.ones_like(value), np.zeros_like(value)
    if operator.code == "ADD":
        return one, value
    if operator.code == "SUB":
        return (one, -value) if x_first else (-one, value)
    if operator.code == "MUL":
        return value, nought
    return (1.0 / value, nought) if x_first and value.all() else None


def _depthwise(
    model: TfliteModel, operator: Operator, index: int
) -> tuple[Float64, Float64] | None:
    """A depthwise convolution of one weight a channel and stride 1."""
    before, after = model.tensors[index].shape, model.tensors[operator.outputs[0]].shape
    weight = model.tensors[operator.inputs[1]]
    if before != after or not weight.is_constant or weight.shape[:3] != (1, 1, 1):
        return None
    factor = model.real_constant(weight).reshape(-1)
    shift = np.zeros_like(factor)
    if len(operator.inputs) > 2 and operator.inputs[2] >= 0:
        bias = model.tensors[operator.inputs[2]]
        if not bias.is_constant:
            return None
        shift = model.real_constant(bias).reshape(-1)
    return factor, shift


def _channels(value: npt.NDArray[Any], rank: int, axis: int) -> Float64 | None:
    """A constant as one value a channel, or one in all; None when it varies otherwise."""
    if value.size == 1:
        return value.reshape(1)
    if value.ndim > rank:
        return None
    whole = value.reshape((1,) * (rank - value.ndim) + value.shape)
    return whole.reshape(-1) if whole.shape[axis] == value.size else None
