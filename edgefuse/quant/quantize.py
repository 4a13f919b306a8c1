"""Apply ranges: a float .tflite to a full-integer one, with ai-edge-quantizer.

Weights are symmetric int8 per output channel, activations asymmetric int8 per tensor, biases
int32. The ranges are ours; the library only writes the file.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError
from edgefuse.quant.ranges import Range

if TYPE_CHECKING:
    from edgefuse.tflite.read import Operator, Tensor, TfliteModel

_CHANNEL_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
_WEIGHT_FLOOR = 1e-6
# Largest bias, in int32 steps, that a channel's weight scale is widened for: room for 8 times more,
# since the library may give the input another scale than its own range says.
_BIAS_STEPS = 2.0**28


def quantize_file(
    source: Path,
    destination: Path,
    ranges: Mapping[str, Range],
    *,
    float_inputs: bool = False,
    float_outputs: bool = False,
) -> None:
    """Write the int8 file.

    Args:
        ranges: one for every activation tensor, by tensor name.
        float_inputs: keep float32 inputs, with a QUANTIZE behind them.
        float_outputs: keep float32 outputs, with a DEQUANTIZE before them.

    Raises:
        StageError: the library refuses the model.
    """
    import numpy as np

    from edgefuse.quant.repair import repaired
    from edgefuse.tflite.read import read_model
    from edgefuse.tflite.runtime import quiet_native

    model = read_model(source)
    statistics: dict[str, Any] = {}
    for tensor in model.tensors:
        if (found := ranges.get(tensor.name)) is not None:
            shape = [1] * len(tensor.shape)
            statistics[tensor.name] = {
                "min": np.full(shape, found.low, np.float32),
                "max": np.full(shape, found.high, np.float32),
            }
    statistics.update(_floored_channels(model, ranges))
    with contextlib.redirect_stdout(io.StringIO()), quiet_native():
        from ai_edge_quantizer import quantizer, recipe

        try:
            worker = quantizer.Quantizer(str(source))
            worker.load_quantization_recipe(recipe.static_wi8_ai8())
            for operation, wanted in (("INPUT", float_inputs), ("OUTPUT", float_outputs)):
                if wanted:
                    worker.update_quantization_recipe(
                        regex=".*", operation_name=operation, algorithm_key="no_quantize"
                    )
            result = worker.quantize(statistics)
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise StageError(
                f"the quantiser refuses the model: {type(error).__name__}: {text}",
                where=source.name,
                hint="`edgefuse run --until convert` leaves the float model to look at",
            ) from error
    data = result.quantized_model
    if not data:
        raise StageError("the quantiser wrote nothing", where=source.name)
    destination.write_bytes(repaired(bytes(data), model))


def _floored_channels(model: TfliteModel, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Explicit weight ranges where a channel is (nearly) zero: its scale would be zero, or its
    bias would not fit int32 (bias / (input scale * weight scale)). Either floor costs nothing:
    one is far below the step of any other channel, the other 2**-20 of the channel's bias."""
    import numpy as np

    found: dict[str, Any] = {}
    for operator in model.operators:
        axis = _CHANNEL_AXES.get(operator.code)
        if axis is None:
            continue
        tensor = model.tensors[operator.inputs[1]]
        if not tensor.is_constant or not tensor.is_float:
            continue
        weights = np.abs(model.constant(tensor)).astype(np.float64)
        others = tuple(a for a in range(weights.ndim) if a != axis)
        peak = weights.max(axis=others, keepdims=True)
        floor = np.full(peak.size, _WEIGHT_FLOOR * max(float(weights.max()), 1e-30))
        data, bias = _data_and_bias(model, operator)
        if bias is not None and (span := ranges.get(data.name)) is not None:
            step = (span.high - span.low) / 255
            floor = np.maximum(floor, 127 * np.abs(bias.reshape(-1)) / (step * _BIAS_STEPS))
        if (peak.reshape(-1) < floor).any():
            peak = np.maximum(peak, floor.reshape(peak.shape)).astype(np.float32)
            found[tensor.name] = {"min": -peak, "max": peak}
    return found


def _data_and_bias(model: TfliteModel, operator: Operator) -> tuple[Tensor, Any]:
    transposed = operator.code == "TRANSPOSE_CONV"
    place = 3 if transposed else 2
    data = model.tensors[operator.inputs[2 if transposed else 0]]
    index = operator.inputs[place] if len(operator.inputs) > place else -1
    constant = index >= 0 and model.tensors[index].is_constant
    return data, model.constant(model.tensors[index]) if constant else None
