"""Apply ranges: a float .tflite to a quantised one, with ai-edge-quantizer.

    q = clip(round(w / scale)), scale = max|w| / 127 per output channel (or per tensor)
    bias' = round(bias / (input scale * weight scale))

The ranges are ours, and the weights' scales where they are given; the library writes the file.
Scope: the formats of :mod:`~.formats`, float islands, int16 islands, and the types of
inputs and outputs. Left alone: which operators should leave the format.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError
from edgefuse.quant.calibration.ranges import Range
from edgefuse.quant.writing.collapse import aligned, collapse
from edgefuse.quant.writing.formats import (
    ACTIVATION_BITS,
    BOUNDARIES,
    Boundary,
    Format,
    number,
    numbered,
    one_scale,
    restore_names,
    rules,
)

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.read import Operator, Tensor, TfliteModel
    from edgefuse.tflite.runtime import Runtime

_CHANNEL_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
_WEIGHT_FLOOR = 1e-6
# Largest bias, in int32 steps, that a channel's weight scale is widened for: room for 8 times more,
# since the library may give the input another scale than its own range says.
_BIAS_STEPS = 2.0**28
# The library takes biases in float32, and refuses one that is off by more than a step of the widest
# channel. Up to here none is.
_EXACT_STEPS = 2.0**22
_INT32 = 2.0**31 - 1


def quantize_file(
    source: Path,
    destination: Path,
    ranges: Mapping[str, Range],
    *,
    format: Format = "int8",
    per_tensor_weights: bool = False,
    keep_float: Collection[int] = (),
    int16: Collection[int] = (),
    input_type: Boundary = "int8",
    output_type: Boundary = "int8",
    weight_scales: Mapping[str, np.ndarray[Any, Any]] | None = None,
    runtime: Runtime = "litert",
) -> None:
    """Write the quantised file.

    Args:
        ranges: one for every activation tensor, by tensor name; unused by dynamic_range and
            float16.
        keep_float: operators, by index, that stay float, with a DEQUANTIZE before and a QUANTIZE
            behind; neighbours share one island.
        int16: operators, by index, with int16 activations in an int8 file.
        input_type, output_type: of the model's inputs and outputs. uint8 has a QUANTIZE behind or
            before, with the same scale and a zero point that is greater by 128.
        weight_scales: explicit scales by the weight's tensor name, one a channel (or one): the
            int8 weight is round(w / scale), and its bias's scale follows.
        runtime: the target's; it must load and run each pair of operators of a mixture.

    Raises:
        StageError: the library refuses the model, a boundary type does not exist in the format, a
            bias does not fit int32, or the runtime does not run a mixture.
    """
    from edgefuse.quant.writing.bridge import bridged
    from edgefuse.quant.writing.repair import repaired
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import parse_model, read_model

    for side, wanted in (("input", input_type), ("output", output_type)):
        if wanted not in BOUNDARIES[format]:
            raise StageError(
                f"{side} type {wanted} does not exist in format {format}",
                hint=f"one of {', '.join(BOUNDARIES[format])}",
            )
    model = read_model(source)
    ranges = aligned(model, ranges)
    statistics = _statistics(model, ranges) if ACTIVATION_BITS[format] else {}
    instructions = rules(
        model,
        format,
        per_tensor_weights=per_tensor_weights,
        keep_float=keep_float,
        int16=int16,
        float_inputs=input_type == "float32",
        float_outputs=output_type == "float32",
    )
    for exact in (False, True):
        weights = _weight_ranges(
            model, ranges, format, int16, per_tensor_weights, weight_scales or {}, exact
        )
        try:
            data = _run_library(model, instructions, {**statistics, **weights})
            break
        except _BiasRefused as error:
            if exact:
                raise StageError(error.message, hint=error.hint) from error
    edit = Edit(data)
    if ACTIVATION_BITS[format]:
        collapse(edit, parse_model(data), model, ranges, keep_float)
    restore_names(edit, model)
    written = edit.packed()
    if int16:
        written = bridged(written, model, int16, runtime)
    destination.write_bytes(
        repaired(written, model, input_type=input_type, output_type=output_type)
    )


class _BiasRefused(StageError):
    """The library holds a bias for too far off."""


def _run_library(model: TfliteModel, instructions: Any, statistics: Mapping[str, Any]) -> bytes:
    from edgefuse.tflite.runtime import quiet_native

    with contextlib.redirect_stdout(io.StringIO()), quiet_native(), warnings.catch_warnings():
        from ai_edge_quantizer import quantizer

        # The library warns of its own interpreter.
        warnings.simplefilter("ignore", UserWarning)
        try:
            worker = quantizer.Quantizer(bytearray(numbered(model)))
            worker.load_quantization_recipe(instructions)
            result = worker.quantize(statistics)
        except Exception as error:
            text = _with_names(" ".join(str(error).split())[:300], model)
            kind = _BiasRefused if text.startswith("Failed to quantize bias") else StageError
            raise kind(
                f"the quantiser refuses the model: {type(error).__name__}: {text}",
                hint="`edgefuse run --until convert` leaves the float model to look at",
            ) from error
    if not result.quantized_model:
        raise StageError("the quantiser wrote nothing")
    return bytes(result.quantized_model)


def _with_names(text: str, model: TfliteModel) -> str:
    """The library's message, with names for its numbers."""
    names = {number(t.index): repr(t.name) for t in model.tensors}
    return re.sub(r"\bt\d+\b", lambda match: names.get(match.group(), match.group()), text)


def _statistics(model: TfliteModel, ranges: Mapping[str, Range]) -> dict[str, Any]:
    import numpy as np

    found = {}
    for tensor in model.tensors:
        if (span := ranges.get(tensor.name)) is not None and not tensor.is_constant:
            shape = [1] * len(tensor.shape)
            found[number(tensor.index)] = {
                "min": np.full(shape, span.low, np.float32),
                "max": np.full(shape, span.high, np.float32),
            }
    return found


def _weight_ranges(
    model: TfliteModel,
    ranges: Mapping[str, Range],
    format: Format,
    int16: Collection[int],
    per_tensor_weights: bool,
    given: Mapping[str, np.ndarray[Any, Any]],
    exact: bool,
) -> dict[str, Any]:
    """Explicit weight ranges: those given, and those of channels that are (nearly) zero.

    The scale of such a channel would be zero, or its bias would not fit int32 (bias / (input
    scale * weight scale)). Either floor costs nothing: one is far below the step of any other
    channel, the other 2**-20 of the channel's bias. ``exact``: biases stay within _EXACT_STEPS of
    their channel's own scale, or of the operator's widest."""
    import numpy as np

    found: dict[int, np.ndarray[Any, Any]] = {}
    used = set()
    for operator in model.operators:
        axis = _CHANNEL_AXES.get(operator.code)
        if axis is None:
            continue
        tensor = model.tensors[operator.inputs[1]]
        if not tensor.is_constant or not tensor.is_float:
            continue
        bits = 16 if operator.index in int16 else ACTIVATION_BITS[format]
        least = _bias_steps(model, operator, ranges, bits, tensor.shape[axis])
        per_tensor = one_scale(operator.code, format, per_tensor_weights)
        if tensor.name in given:
            used.add(tensor.name)
            scale = _given(given[tensor.name], tensor, axis, per_tensor)
            _require_int32(operator, scale.reshape(-1), least, exact)
            found[tensor.index] = 127 * scale
            continue
        weights = np.abs(model.constant(tensor)).astype(np.float64)
        if per_tensor:
            _require_int32(operator, np.full(1, max(weights.max() / 127, 1e-30)), least, exact)
            continue
        others = tuple(a for a in range(weights.ndim) if a != axis)
        peak = weights.max(axis=others, keepdims=True) if others else weights
        floor = np.full(peak.size, _WEIGHT_FLOOR * max(float(weights.max()), 1e-30))
        floor = np.maximum(floor, 127 * least / (_BIAS_STEPS if bits == 8 else _INT32 / 2))
        if exact:
            needed = 127 * least / _EXACT_STEPS
            widest = max(float(peak.max()), float(floor.max()))
            floor = np.where(needed > widest, needed, floor)
        if (peak.reshape(-1) < floor).any():
            peak = np.maximum(peak, floor.reshape(peak.shape)).astype(np.float32)
            found[tensor.index] = np.maximum(peak, found.get(tensor.index, 0.0))
    if unknown := sorted(given.keys() - used):
        raise StageError(f"scales are given for {unknown[0]!r}, which is no weight of the model")
    return {number(index): {"min": -peak, "max": peak} for index, peak in found.items()}


def _bias_steps(
    model: TfliteModel,
    operator: Operator,
    ranges: Mapping[str, Range],
    bits: int | None,
    channels: int,
) -> np.ndarray[Any, Any]:
    """|bias| in steps of the operator's input, a channel; 0 where biases stay float."""
    import numpy as np

    data, bias = _data_and_bias(model, operator)
    span = ranges.get(data.name)
    if bias is None or span is None or bits is None:
        return np.zeros(channels)
    step = (span.high - span.low) / 255 if bits == 8 else max(-span.low, span.high) / 32767
    found: np.ndarray[Any, Any] = np.abs(bias.astype(np.float64).reshape(-1)) / step
    return found


def _given(
    scale: np.ndarray[Any, Any], tensor: Tensor, axis: int, per_tensor: bool
) -> np.ndarray[Any, Any]:
    """Explicit scales in the weight's rank: one a channel of ``axis``, or one in all."""
    import numpy as np

    scale = np.asarray(scale, np.float32).astype(np.float64).reshape(-1)
    wanted = 1 if per_tensor else tensor.shape[axis]
    if scale.size != wanted or not (np.isfinite(scale).all() and scale.min() > 0):
        raise StageError(
            f"{scale.size} scales for weight {tensor.name!r} of shape {tensor.shape}, expected "
            f"{wanted}, all above 0"
        )
    shape = [1] * len(tensor.shape)
    shape[axis] = wanted
    return scale.reshape(shape)


def _require_int32(
    operator: Operator, scale: np.ndarray[Any, Any], least: np.ndarray[Any, Any], exact: bool
) -> None:
    """Refuse scales under which a channel's bias is beyond int32, or too large to be written."""
    import numpy as np

    steps = least / scale
    limit, what = (_EXACT_STEPS, "too many to be exact") if exact else (_INT32, "beyond int32")
    if (beyond := np.flatnonzero(steps > limit)).size:
        channel = int(beyond[steps[beyond].argmax()])
        raise StageError(
            f"the bias of channel {channel} of {operator.label} is {steps[channel]:.3g} steps of "
            f"its input's times its weights' scale: {what}",
            hint="per-channel weights let such a channel have a scale of its own; give it a "
            "larger one",
        )


def _data_and_bias(model: TfliteModel, operator: Operator) -> tuple[Tensor, Any]:
    transposed = operator.code == "TRANSPOSE_CONV"
    place = 3 if transposed else 2
    data = model.tensors[operator.inputs[2 if transposed else 0]]
    index = operator.inputs[place] if len(operator.inputs) > place else -1
    constant = index >= 0 and model.tensors[index].is_constant
    return data, model.constant(model.tensors[index]) if constant else None
