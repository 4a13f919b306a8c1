"""What is wrong with an int8 .tflite file, seen from the file alone.

Problem: converters finish without complaint on files that are partly float, that need
TensorFlow's kernels, or whose ranges were ruined by one constant. ``check_int8`` reads the file
and answers with every such place, by operator and tensor; it runs nothing.

Scope: full-integer int8 files. Left alone: accuracy, and what a given runtime's kernels support.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from edgefuse.tflite.read import Operator, Tensor, TfliteModel

FUSABLE = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
# Place of the constant weight among an operator's inputs.
WEIGHTED = {
    "CONV_2D": 1,
    "DEPTHWISE_CONV_2D": 1,
    "FULLY_CONNECTED": 1,
    "TRANSPOSE_CONV": 1,
    "BATCH_MATMUL": 1,
}
_BIAS = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
# Operators that put a constant's values among those of an activation.
_MERGING = frozenset(
    [
        "PAD",
        "PADV2",
        "CONCATENATION",
        "MAXIMUM",
        "MINIMUM",
        "ADD",
        "SUB",
        "SELECT",
        "SELECT_V2",
        "PACK",
        "DYNAMIC_UPDATE_SLICE",
    ]
)
_LIMITS = {
    "RELU": (0.0, float("inf")),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}
HUGE_RATIO = 1000.0


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: float_island, float_tensor, flex_operator, custom_operator, int64_tensor,
            missing_scales, per_tensor_weights, bad_scale, bias_overflow, huge_constant,
            dropped_activation.
        place: the operator's label (``CONV_2D#3``) or the tensor's name.
    """

    kind: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True)
class Island:
    """Float operators connected to each other, with the conversions around them."""

    operators: tuple[Operator, ...]

    @property
    def computing(self) -> tuple[Operator, ...]:
        """Its operators without QUANTIZE and DEQUANTIZE."""
        return tuple(op for op in self.operators if op.code not in ("QUANTIZE", "DEQUANTIZE"))

    def offenders(self, permit_float: Collection[str]) -> tuple[Operator, ...]:
        """Operators that no permission covers; conversions count when they stand alone."""
        return tuple(
            op
            for op in (self.computing or self.operators)
            if (op.custom_code or op.code) not in permit_float
        )


def float_islands(model: TfliteModel) -> tuple[Island, ...]:
    """Maximal sets of float operators joined by float tensors, in operator order."""
    operators = model.float_operators()
    parent = {op.index: op.index for op in operators}

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    first: dict[int, int] = {}
    for op in operators:
        for tensor in model.activations_of(op):
            if tensor.is_float:
                other = root(first.setdefault(tensor.index, op.index))
                parent[max(other, root(op.index))] = min(other, root(op.index))
    members: dict[int, list[Operator]] = {}
    for op in operators:
        members.setdefault(root(op.index), []).append(op)
    return tuple(Island(tuple(group)) for _, group in sorted(members.items()))


def check_int8(
    model: TfliteModel,
    permit_float: Collection[str] = (),
    float_model: TfliteModel | None = None,
) -> list[Problem]:
    """Every problem of a full-integer file, in a fixed order; empty when there is none.

    Args:
        permit_float: operators (TFLite codes) that may stay float; QUANTIZE and DEQUANTIZE around
            them are permitted with them. Permission does not cover Flex and custom operators'
            absence from plain runtimes.
        float_model: the file it was quantised from; activations that disappeared and biases that
            wrapped around can only be seen beside it.
    """
    problems = [*_foreign(model), *_floats(model, permit_float), *_scales(model)]
    for op in model.operators:
        problems += [*_weights(model, op), *_bias(model, op), *_constants(model, op)]
    if float_model is not None:
        problems += _beside(model, float_model)
    return problems


def is_per_channel(op: Operator, weight: Tensor) -> bool:
    """Whether the weight has one scale an output channel, along the axis TFLite demands."""
    axis = 3 if op.code == "DEPTHWISE_CONV_2D" else 0
    if len(weight.shape) <= axis or len(weight.scales) != weight.shape[axis]:
        return False
    return len(weight.scales) == 1 or weight.quantized_dimension == axis


def clips_like(output: Tensor, activation: str) -> bool:
    """Whether the integers of the output can hold no value that the activation would change.

    Half a step is allowed at either end: that is below what the integers can tell apart.
    """
    held = output.real_range
    if held is None or activation not in _LIMITS:
        return False
    low, high = _LIMITS[activation]
    slack = output.scales[0] / 2
    return held[0] >= low - slack and held[1] <= high + slack


def _foreign(model: TfliteModel) -> Iterator[Problem]:
    for op in model.custom_operators():
        if op.custom_code.startswith("Flex"):
            text = f"needs TensorFlow's kernels ({op.custom_code}): a plain runtime cannot run it"
            yield Problem("flex_operator", op.label, text)
        else:
            text = f"custom operator {op.custom_code}: a plain runtime cannot run it"
            yield Problem("custom_operator", op.label, text)


def _floats(model: TfliteModel, permit: Collection[str]) -> Iterator[Problem]:
    islands = float_islands(model)
    for island in islands:
        offenders = island.offenders(permit)
        if offenders:
            names = ", ".join(op.label for op in offenders[:6])
            if len(offenders) > 6:
                names += f" and {len(offenders) - 6} more"
            first, last = island.operators[0].label, island.operators[-1].label
            around = f" (from {first} to {last})" if len(island.operators) > 1 else ""
            yield Problem("float_island", offenders[0].label, f"stays float: {names}{around}")
    explained = {
        i for island in islands for op in island.operators for i in (*op.inputs, *op.outputs)
    }
    for op in model.operators:
        if model.is_boundary(op):
            explained.update((*op.inputs, *op.outputs))
    touched = {i for op in model.operators for i in (*op.inputs, *op.outputs)}
    for index in sorted((touched | {*model.inputs, *model.outputs}) - explained - {-1}):
        tensor = model.tensors[index]
        if tensor.is_float:
            yield Problem("float_tensor", tensor.name, f"tensor {index} is {tensor.dtype}")


def _scales(model: TfliteModel) -> Iterator[Problem]:
    touched = {i for op in model.operators for i in (*op.inputs, *op.outputs)}
    for tensor in model.tensors:
        if tensor.index not in touched | {*model.inputs, *model.outputs}:
            continue
        if tensor.dtype == "int64":
            text = f"tensor {tensor.index} is int64: int8 kernels and accelerators have no such"
            yield Problem("int64_tensor", tensor.name, text)
        if tensor.dtype in ("int8", "uint8", "int16") and not tensor.scales:
            text = f"tensor {tensor.index} is {tensor.dtype} without a scale"
            yield Problem("missing_scales", tensor.name, text)
        bad = [c for c, s in enumerate(tensor.scales) if not np.isfinite(s) or s <= 0]
        if bad:
            text = f"scale {tensor.scales[bad[0]]} in channel {bad[0]} ({len(bad)} in all)"
            yield Problem("bad_scale", tensor.name, text)


def _weights(model: TfliteModel, op: Operator) -> Iterator[Problem]:
    place = WEIGHTED.get(op.code)
    if place is None or op.code in ("FULLY_CONNECTED", "BATCH_MATMUL"):
        return
    weight = model.tensors[op.inputs[place]]
    if weight.is_constant and weight.dtype == "int8" and not is_per_channel(op, weight):
        text = f"{op.label} has {len(weight.scales)} scales for weights of shape {weight.shape}"
        yield Problem("per_tensor_weights", weight.name, text)


def _bias_of(model: TfliteModel, op: Operator) -> Tensor | None:
    place = _BIAS.get(op.code)
    if place is None or len(op.inputs) <= place or op.inputs[place] < 0:
        return None
    bias = model.tensors[op.inputs[place]]
    return bias if bias.is_constant else None


def _bias(model: TfliteModel, op: Operator) -> Iterator[Problem]:
    bias = _bias_of(model, op)
    if bias is None or bias.dtype != "int32":
        return
    # A quantiser that met a bias beyond int32 leaves the limit itself behind.
    value = model.constant(bias).astype(np.int64).reshape(-1)
    full = np.flatnonzero((value <= -(2**31)) | (value >= 2**31 - 1))
    if full.size:
        text = f"channel {full[0]} of {op.label} is at the limit of int32: it did not fit"
        yield Problem("bias_overflow", bias.name, text)


def _constants(model: TfliteModel, op: Operator) -> Iterator[Problem]:
    if op.code not in _MERGING:
        return
    touched = [model.tensors[i] for i in op.inputs if i >= 0]
    spans = [t.scales[0] * 255 for t in touched if not t.is_constant and len(t.scales) == 1]
    if not spans:
        return
    for tensor in touched:
        if not tensor.is_constant or len(tensor.scales) != 1:
            continue
        try:
            worst = float(np.max(np.abs(model.real_constant(tensor)), initial=0.0))
        except (TypeError, ValueError):
            continue
        worst = max(worst, tensor.scales[0] * 255)
        if not worst <= HUGE_RATIO * min(spans):
            text = (
                f"a constant of {op.label} spans {worst:.3g}, its activations {min(spans):.3g}: "
                "it ruins the range"
            )
            yield Problem("huge_constant", tensor.name, text)


def _beside(model: TfliteModel, float_model: TfliteModel) -> Iterator[Problem]:
    def computing(source: TfliteModel) -> list[Operator]:
        return [op for op in source.operators if op.code not in ("QUANTIZE", "DEQUANTIZE")]

    left, right = computing(float_model), computing(model)
    if [op.code for op in left] != [op.code for op in right]:
        return
    for before, after in zip(left, right):
        wanted, output = before.activation, model.tensors[after.outputs[0]]
        dropped = wanted != "NONE" and after.activation == "NONE"
        if dropped and not output.is_float and not clips_like(output, wanted):
            text = f"{wanted} was dropped, but the output's range {output.real_range} exceeds it"
            yield Problem("dropped_activation", after.label, text)
        old, new = _bias_of(float_model, before), _bias_of(model, after)
        if old is None or new is None or new.dtype != "int32" or not new.scales:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ideal = float_model.constant(old).reshape(-1) / np.asarray(new.scales, np.float64)
        wrapped = np.flatnonzero(~(np.abs(ideal) < 2**31 - 1))
        if wrapped.size:
            channel = wrapped[0]
            text = f"channel {channel} of {after.label} needs {ideal[channel]:.3g}: beyond int32"
            yield Problem("bias_overflow", new.name, text)
