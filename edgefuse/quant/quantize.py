"""Apply ranges: a float .tflite to a full-integer one, with ai-edge-quantizer.

Weights are symmetric int8 per output channel, activations asymmetric int8 per tensor, biases
int32. The ranges are ours; the library only writes the file.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefuse.errors import StageError
from edgefuse.quant.ranges import Range

_CHANNEL_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
_WEIGHT_FLOOR = 1e-6


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
    statistics.update(_dead_channels(model))
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
    destination.write_bytes(bytes(data))


def _dead_channels(model: Any) -> dict[str, Any]:
    """Explicit weight ranges where some channel is (nearly) zero: its scale would be zero, and
    its bias would not fit int32. The floor is far below the step of any other channel."""
    import numpy as np

    found: dict[str, Any] = {}
    for operator in model.operators:
        axis = _CHANNEL_AXES.get(operator.code)
        if axis is None:
            continue
        tensor = model.tensors[operator.inputs[1]]
        if not tensor.is_constant:
            continue
        weights = np.abs(model.constant(tensor))
        others = tuple(a for a in range(weights.ndim) if a != axis)
        peak = weights.max(axis=others, keepdims=True)
        floor = _WEIGHT_FLOOR * max(float(weights.max()), 1e-30)
        if float(peak.min()) < floor:
            peak = np.maximum(peak, floor).astype(np.float32)
            found[tensor.name] = {"min": -peak, "max": peak}
    return found
