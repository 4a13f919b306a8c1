"""From statistics to quantisation ranges.

A range [low, high] always holds zero, so that padding and ReLU are exact (Jacob et al., 2018,
arXiv:1712.05877, section 2.1). Ranges are rounded outwards to 10 significant bits: differences in
the last bits of a float kernel, from CPU to CPU, then do not change the quantised file.

The model's inputs and outputs are never cut: an output cut at the top makes ties among the very
scores that decide the class. MobileNetV2 on ImageNet pictures, mean of six splits of 100 for
calibration and 400 judged: cutting the logits with all other tensors costs a point of top-1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from edgefuse.quant.calibrate import TensorStatistics

_BITS = 10
_SMALLEST = 1e-6


@dataclass(frozen=True)
class Range:
    """The real values that int8 -128..127 shall span, and the share of values outside."""

    low: float
    high: float
    clipped_fraction: float


def choose(
    statistics: Sequence[TensorStatistics],
    method: Literal["percentile", "minmax"],
    tail_percent: float,
    whole: Collection[str] = (),
) -> dict[str, Range]:
    """One range a tensor, by tensor name.

    Args:
        method: ``minmax`` keeps every value; ``percentile`` cuts ``tail_percent`` off each end.
        whole: tensors that keep every value in any case: the model's inputs and outputs.
    """
    tail = tail_percent / 100 if method == "percentile" else 0.0
    return {s.name: _range(s, 0.0 if s.name in whole else tail) for s in statistics}


def _range(statistics: TensorStatistics, tail: float) -> Range:
    histogram = statistics.histogram
    low, high = histogram.minimum, histogram.maximum
    if tail > 0:
        low, high = histogram.quantile(tail), histogram.quantile(1 - tail)
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < _SMALLEST:
        high = low + _SMALLEST
    low, high = _outwards(low), _outwards(high)
    total = int(histogram.counts.sum())
    centre = len(histogram.counts) // 2
    first = int((low / histogram.limit + 1) * centre)
    last = int((high / histogram.limit + 1) * centre)
    inside = int(histogram.counts[max(first, 0) : last + 1].sum())
    return Range(low, high, 1 - inside / total)


def _outwards(value: float) -> float:
    """The nearest number of 10 significant bits that is no smaller in magnitude."""
    if value == 0.0:
        return 0.0
    mantissa, exponent = math.frexp(value)
    return math.copysign(math.ldexp(math.ceil(abs(mantissa) * 2**_BITS), exponent - _BITS), value)
