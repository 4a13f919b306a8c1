"""Multiply-adds of a .tflite file: what a rewrite for memory costs in arithmetic.

Counted: CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV and FULLY_CONNECTED, one for every weight that
meets an output, padded places included (kernels without a special case for borders pay for them).
Left alone: element-wise operators, pooling, copies.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgefuse.tflite.read import Operator, TfliteModel


def multiply_adds(model: TfliteModel) -> int:
    """Of one invoke."""
    return sum(of_operator(model, operator) for operator in model.operators)


def of_operator(model: TfliteModel, operator: Operator) -> int:
    shapes = [model.tensors[i].shape if i >= 0 else () for i in operator.inputs]
    result = model.tensors[operator.outputs[0]].shape if operator.outputs else ()
    if operator.code in ("CONV_2D", "FULLY_CONNECTED"):
        return prod(result) * prod(shapes[1][1:])
    if operator.code == "DEPTHWISE_CONV_2D":
        return prod(result) * prod(shapes[1][1:3])
    if operator.code == "TRANSPOSE_CONV":
        return prod(shapes[2]) * shapes[1][0] * prod(shapes[1][1:3])
    return 0
