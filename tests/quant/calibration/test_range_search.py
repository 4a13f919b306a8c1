"""The searched ranges are compared with what quantising every value really costs."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.quant.calibration.histogram import Histogram
from edgefuse.quant.calibration.range_search import least_divergence, least_squares

DRAW = np.random.default_rng(0)
COUNT = 50_000
SHAPES = {
    "normal": DRAW.normal(0.3, 1, COUNT),
    "laplace": DRAW.laplace(0, 0.5, COUNT),
    "relu": np.maximum(DRAW.normal(-0.5, 1, COUNT), 0),
    "relu6": np.clip(DRAW.normal(2, 3, COUNT), 0, 6),
    "negative": -np.abs(DRAW.standard_t(4, COUNT)),
    "outliers": np.append(DRAW.normal(0, 1, COUNT), [300.0, -40.0]),
}


def _histogram(values: np.ndarray) -> Histogram:
    found = Histogram()
    values = values.astype(np.float32)
    found.add(values, values)
    return found


def _error(values: np.ndarray, low: float, high: float) -> float:
    """Mean squared error of int8 with an integer zero point."""
    step = (high - low) / 255
    zero = np.round(-128 - low / step)
    quantised = np.clip(np.round(values / step) + zero, -128, 127)
    return float(np.mean((values - step * (quantised - zero)) ** 2))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_range_nearby_has_a_smaller_squared_error(shape: str) -> None:
    values = SHAPES[shape].astype(np.float32)
    low, high = least_squares(_histogram(values))
    assert values.min() <= low <= 0 <= high <= values.max() or low == 0 or high == 0
    best = _error(values, low, high)
    for down in (0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.6):
        for up in (0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.6):
            # Rounding the zero point moves a step's worth, which the search leaves out.
            assert best <= _error(values, low * down, high * up) * 1.03


def test_squared_error_sees_both_ends() -> None:
    low, high = least_squares(_histogram(SHAPES["outliers"]))
    assert -39 < low < -3 and 3 < high < 299
    assert _error(SHAPES["outliers"], low, high) < 0.95 * _error(SHAPES["outliers"], -40, 300)


def test_values_of_one_sign_keep_zero_as_an_end() -> None:
    for search in (least_squares, least_divergence):
        assert search(_histogram(SHAPES["relu"]))[0] == 0.0
        assert search(_histogram(SHAPES["negative"]))[1] == 0.0


def _divergence(histogram: Histogram, low: float, high: float) -> float:
    """By its definition, bin by bin."""
    counts = histogram.counts.astype(np.float64)
    counts[4096] = max(counts[4095], counts[4097])
    first, last = (int(np.round(v / histogram.bin_width)) + 4096 for v in (low, high))
    first, last = max(min(first, 4096), 0), min(max(last, 4097), 8192)
    kept = counts[first:last]
    clipped = kept.copy()
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[last:].sum()
    step = (high - low) / 255
    zero = np.round(-low / step)
    edges = np.round((np.arange(1, 256) - zero - 0.5) * step / histogram.bin_width) + 4096
    level = np.searchsorted(edges, np.arange(first, last), side="right")
    held = np.bincount(level, kept, 256)
    bins = np.maximum(np.bincount(level, kept > 0, 256), 1)
    spread = np.maximum(held, 0.5)[level] / bins[level] / max(kept.sum(), 0.5)
    p = clipped / counts.sum()
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / spread[some])))


@pytest.mark.parametrize("shape", SHAPES)
def test_divergence_is_least_by_its_definition(shape: str) -> None:
    histogram = _histogram(SHAPES[shape])
    low, high = least_divergence(histogram)
    best = _divergence(histogram, low, high)
    assert best >= -1e-4
    extremes = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
    for part in (1.0, 0.5, 0.25, 0.125):
        for other in (1.0, 0.5, 0.25, 0.125):
            rival = _divergence(histogram, extremes[0] * part, extremes[1] * other)
            assert best <= rival + 1e-9


def test_divergence_does_not_keep_the_tails_of_a_spike() -> None:
    high = least_divergence(_histogram(SHAPES["outliers"]))[1]
    assert 2 < high < 20
