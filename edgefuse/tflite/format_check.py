"""Whether a quantised file holds what its format promises, tensor by tensor.

Problem: ``check_int8`` knows full-integer files only, and a file in another format that is partly
something else runs all the same. For each format the types of its layers are stated
(:class:`~edgefuse.tflite.held_types.Types`), and every place that holds another is named.

    int8           as ``check_int8``; with int16 operators also the float step between the two
    int16x8        integer throughout, int16 activations, biases int64 or int32
    dynamic_range  constant weights of layers are int8, activations float
    float16        constant weights of layers are float16

Left alone: accuracy, and whether a runtime has the kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from edgefuse.tflite.held_types import Types, judge_types, weight_of
from edgefuse.tflite.inspect import WEIGHTED, Island, Problem, check_int8, float_islands
from edgefuse.tflite.read import Operator, TfliteModel

Format = Literal["int8", "int16x8", "dynamic_range", "float16"]
_BIAS_PLACES = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
_INTEGER_KINDS = ("flex_operator", "custom_operator", "bad_scale", "missing_scales")


def types_of(
    format: Format,
    *,
    per_tensor_weights: bool = False,
    mixed: bool = False,
    permit_float: Collection[str] = (),
) -> Types:
    """What the layers of a file of this format may hold.

    Args:
        per_tensor_weights: one scale a weight is enough.
        mixed: an int8 file has operators with int16 activations.
        permit_float: operators (TFLite codes) that may stay float.
    """
    floats = tuple(permit_float)
    if format == "int8":
        activations = ("int8", "int16") if mixed else ("int8",)
        biases = ("int32", "int64") if mixed else ("int32",)
        return Types(activations, ("int8",), biases, per_tensor_weights, floats)
    if format == "int16x8":
        return Types(("int16",), ("int8",), ("int64", "int32"), per_tensor_weights, floats)
    weights = "int8" if format == "dynamic_range" else "float16"
    return Types(("float32",), (weights,), ("float32",), per_tensor_weights, floats)


def check_format(
    model: TfliteModel,
    format: Format,
    *,
    per_tensor_weights: bool = False,
    mixed: bool = False,
    permit_float: Collection[str] = (),
    float_model: TfliteModel | None = None,
) -> list[Problem]:
    """Every problem of the file, in a fixed order; empty when there is none. As ``types_of``.

    Args:
        float_model: the file it was quantised from.
    """
    types = types_of(
        format, per_tensor_weights=per_tensor_weights, mixed=mixed, permit_float=permit_float
    )
    found = check_int8(model, permit_float, float_model)
    if format in ("dynamic_range", "float16"):
        return [p for p in found if p.kind in _INTEGER_KINDS] + list(_layers(model, types))
    dropped = {"per_tensor_weights"} if per_tensor_weights else set()
    excused = _bridges(model) if mixed else set()
    if mixed or format == "int16x8":
        excused |= _wide_biases(model)
    kept = [p for p in found if p.kind not in dropped and (p.kind, p.place) not in excused]
    return kept + list(_activations(model, types))


def _bridges(model: TfliteModel) -> set[tuple[str, str]]:
    """Problems that are the float step from int8 to int16: a DEQUANTIZE and its QUANTIZE."""

    def crosses(island: Island) -> bool:
        if island.computing:
            return False
        types = [
            model.tensors[op.inputs[0] if op.code == "DEQUANTIZE" else op.outputs[0]].dtype
            for op in island.operators
        ]
        return set(types) == {"int8", "int16"}

    return {
        ("float_island", island.operators[0].label)
        for island in float_islands(model)
        if crosses(island)
    }


def _wide_biases(model: TfliteModel) -> set[tuple[str, str]]:
    """Problems that are the int64 bias of a layer with int16 activations."""
    found = set()
    for op in model.operators:
        place = _BIAS_PLACES.get(op.code)
        if place is None or len(op.inputs) <= place or op.inputs[place] < 0:
            continue
        if model.tensors[op.outputs[0]].dtype == "int16":
            found.add(("int64_tensor", model.tensors[op.inputs[place]].name))
    return found


def _activations(model: TfliteModel, types: Types) -> Iterator[Problem]:
    """Quantised activations of another type than the format's; QUANTIZE may change the type."""
    for op in model.operators:
        if op.code in ("QUANTIZE", "DEQUANTIZE"):
            continue
        for tensor in model.activations_of(op):
            if tensor.scales and tensor.dtype not in types.activations:
                wanted = " or ".join(types.activations)
                text = f"activation {tensor.name!r} is {tensor.dtype}, not {wanted}"
                yield Problem("wrong_type", op.label, text)


def _layers(model: TfliteModel, types: Types) -> Iterator[Problem]:
    """Layers with a constant weight of another type than the format's."""
    for op in model.operators:
        if _is_layer(model, op) and op.code not in types.float_operators:
            faults: list[str] = []
            judge_types(op, model, types, faults, [])
            for fault in faults:
                yield Problem("wrong_type", op.label, fault)


def _is_layer(model: TfliteModel, op: Operator) -> bool:
    known = op.code in WEIGHTED and op.code != "BATCH_MATMUL"
    return known and weight_of(model, op) is not None
