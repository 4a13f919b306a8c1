"""What the int8 file says about a fused group: integer weights, biases, multipliers, steps.

Numbers come from the int8 TFLite file alone, the graph only says how they are wired. A product's
accumulator is ``sum q_x * q_w`` over the stored integers; with the zero point z of x in the bias

    real result / scale_y = m * (acc + bias - z * sum q_w),  m = scale_x * scale_w / scale_y

which the requantize step rounds (to nearest, ties to even, in float32). LiteRT rounds the same
number in fixed point, ties away from zero, so that single results differ by one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgefuse.artifact import Quantization
from edgefuse.cuda.lower.build import Build, refuse
from edgefuse.cuda.steps import Step
from edgefuse.cuda.storage import Array
from edgefuse.errors import StageError
from edgefuse.tflite.read import Operator, Tensor, TfliteModel

if TYPE_CHECKING:
    import onnx_ir as ir

PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
#: Operators that only move or pad values: lowering has them from the graph.
MOVES = ("PAD", "PADV2", "RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "QUANTIZE", "DEQUANTIZE")
# Pointwise operators, by the step that computes them in float32 between the scales.
UNARY: Mapping[str, str] = {
    "HARD_SWISH": "hard_swish", "LOGISTIC": "sigmoid", "TANH": "tanh", "GELU": "gelu",
    "RELU": "relu",
}  # fmt: skip
_LEAST_COSINE = 0.5
FLOAT_INSTEAD = "lower this model in fp16"


def quantization(tensor: Tensor, where: str) -> Quantization:
    """The scale and zero point of an int8 activation.

    Raises:
        StageError: it is not int8, or has several scales.
    """
    if tensor.dtype != "int8" or len(tensor.scales) != 1:
        raise StageError(
            f"tensor {tensor.name!r} of the int8 file is {tensor.dtype}, with {len(tensor.scales)} "
            "scales: int8 kernels read int8 with one",
            hint=f"{FLOAT_INSTEAD}, or quantise it fully",
            where=where,
        )
    return Quantization(float(tensor.scales[0]), int(tensor.zero_points[0]))


def bounds(activation: str, q: Quantization) -> tuple[int, int]:
    """The least and the largest stored integer after an activation."""
    low, high = -128, 127
    if activation in ("RELU", "RELU6"):
        low = max(low, q.zero_point)
    if activation == "RELU6":
        high = min(high, q.zero_point + round(6 / q.scale))
    if activation == "RELU_N1_TO_1":
        low = max(low, q.zero_point - round(1 / q.scale))
        high = min(high, q.zero_point + round(1 / q.scale))
    return low, high


@dataclass(frozen=True, eq=False)
class Product:
    """A product of the int8 file, as its kernel takes it.

    Attributes:
        weight: int8, in the kernel's layout.
        steps: bias and requantisation, on ``acc``.
        input, output: quantisation of what it reads and makes.
    """

    weight: Array
    steps: tuple[Step, ...]
    input: Quantization
    output: Quantization


def product(
    build: Build, model: TfliteModel, op: Operator, node: ir.Node, real: Array, kernel: str
) -> Product:
    """The integers of a product.

    Args:
        real: the node's weight in the kernel's layout: the file's has to be like it.
        kernel: conv1x1, conv, depthwise or gemm.

    Raises:
        StageError: other weights than the node's, or types that int8 kernels do not read.
    """
    where = f"{op.label} of {model.where}"
    x, y = (model.tensors[i] for i in (op.inputs[0], op.outputs[0]))
    weight = model.tensors[op.inputs[1]]
    q, out = quantization(x, where), quantization(y, where)
    if weight.dtype != "int8" or not weight.is_constant or any(weight.zero_points):
        refuse(node, f"its weight is {weight.dtype} in the int8 file", hint=FLOAT_INSTEAD)
    stored = model.constant(weight)
    turned = _turned(stored, kernel)
    if turned.shape != real.shape or _cosine(turned, real) < _LEAST_COSINE:
        refuse(node, f"{op.label} of the int8 file holds other weights", hint="trace it again")
    columns = turned.shape[-1]
    total = turned.astype(np.int64).reshape(-1, columns).sum(0)
    bias = np.zeros(columns, np.int64)
    if len(op.inputs) > 2 and op.inputs[2] >= 0:
        bias = model.constant(model.tensors[op.inputs[2]]).astype(np.int64)
    scales = np.broadcast_to(np.asarray(weight.scales, np.float64), (columns,))
    multiplier = (q.scale * scales / out.scale).astype(np.float32)
    low, high = bounds(op.activation, out)
    folded = (bias - q.zero_point * total).astype(np.int32)
    steps = (
        Step("add", ("acc", build.weight(f"{weight.name} bias", folded, "int32"))),
        Step(
            "requantize",
            ("%0", build.weight(f"{weight.name} multiplier", multiplier, "float32")),
            (float(out.zero_point), float(low), float(high)),
        ),
    )
    return Product(np.ascontiguousarray(turned), steps, q, out)


def _turned(stored: Array, kernel: str) -> Array:
    if kernel == "depthwise":
        picture: Array = stored[0]
        return picture
    if kernel == "conv":
        return stored.transpose(1, 2, 3, 0)
    rows: Array = stored.reshape(stored.shape[0], -1)
    return rows.T


def _cosine(a: Array, b: Array) -> float:
    left, right = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    norm = math.sqrt(float(left @ left) * float(right @ right))
    return float(left @ right) / norm if norm else 1.0


def following(
    model: TfliteModel,
    op: Operator,
    node: ir.Node,
    value: str,
    made: Quantization,
    others: Sequence[tuple[str, Quantization]],
    place: int,
) -> tuple[list[Step], Quantization]:
    """The steps of a pointwise operator of the int8 file.

    Args:
        value: the operand that was computed last, of quantisation ``made``.
        others: the other operands, by how a step names them.
        place: number of the first step.

    Raises:
        StageError: an operator that int8 kernels do not compute.
    """
    out = quantization(model.tensors[op.outputs[0]], f"{op.label} of {model.where}")
    low, high = bounds(op.activation, out)
    ends = (float(out.zero_point), float(low), float(high))
    if op.code == "ADD" and len(others) == 1:
        name, q = others[0]
        constants = (
            *(float(made.zero_point), float(np.float32(made.scale / out.scale))),
            *(float(q.zero_point), float(np.float32(q.scale / out.scale))),
            *ends,
        )
        return [Step("requantize_add", (value, name), constants)], out
    real = [Step("dequantize", (value,), (made.scale, float(made.zero_point)))]
    inverse = (float(np.float32(1 / out.scale)), *ends)
    if op.code == "MUL" and len(others) == 1:
        name, q = others[0]
        real.append(Step("dequantize", (name,), (q.scale, float(q.zero_point))))
        real.append(Step("mul", (f"%{place}", f"%{place + 1}")))
        return [*real, Step("quantize", (f"%{place + 2}",), inverse)], out
    if op.code in UNARY and not others:
        real.append(Step(UNARY[op.code], (f"%{place}",)))
        return [*real, Step("quantize", (f"%{place + 1}",), inverse)], out
    refuse(node, f"it became {op.label}, which int8 kernels do not compute", hint=FLOAT_INSTEAD)
