"""Calibration: the values that each activation takes on real samples, streamed.

The float .tflite runs with the built-in kernels and every tensor kept; each tensor feeds a
:class:`~edgefuse.quant.histogram.Histogram`. Extremes are exact. For the quantiles a large tensor
is sampled evenly, with a stride that has no factor in common with its channels and an offset that
moves from sample to sample: 32,768 values a sample decide a quantile of 1e-4 to well below the
int8 step, and halve the time. Memory does not grow with the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError
from edgefuse.quant.histogram import Histogram

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.read import TfliteModel

_VALUES_PER_SAMPLE = 32768
_AS_GOOD_AS_MINUS_INF = -1e30


@dataclass(frozen=True)
class TensorStatistics:
    """What one activation tensor took, over all calibration samples."""

    name: str
    shape: tuple[int, ...]
    histogram: Histogram


def calibrate(
    model: Path, feeds: Iterable[Mapping[str, np.ndarray[Any, Any]]], threads: int = 2
) -> list[TensorStatistics]:
    """Run the samples through a float .tflite.

    Args:
        model: a float .tflite with one subgraph.
        feeds: one mapping a sample, keyed by signature name, in the model's own layout.

    Raises:
        DataError: no sample, or NaN or infinity in an activation (naming the tensor).
    """
    from edgefuse.tflite.runtime import open_model

    running = open_model(model, threads=threads, kernels="builtin", preserve_all_tensors=True)
    source = running.source
    produced = {i for operator in source.operators for i in operator.outputs}
    produced |= {index for _, index in source.signature_inputs}
    padded = _padded_for_maximum(source)
    watched = {
        index: (TensorStatistics(tensor.name, tensor.shape, Histogram()), _stride(tensor.shape))
        for index in sorted(produced - padded.keys())
        if (tensor := source.tensors[index]).is_float
    }
    count = 0
    for count, feed in enumerate(feeds, 1):
        running.run(feed)
        for index, (statistics, stride) in watched.items():
            try:
                _observe(running.view(index).reshape(-1), statistics.histogram, stride, count)
            except DataError as error:
                raise DataError(
                    f"{error.message} of tensor {statistics.name!r} at calibration sample {count}",
                    hint="look at the sample and at the preprocessing; the float model overflows",
                ) from None
    if count == 0:
        raise DataError("no calibration samples")
    found = {index: statistics for index, (statistics, _) in watched.items()}
    for index, inner in padded.items():
        tensor = source.tensors[index]
        found[index] = TensorStatistics(tensor.name, tensor.shape, found[inner].histogram)
    return [found[index] for index in sorted(found)]


def _padded_for_maximum(source: TfliteModel) -> dict[int, int]:
    """Outputs of PADV2 operators that pad with minus infinity (or as good as) for a MAX_POOL_2D,
    and their inputs: the padding is no value of the tensor. With the input's own range the
    constant becomes the least int8 value, which no maximum prefers: exact.
    """
    users: dict[int, set[str]] = {}
    for operator in source.operators:
        for index in operator.inputs:
            users.setdefault(index, set()).add(operator.code)
    found = {}
    for operator in source.operators:
        if operator.code != "PADV2" or users.get(operator.outputs[0]) != {"MAX_POOL_2D"}:
            continue
        constant = source.tensors[operator.inputs[2]]
        if constant.is_constant and float(source.constant(constant).max()) <= _AS_GOOD_AS_MINUS_INF:
            found[operator.outputs[0]] = operator.inputs[0]
    return found


def _observe(values: np.ndarray[Any, Any], histogram: Histogram, stride: int, offset: int) -> None:
    """A function of its own: no view of the interpreter's memory may outlive it."""
    histogram.add(values, values[offset % stride :: stride])


def _stride(shape: tuple[int, ...]) -> int:
    stride = max(1, -(-math.prod(shape) // _VALUES_PER_SAMPLE))
    channels = shape[-1] if shape else 1
    while math.gcd(stride, channels) != 1:
        stride += 1
    return stride
