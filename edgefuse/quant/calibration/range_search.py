"""Ranges that lose least by a measure, searched over a histogram: squared error and divergence.

Both look at pairs of ends, low <= 0 <= high: first on a coarse grid, each end a power of a fixed
ratio below its extreme, then on a fine one around the best pair. All pairs are weighed at once
from running sums over the bins, so a search takes milliseconds and never looks at values again.

Squared error of a pair, with step s = (high - low) / 255 and counts c of values x:

    sum over x < low  of c (x - low)^2  +  sum over x > high of c (x - high)^2     clipped
    + sum over |x| < s/2 of c x^2                                     rounded to the exact zero
    + (values in between) s^2 / 12                                    rounded elsewhere

Divergence (Migacz, 8-bit inference with TensorRT, GTC 2017, made asymmetric): the Kullback-Leibler
divergence of the clipped values' histogram, its tails added to the end bins, from the same
histogram without tails, its values spread evenly over the bins that share an int8 level and hold
any value. The bin of the exact zero, where a ReLU puts half of all values, is levelled to its
neighbours first: every range represents it exactly, and it says nothing on the range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgefuse.quant.calibration.histogram import BINS, Histogram

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Float64 = npt.NDArray[np.float64]

_LEVELS = 256
_OCTAVES = 6
_CENTRE = BINS // 2
_FEWEST = 0.5


def least_squares(histogram: Histogram) -> tuple[float, float]:
    """The ends [low, high] of the least expected squared error in int8."""
    import numpy as np

    width, counts = histogram.bin_width, histogram.counts
    centres = (np.arange(BINS) + 0.5 - _CENTRE) * width
    sums = [_running(counts * centres**power) for power in (0, 1, 2)]

    def cost(low: Float64, high: Float64) -> Float64:
        step = (high - low) / (_LEVELS - 1)
        first, last = _place(low / width), _place(high / width)
        reach = step / 2 / width
        before = np.clip(_place(-reach), first, last)
        after = np.clip(_place(reach), first, last)
        inside, near = (
            sums[0][last] - sums[0][first],
            sums[0][after] - sums[0][before],
        )
        below = sums[2][first] - 2 * low * sums[1][first] + low**2 * sums[0][first]
        left = [total[-1] - total[last] for total in sums]
        above = left[2] - 2 * high * left[1] + high**2 * left[0]
        rounded = (inside - near) * step**2 / 12 + sums[2][after] - sums[2][before]
        return np.asarray(below + above + rounded)

    return _search(histogram, cost, per_octave=16, finer=16)


def least_divergence(histogram: Histogram) -> tuple[float, float]:
    """The ends [low, high] of the least Kullback-Leibler divergence in int8."""
    import numpy as np

    width = histogram.bin_width
    counts = histogram.counts.astype(np.float64)
    counts[_CENTRE] = max(counts[_CENTRE - 1], counts[_CENTRE + 1])
    total = max(counts.sum(), 1.0)
    mass, filled, own = _running(counts), _running(counts > 0), _running(_x_log_x(counts))
    level = np.arange(1, _LEVELS)

    def cost(low: Float64, high: Float64) -> Float64:
        step = (high - low) / (_LEVELS - 1)
        zero = np.round(-low / step)
        first, last = _place(low / width), _place(high / width)
        first, last = np.minimum(first, _CENTRE), np.maximum(last, _CENTRE + 1)
        edges = _place((level - zero[:, None] - 0.5) * (step / width)[:, None])
        edges = np.clip(edges, first[:, None], last[:, None])
        edges = np.concatenate([first[:, None], edges, last[:, None]], axis=1)
        held = np.diff(mass[edges], axis=1)
        bins = np.maximum(np.diff(filled[edges], axis=1), 1.0)
        tails = np.stack([mass[first], mass[-1] - mass[last]], axis=1)
        ends = np.stack([counts[first], counts[last - 1]], axis=1)
        clipped = held.copy()
        clipped[:, 0] += tails[:, 0]
        clipped[:, -1] += tails[:, 1]
        spread = np.log(np.maximum(held, _FEWEST) / bins)
        entropy = own[last] - own[first] + (_x_log_x(ends + tails) - _x_log_x(ends)).sum(1)
        within = np.maximum(held.sum(1), _FEWEST)
        divergence = (entropy - (clipped * spread).sum(1)) / total + np.log(within / total)
        return np.asarray(divergence)

    return _search(histogram, cost, per_octave=3, finer=4)


def _search(
    histogram: Histogram,
    cost: Callable[[Float64, Float64], Float64],
    per_octave: int,
    finer: int,
) -> tuple[float, float]:
    import numpy as np

    lows, highs = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
    coarse = 2.0 ** (-np.arange(_OCTAVES * per_octave + 1) / per_octave)
    low, high = _best(cost, _ends(lows, coarse), _ends(highs, coarse))
    fine = 2.0 ** (np.arange(finer, -finer - 1, -1) / finer / per_octave)
    near_low = np.maximum(_ends(low, fine), lows)
    near_high = np.minimum(_ends(high, fine), highs)
    return _best(cost, near_low, near_high)


def _ends(extreme: float, fractions: Float64) -> Float64:
    return extreme * fractions if extreme else fractions[:1] * 0.0


def _best(
    cost: Callable[[Float64, Float64], Float64], lows: Float64, highs: Float64
) -> tuple[float, float]:
    """The cheapest pair; of equals the first, which is the widest."""
    import numpy as np

    low, high = (grid.reshape(-1) for grid in np.meshgrid(lows, highs, indexing="ij"))
    best = int(np.argmin(cost(low, high)))
    return float(low[best]), float(high[best])


def _running(values: np.ndarray[Any, Any]) -> Float64:
    """Entry k: the sum of the first k values."""
    import numpy as np

    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _place(bins: Float64) -> np.ndarray[Any, Any]:
    """The bin edge next to a value given in bin widths."""
    import numpy as np

    return np.clip(np.round(bins) + _CENTRE, 0, BINS).astype(np.intp)


def _x_log_x(values: Float64) -> Float64:
    import numpy as np

    return np.asarray(values * np.log(np.maximum(values, 1.0)))
