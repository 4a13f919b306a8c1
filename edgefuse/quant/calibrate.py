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
from threading import Event, Lock
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
        feeds: one mapping a sample, keyed by signature name, in the model's own layout; taken
            one at a time.
        threads: samples that run at once.

    Raises:
        DataError: no sample, or NaN or infinity in an activation (naming the tensor).
    """
    from concurrent.futures import ThreadPoolExecutor

    watchers = [_Watcher(model) for _ in range(threads)]
    source, lock, stop = watchers[0].running.source, Lock(), Event()
    stream = enumerate(feeds, 1)

    def work(watcher: _Watcher) -> int:
        done = 0
        try:
            while not stop.is_set():
                with lock:
                    numbered = next(stream, None)
                if numbered is None:
                    break
                watcher.observe(*numbered)
                done += 1
        except BaseException:
            stop.set()
            raise
        return done

    with ThreadPoolExecutor(threads) as pool:
        try:
            working = [pool.submit(work, watcher) for watcher in watchers]
            count = sum(future.result() for future in working)
        finally:
            stop.set()
    if count == 0:
        raise DataError("no calibration samples")
    found = watchers[0].found
    for watcher in watchers[1:]:
        for index, statistics in watcher.found.items():
            found[index].histogram.merge(statistics.histogram)
    for index, inner in _padded_for_maximum(source).items():
        tensor = source.tensors[index]
        found[index] = TensorStatistics(tensor.name, tensor.shape, found[inner].histogram)
    return [found[index] for index in sorted(found)]


class _Watcher:
    """One interpreter, single-threaded so that sums do not depend on the machine, and what it saw.

    Interpreters run beside each other: an invocation gives up Python's lock.
    """

    def __init__(self, model: Path) -> None:
        from edgefuse.tflite.runtime import open_model

        self.running = open_model(model, threads=1, kernels="builtin", preserve_all_tensors=True)
        source = self.running.source
        produced = {i for operator in source.operators for i in operator.outputs}
        produced |= {index for _, index in source.signature_inputs}
        produced -= _padded_for_maximum(source).keys()
        tensors = {i: source.tensors[i] for i in sorted(produced) if source.tensors[i].is_float}
        self.found = {
            i: TensorStatistics(tensor.name, tensor.shape, Histogram())
            for i, tensor in tensors.items()
        }
        self._strides = {i: _stride(tensor.shape) for i, tensor in tensors.items()}

    def observe(self, number: int, feed: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.running.run(feed)
        for index, statistics in self.found.items():
            values = self.running.view(index).reshape(-1)
            try:
                statistics.histogram.add(
                    values, values[number % self._strides[index] :: self._strides[index]]
                )
            except DataError as error:
                raise DataError(
                    f"{error.message} of tensor {statistics.name!r} at calibration sample {number}",
                    hint="look at the sample and at the preprocessing; the float model overflows",
                ) from None
            finally:
                # No view of the interpreter's memory may outlive this.
                del values


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


def _stride(shape: tuple[int, ...]) -> int:
    stride = max(1, -(-math.prod(shape) // _VALUES_PER_SAMPLE))
    channels = shape[-1] if shape else 1
    while math.gcd(stride, channels) != 1:
        stride += 1
    return stride
