"""Statistics do not depend on how the work was shared, and extremes are exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import float_file, weights

from edgefuse.errors import DataError
from edgefuse.quant.calibrate import calibrate
from edgefuse.quant.histogram import Histogram
from edgefuse.quant.ranges import choose


def _feeds(count: int) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(5)
    return [
        {"picture": draw.standard_normal((1, 8, 8, 3)).astype(np.float32)} for _ in range(count)
    ]


def test_threads_do_not_change_the_statistics(tmp_path: Path) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    alone, shared = (calibrate(path, _feeds(9), threads) for threads in (1, 3))
    assert [s.name for s in alone] == [s.name for s in shared]
    for one, other in zip(alone, shared):
        assert (one.histogram.counts == other.histogram.counts).all()
        assert one.histogram.minimum == other.histogram.minimum
        assert one.histogram.maximum == other.histogram.maximum


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_no_number_ends_it(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    feeds = _feeds(3)
    feeds[1]["picture"][0, 0, 0, 0] = bad
    with pytest.raises(DataError):
        calibrate(path, feeds)


def test_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    with pytest.raises(DataError, match="no calibration samples"):
        calibrate(path, [])


def test_quantiles_to_a_bin_and_merging_in_any_order() -> None:
    draw = np.random.default_rng(0)
    parts = [draw.normal(0, 2.0**k, 20000).astype(np.float32) for k in (-3, 0, 4)]
    whole = Histogram()
    for part in parts:
        whole.add(part, part)
    merged = Histogram()
    for part in reversed(parts):
        single = Histogram()
        single.add(part, part)
        merged.merge(single)
    assert (merged.counts == whole.counts).all() and merged.limit == whole.limit
    values = np.concatenate(parts)
    assert whole.minimum == values.min() and whole.maximum == values.max()
    for fraction in (0.001, 0.2, 0.5, 0.9, 0.999):
        exact = float(np.quantile(values, fraction))
        assert abs(whole.quantile(fraction) - exact) <= 2 * whole.limit / 8192 + 0.02 * abs(exact)


def test_inputs_and_outputs_keep_their_whole_range(tmp_path: Path) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    statistics = calibrate(path, _feeds(6))
    cut = choose(statistics, "percentile", 5.0)
    kept = choose(statistics, "percentile", 5.0, {"out"})
    out = next(s for s in statistics if s.name == "out").histogram
    assert cut["out"].high < out.maximum <= kept["out"].high
    assert kept["map3"] == cut["map3"]
    assert kept["out"].clipped_fraction == 0.0
