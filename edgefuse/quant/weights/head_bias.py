"""Bias correction of the classifier's head: the mean error of each output, taken off its bias.

Rounding and clipping in the body shift the mean of every logit by a little, each class by another
amount, and so change their order. On the calibration samples

    b'[c] = b[c] + round(mean(float[c] - int8[c]) / (s_input * s_weight[c]))

where the scales are those of the head's operator. Only the last operator is corrected: earlier
layers would need correcting one by one on activations that are not clipped (Nagel et al., 2019,
arXiv:1906.04721, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.read import Operator, TfliteModel

_STEPS = 8


def correct_head(
    float_file: Path,
    int8_file: Path,
    feeds: Iterable[Mapping[str, np.ndarray[Any, Any]]],
) -> dict[str, float]:
    """Rewrite the head's int32 bias in ``int8_file``, in place.

    The mean error is rounded to an eighth of the output's step, so that the last bits of a CPU's
    float kernels do not change the file.

    Args:
        feeds: calibration samples, float32 by signature name in the models' layout.

    Returns:
        ``mean_shift`` and ``max_shift``: size of the correction over the outputs, real values.

    Raises:
        StageError: the only output does not come from a FULLY_CONNECTED operator with a bias.
    """
    import numpy as np

    from edgefuse.tflite.read import read_model
    from edgefuse.tflite.runtime import open_model

    model = read_model(int8_file)
    head = _head(model)
    bias = model.tensors[head.inputs[2]]
    output = model.tensors[head.outputs[0]]
    pair = [open_model(path, threads=2) for path in (float_file, int8_file)]
    name = pair[0].signature.outputs[0].name
    total, count = np.zeros(output.shape[-1]), 0
    for feed in feeds:
        exact, quantised = (m.run_float(feed)[name].reshape(-1, output.shape[-1]) for m in pair)
        total += (exact.astype(np.float64) - quantised).sum(axis=0)
        count += len(exact)
    if count == 0:
        raise StageError("no samples to correct the head's bias on")
    step = output.scales[0] / _STEPS
    shift = np.round(total / count / step) * step
    corrected = model.constant(bias).astype(np.int64)
    corrected = corrected + np.round(shift / np.asarray(bias.scales)).astype(np.int64)
    limits = np.iinfo(np.int32)
    if corrected.min() < limits.min or corrected.max() > limits.max:
        raise StageError("the corrected bias does not fit int32", where=bias.name)
    begin, length = model.spans[bias.buffer]
    data = bytearray(int8_file.read_bytes())
    data[begin : begin + length] = corrected.astype("<i4").tobytes()
    int8_file.write_bytes(bytes(data))
    size = np.abs(shift)
    return {"mean_shift": float(size.mean()), "max_shift": float(size.max())}


def _head(model: TfliteModel) -> Operator:
    head = _maker(model, model.outputs[0]) if len(model.outputs) == 1 else None
    if head is not None and head.code == "DEQUANTIZE":
        head = _maker(model, head.inputs[0])
    if (
        head is None
        or head.code != "FULLY_CONNECTED"
        or len(head.inputs) < 3
        or head.inputs[2] < 0
        or model.tensors[head.inputs[2]].dtype != "int32"
    ):
        found = head.label if head else f"{len(model.outputs)} outputs"
        raise StageError(
            f"quantize.correct_bias: head needs one output from a FULLY_CONNECTED with an int32 "
            f"bias, found {found}",
            hint="set quantize.correct_bias: none",
        )
    return head


def _maker(model: TfliteModel, tensor: int) -> Operator | None:
    return next((op for op in model.operators if tensor in op.outputs), None)
