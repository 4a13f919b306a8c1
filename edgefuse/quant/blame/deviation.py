"""What a quantised tensor does to its values, streamed over samples with constant memory.

A float file runs beside its int8 twin, which has every layer's float twin in it on the same int8
inputs (:meth:`edgefuse.tflite.mixed.Mixer.shadowed`). For a layer's tensor y with the integers q:

    accumulated:  y(float file)          against  s (q - z): this layer and all before it
    alone:        f(int8 inputs, w, b)   against  s (q - z): this layer, by the int8 kernel itself
    saturated:    q at its limit, y(float file) beyond the limit by more than half a step

Samples are dealt to the threads by number, so that equal samples give equal figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError
from edgefuse.quant.calibration.histogram import Histogram

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.read import Tensor

    Array = np.ndarray[Any, Any]

_VALUES_PER_SAMPLE = 16384
THREADS = 2


@dataclass
class Deviation:
    """Sums over values r of a reference and c of a candidate."""

    signal: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    energy: float = 0.0

    def add(self, reference: Array, candidate: Array) -> None:
        """Take in values of one shape."""
        import numpy as np

        r, c = (np.asarray(v, np.float64).reshape(-1) for v in (reference, candidate))
        d = r - c

        def dot(a: Array, b: Array) -> float:
            return float(np.einsum("i,i->", a, b))  # BLAS would sum in another order each time

        self.signal += dot(r, r)
        self.noise += dot(d, d)
        self.product += dot(r, c)
        self.energy += dot(c, c)

    def merge(self, other: Deviation) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def noise_ratio(self) -> float:
        """Noise over signal; 0 where there is no signal."""
        return self.noise / self.signal if self.signal > 0 else 0.0

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(signal / noise); None without noise or without signal."""
        if self.noise <= 0 or self.signal <= 0:
            return None
        return 10 * math.log10(self.signal / self.noise)

    @property
    def cosine(self) -> float | None:
        """r.c / (|r| |c|); None when either is all zero."""
        length = math.sqrt(self.signal * self.energy)
        return max(-1.0, min(1.0, self.product / length)) if length > 0 else None


@dataclass
class Seen:
    """What one tensor took on the samples."""

    accumulated: Deviation = field(default_factory=Deviation)
    alone: Deviation = field(default_factory=Deviation)
    values: Histogram = field(default_factory=Histogram)
    count: int = 0
    saturated_low: int = 0
    saturated_high: int = 0

    def add(self, number: int, exact: Array, held: Array, tensor: Tensor, own: Array) -> None:
        """Take in one sample.

        Args:
            number: of the sample; spreads what is sampled for the quantiles.
            exact: of the float file.
            held: the integers of ``tensor``.
            own: what ``held`` is judged by alone.
        """
        import numpy as np

        exact, held, own = (v.reshape(-1) for v in (exact, held, own))
        stride = max(1, -(-exact.size // _VALUES_PER_SAMPLE)) | 1
        self.values.add(exact, exact[number % stride :: stride] if stride < exact.size else exact)
        step, zero = tensor.scales[0], tensor.zero_points[0] if tensor.zero_points else 0
        real = (held.astype(np.float64) - zero) * step
        self.accumulated.add(exact, real)
        self.alone.add(own, real)
        limits = np.iinfo(held.dtype)
        low, high = (step * (end - zero) for end in (limits.min, limits.max))
        self.count += exact.size
        below = (held == limits.min) & (exact < low - step / 2)
        above = (held == limits.max) & (exact > high + step / 2)
        self.saturated_low += int(np.count_nonzero(below))
        self.saturated_high += int(np.count_nonzero(above))

    def merge(self, other: Seen) -> None:
        self.accumulated.merge(other.accumulated)
        self.alone.merge(other.alone)
        self.values.merge(other.values)
        self.count += other.count
        self.saturated_low += other.saturated_low
        self.saturated_high += other.saturated_high


@dataclass(frozen=True)
class Place:
    """Where a tensor is found: in the float file, in the shadowed int8 file, and its reference
    there (None for a model's input, which has none but the float value)."""

    name: str
    float_tensor: int
    int8_tensor: int
    shadow: int | None


def observe(
    float_file: Path,
    shadowed_file: Path,
    places: Sequence[Place],
    feeds: Mapping[str, Array],
    int8_names: Mapping[str, str],
    progress: Callable[[int], None] = lambda _: None,
) -> list[Seen]:
    """Run all samples through both files.

    Args:
        feeds: by input of the float file, samples along the first axis.
        int8_names: the int8 file's name of each input.
        progress: told how many samples are done.

    Returns:
        One :class:`Seen` a place.

    Raises:
        DataError: NaN or infinity in the float file, naming the tensor and the sample.
    """
    from concurrent.futures import ThreadPoolExecutor

    from edgefuse.tflite.runtime import open_model

    def opened(path: Path) -> Any:
        return open_model(path, threads=1, kernels="builtin", preserve_all_tensors=True)

    count = len(next(iter(feeds.values())))
    pairs = [(opened(float_file), opened(shadowed_file)) for _ in range(min(THREADS, count))]
    stop, done = Event(), [0] * len(pairs)

    def work(worker: int) -> list[Seen]:
        exact, quantised = pairs[worker]
        found = [Seen() for _ in places]
        try:
            for number in range(worker, count, len(pairs)):
                if stop.is_set():
                    break
                feed = {name: value[number] for name, value in feeds.items()}
                exact.run(feed)
                quantised.run({int8_names[name]: value for name, value in feed.items()})
                for place, seen in zip(places, found):
                    _add(seen, number, place, exact, quantised)
                done[worker] += 1
                progress(sum(done))
        except BaseException:
            stop.set()
            raise
        return found

    with ThreadPoolExecutor(len(pairs)) as pool:
        try:
            working = [pool.submit(work, worker) for worker in range(len(pairs))]
            parts = [future.result() for future in working]
        finally:
            stop.set()
    for part in parts[1:]:
        for seen, other in zip(parts[0], part):
            seen.merge(other)
    return parts[0]


def _add(seen: Seen, number: int, place: Place, exact: Any, quantised: Any) -> None:
    values = exact.view(place.float_tensor)
    held = quantised.view(place.int8_tensor)
    own = values if place.shadow is None else quantised.view(place.shadow)
    try:
        seen.add(number, values, held, quantised.source.tensors[place.int8_tensor], own)
    except DataError as error:
        raise DataError(
            f"{error.message} of tensor {place.name!r} of the float file at sample {number + 1}",
            hint="look at the sample and at the preprocessing; the float model overflows",
        ) from None
    finally:
        # No view of the interpreter's memory may outlive this.
        del values, held, own
