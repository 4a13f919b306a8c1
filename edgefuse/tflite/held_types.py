"""Which types a format gives a layer's data, weights and bias, and how near its weights are.

What an operator holds is judged against :class:`Types`; the default is full-integer int8. Weights
are compared in steps: their scale for integers, the spacing of float16 at the largest weight for
those, nothing at all for float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.tflite.inspect import WEIGHTED, is_per_channel
from edgefuse.tflite.read import Operator, Tensor, TfliteModel

Array = np.ndarray[Any, Any]
_HALF_PRECISION = 2.0**-10


@dataclass(frozen=True)
class Types:
    """What the layers of a file may hold.

    Attributes:
        activations, weights, biases: dtypes.
        per_tensor_weights: one scale in all is enough.
        float_operators: operators (TFLite codes) that may be float32 as a whole.
    """

    activations: tuple[str, ...] = ("int8",)
    weights: tuple[str, ...] = ("int8",)
    biases: tuple[str, ...] = ("int32",)
    per_tensor_weights: bool = False
    float_operators: tuple[str, ...] = ()

    def permits_float(self, model: TfliteModel, op: Operator) -> bool:
        """Whether the operator is float and may be."""
        return op.code in self.float_operators and all(t.is_float for t in model.activations_of(op))


def weight_of(model: TfliteModel, op: Operator) -> Tensor | None:
    """The constant that holds the operator's weight, behind a DEQUANTIZE or not."""
    place = WEIGHTED.get(op.code)
    if place is None or len(op.inputs) <= place or op.inputs[place] < 0:
        return None
    index = op.inputs[place]
    for other in model.operators:
        if other.code == "DEQUANTIZE" and other.outputs[0] == index:
            index = other.inputs[0]
    tensor = model.tensors[index]
    return tensor if tensor.is_constant else None


def real_weight(model: TfliteModel, op: Operator) -> Array | None:
    """The weight as [out, height, width, in/groups], real values; None if there is none.

    float32 in a float file: no copy and exact; float64 when dequantised.
    """
    tensor = weight_of(model, op)
    if tensor is None:
        return None
    real = model.real_constant(tensor) if tensor.scales else model.constant(tensor)
    if op.code == "DEPTHWISE_CONV_2D" and real.ndim == 4:
        return real.transpose(3, 1, 2, 0)
    if real.ndim == 2:
        return real[:, None, None, :]
    return real if real.ndim == 4 else None


def worst_steps(model: TfliteModel, op: Operator, wanted: Array) -> float:
    """Greatest distance to the float weights, in steps of the channel; infinity if incomparable."""
    held, tensor = real_weight(model, op), weight_of(model, op)
    if held is None or tensor is None or held.shape != wanted.shape:
        return float("inf")
    if tensor.is_float:
        if tensor.dtype != "float16":
            return 0.0 if np.array_equal(held, wanted) else float("inf")
        scales = np.array([max(float(np.abs(wanted).max(initial=0)), 1e-30) * _HALF_PRECISION])
    else:
        scales = np.asarray(tensor.scales, np.float64)
    if len(scales) not in (1, held.shape[0]) or not (np.isfinite(scales) & (scales > 0)).all():
        return float("inf")
    distance: Array = np.abs(held.astype(np.float64) - wanted) / scales.reshape(-1, 1, 1, 1)
    return float(distance.max(initial=0.0))


def judge_types(
    op: Operator, model: TfliteModel, types: Types, faults: list[str], notes: list[str]
) -> None:
    """A fault for each of the layer's tensors that has another type than the format's."""
    if types.permits_float(model, op):
        notes.append(f"{op.label} stays float, as permitted")
        return
    place, weight = WEIGHTED[op.code], weight_of(model, op)
    if weight is None or weight.dtype not in types.weights:
        held = model.tensors[op.inputs[place]] if weight is None else weight
        faults.append(f"weight {held.name!r} is {held.dtype}, not {_either(types.weights)}")
    elif not weight.is_float and not is_per_channel(op, weight):
        # The TFLite quantisation specification allows per-tensor weights here.
        allowed = op.code in ("FULLY_CONNECTED", "BATCH_MATMUL") or types.per_tensor_weights
        (notes if allowed else faults).append("the weights are per-tensor, not per-channel")
    bias_place = {"TRANSPOSE_CONV": 3}.get(op.code, 2)
    if op.code != "BATCH_MATMUL" and len(op.inputs) > bias_place and op.inputs[bias_place] >= 0:
        bias = model.tensors[op.inputs[bias_place]]
        if bias.dtype not in types.biases:
            faults.append(f"bias {bias.name!r} is {bias.dtype}, not {_either(types.biases)}")
    data_place = 2 if op.code == "TRANSPOSE_CONV" else 1 - place if op.code == "BATCH_MATMUL" else 0
    judge_activations(op, (op.inputs[data_place], op.outputs[0]), model, types, faults)


def judge_activations(
    op: Operator, indices: Sequence[int], model: TfliteModel, types: Types, faults: list[str]
) -> None:
    """A fault for each of these activations of the operator that has another type."""
    if types.permits_float(model, op):
        return
    for tensor in (model.tensors[index] for index in indices):
        if tensor.dtype not in types.activations:
            wanted = _either(types.activations)
            faults.append(f"activation {tensor.name!r} is {tensor.dtype}, not {wanted}")


def _either(names: Sequence[str]) -> str:
    return " or ".join(names)
