"""Calibration: the values that each activation takes on real samples, streamed.

The float .tflite runs with the built-in kernels and every tensor kept; each tensor feeds a
:class:`~.histogram.Histogram`. Extremes are exact. For the quantiles a large tensor
is sampled evenly, with a stride that has no factor in common with its channels and an offset that
moves from sample to sample: 32,768 values a sample decide a quantile of 1e-4 to well below the
int8 step, and halve the time. Memory does not grow with the number of samples.

Samples go in blocks. At the end of a block all interpreters have rested and their histograms are
merged: there a :class:`~.convergence.Convergence` may look at what the samples so
far say, and a :class:`~.resume.Resume` may save it. Merging is exact, so neither
threads, nor blocks, nor an interruption change the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError
from edgefuse.quant.calibration.histogram import Histogram

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.quant.calibration.convergence import Convergence
    from edgefuse.quant.calibration.resume import Resume
    from edgefuse.tflite.read import TfliteModel

#: How many of the greatest scores of a sample are watched.
RANKS = 10
_VALUES_PER_SAMPLE = 32768
_AS_GOOD_AS_MINUS_INF = -1e30
_SAMPLES_PER_BLOCK = 32


class Ranks:
    """The least that the first, second, third... greatest score was, over all samples."""

    def __init__(self, classes: int) -> None:
        import numpy as np

        self.least = np.full(min(RANKS, classes), np.inf)

    def add(self, scores: np.ndarray[Any, Any]) -> None:
        """Take in scores [batch, classes]."""
        import numpy as np

        count = len(self.least)
        greatest = -np.sort(-np.partition(scores, -count, axis=1)[:, -count:], axis=1)
        np.minimum(self.least, greatest.min(axis=0), out=self.least)

    def merge(self, other: Ranks) -> None:
        import numpy as np

        np.minimum(self.least, other.least, out=self.least)

    def clear(self) -> None:
        self.least[:] = float("inf")


@dataclass(frozen=True)
class TensorStatistics:
    """What one activation tensor took, over all calibration samples.

    Attributes:
        ranks: of a tensor [batch, classes] that is an output, or that a softmax makes one of.
    """

    name: str
    shape: tuple[int, ...]
    histogram: Histogram
    ranks: Ranks | None = None

    def merge(self, other: TensorStatistics) -> None:
        self.histogram.merge(other.histogram)
        if self.ranks is not None and other.ranks is not None:
            self.ranks.merge(other.ranks)

    def clear(self) -> None:
        self.histogram.clear()
        if self.ranks is not None:
            self.ranks.clear()


def calibrate(
    model: Path,
    feeds: Iterable[Mapping[str, np.ndarray[Any, Any]]],
    threads: int = 2,
    *,
    convergence: Convergence | None = None,
    resume: Resume | None = None,
) -> list[TensorStatistics]:
    """Run the samples through a float .tflite.

    Args:
        model: a float .tflite with one subgraph.
        feeds: one mapping a sample, keyed by signature name, in the model's own layout; taken
            one at a time.
        threads: samples that run at once.
        convergence: told of the statistics after some numbers of feeds.
        resume: where an interrupted calibration goes on, and where this one may be gone on with.

    Raises:
        DataError: no sample, a sample that does not fit the model, or NaN or infinity in an
            activation (naming the tensor).
    """
    from concurrent.futures import ThreadPoolExecutor

    watchers = [_Watcher(model) for _ in range(threads)]
    source = watchers[0].running.source
    total = _watched(source)
    stream, done = iter(feeds), 0
    if resume is not None:
        done = resume.restore(list(total.values()), convergence)
        if sum(1 for _ in islice(stream, done)) < done:
            raise DataError(
                "the calibration samples changed during the run: there are fewer than before",
                hint="run again",
            )
    saved_s = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        while True:
            size = _block(done, convergence, resume)
            count = _run_block(pool, watchers, islice(enumerate(stream, done + 1), size))
            for watcher in watchers:
                for index, statistics in watcher.found.items():
                    total[index].merge(statistics)
                    statistics.clear()
            done += count
            if size is None or count < size:
                break
            if convergence is not None:
                convergence.look(done, _with_padded(source, total))
            if resume is not None and time.monotonic() - saved_s >= resume.every_s:
                resume.save(done, list(total.values()), convergence)
                saved_s = time.monotonic()
    if done == 0:
        raise DataError(
            "no calibration samples",
            hint="name samples in data.calibration",
        )
    return _with_padded(source, total)


def _block(done: int, convergence: Convergence | None, resume: Resume | None) -> int | None:
    """How many feeds until the interpreters rest; None: to the end."""
    size = _SAMPLES_PER_BLOCK - done % _SAMPLES_PER_BLOCK if resume is not None else None
    if convergence is not None:
        later = [count - done for count in convergence.counts if count > done]
        size = min((s for s in (size, *later) if s is not None), default=None)
    return size


def _run_block(
    pool: Any, watchers: list[_Watcher], numbered: Iterator[tuple[int, Mapping[str, Any]]]
) -> int:
    """Share the feeds among the interpreters; their number."""
    lock, stop = Lock(), Event()

    def work(watcher: _Watcher) -> int:
        done = 0
        try:
            while not stop.is_set():
                with lock:
                    taken = next(numbered, None)
                if taken is None:
                    break
                watcher.observe(*taken)
                done += 1
        except BaseException:
            stop.set()
            raise
        return done

    try:
        working = [pool.submit(work, watcher) for watcher in watchers]
        return sum(future.result() for future in working)
    finally:
        stop.set()


def _with_padded(
    source: TfliteModel, total: Mapping[int, TensorStatistics]
) -> list[TensorStatistics]:
    found = dict(total)
    for index, inner in _padded_for_maximum(source).items():
        tensor = source.tensors[index]
        found[index] = TensorStatistics(tensor.name, tensor.shape, total[inner].histogram)
    return [found[index] for index in sorted(found)]


def _watched(source: TfliteModel) -> dict[int, TensorStatistics]:
    """Empty statistics of every float activation by tensor index, in the order of execution."""
    order = [index for _, index in source.signature_inputs]
    order += [index for operator in source.operators for index in operator.outputs]
    padded, scores = _padded_for_maximum(source), _score_tensors(source)
    found = {}
    for index in dict.fromkeys(order):
        tensor = source.tensors[index]
        if tensor.is_float and index not in padded and 0 not in tensor.shape:
            ranks = Ranks(tensor.shape[1]) if index in scores else None
            found[index] = TensorStatistics(tensor.name, tensor.shape, Histogram(), ranks)
    return found


class _Watcher:
    """One interpreter, single-threaded so that sums do not depend on the machine, and what it saw.

    Interpreters run beside each other: an invocation gives up Python's lock.
    """

    def __init__(self, model: Path) -> None:
        from edgefuse.tflite.runtime import open_model

        self.running = open_model(model, threads=1, kernels="builtin", preserve_all_tensors=True)
        self.found = _watched(self.running.source)
        self._strides = {i: _stride(statistics.shape) for i, statistics in self.found.items()}

    def observe(self, number: int, feed: Mapping[str, np.ndarray[Any, Any]]) -> None:
        try:
            self.running.feed(feed)
        except DataError as error:
            error.message = f"calibration sample {number}: {error.message}"
            error.hint = error.hint or (
                "samples are float32, keyed by the model's input names, in its shapes"
            )
            raise
        self.running.invoke()
        for index, statistics in self.found.items():
            whole = self.running.view(index)
            values = whole.reshape(-1)
            try:
                statistics.histogram.add(
                    values, values[number % self._strides[index] :: self._strides[index]]
                )
                if statistics.ranks is not None:
                    statistics.ranks.add(whole)
            except DataError as error:
                raise DataError(
                    f"{error.message} of tensor {statistics.name!r} at calibration sample {number}",
                    hint="look at the sample and at the preprocessing; the float model overflows",
                ) from None
            finally:
                # No view of the interpreter's memory may outlive this.
                del values, whole


def _score_tensors(source: TfliteModel) -> set[int]:
    """Outputs [batch, classes], and what the softmax that makes an output reads."""
    found = set(source.outputs)
    found |= {o.inputs[0] for o in source.operators if o.code == "SOFTMAX" and found & {*o.outputs}}
    return {i for i in found if len(source.tensors[i].shape) == 2 and source.tensors[i].shape[1]}


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
