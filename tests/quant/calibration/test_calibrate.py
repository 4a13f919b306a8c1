"""Statistics do not depend on how the work was shared, and extremes are exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import Builder, float_file, weights

from edgefuse.errors import DataError
from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.histogram import Histogram
from edgefuse.quant.calibration.ranges import choose


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
def test_a_sample_that_is_no_number_ends_it(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    feeds = _feeds(3)
    feeds[1]["picture"][0, 0, 0, 0] = bad
    with pytest.raises(DataError, match=r"sample 2: .*'picture'.*NaN or infinity"):
        calibrate(path, feeds)


def test_the_first_activation_that_overflows_is_named(tmp_path: Path) -> None:
    """inner = x * x overflows, and so does everything after it, whatever the tensors' numbers."""
    b = Builder()
    late, x, inner = b.tensor("late", (1, 4)), b.tensor("x", (1, 4)), b.tensor("inner", (1, 4))
    b.op("MUL", (x, x), (inner,))
    b.op("SUB", (inner, inner), (late,))
    path = tmp_path / "float.tflite"
    path.write_bytes(b.finish({"x": x}, {"y": late}))
    feeds = [{"x": np.full((1, 4), value, np.float32)} for value in (1.0, 1e25)]
    with pytest.raises(DataError, match="of tensor 'inner' at calibration sample 2") as caught:
        calibrate(path, feeds)
    assert caught.value.hint


def test_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    with pytest.raises(DataError, match="no calibration samples") as caught:
        calibrate(path, [])
    assert "data.calibration" in caught.value.hint


GOOD = np.zeros((1, 8, 8, 3), np.float32)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"picture": GOOD.astype(np.float64)}, "'picture' is float32, given float64"),
        ({"picture": GOOD.astype(np.uint8)}, "'picture' is float32, given uint8"),
        ({"picture": GOOD.astype(np.int64)}, "'picture' is float32, given int64"),
        ({"picture": GOOD[0]}, r"'picture' has shape \(1, 8, 8, 3\), given \(8, 8, 3\)"),
        ({"picture": GOOD.transpose(0, 3, 1, 2)}, r"given \(1, 3, 8, 8\)"),
        ({}, "no value for input 'picture'"),
        ({"image": GOOD}, "no input is named 'image'; inputs: picture"),
        ({"picture": GOOD, "mask": GOOD}, "no input is named 'mask'"),
    ],
)
def test_a_sample_that_does_not_fit_is_named_with_a_remedy(
    tmp_path: Path, feed: dict[str, np.ndarray], message: str
) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    with pytest.raises(DataError, match=f"calibration sample 3: .*{message}") as caught:
        calibrate(path, [*_feeds(2), feed])
    assert caught.value.hint


def test_several_inputs_are_bound_by_name_and_batches_are_whole(tmp_path: Path) -> None:
    """Two inputs of one shape, batch 2, names that onnx2tf would rewrite: case 19, 20 and 31."""
    b = Builder()
    one, two = b.tensor("tensor_a", (2, 3)), b.tensor("tensor_b", (2, 3))
    less = b.tensor("difference", (2, 3))
    b.op("SUB", (one, two), (less,))
    path = tmp_path / "float.tflite"
    path.write_bytes(b.finish({"in/z:0": one, "in/a:0": two}, {"sub": less}))
    large, small = np.full((2, 3), 8, np.float32), np.full((2, 3), 0.5, np.float32)
    large[1] = 10
    found = {s.name: s for s in calibrate(path, [{"in/a:0": small, "in/z:0": large}])}
    assert found["tensor_a"].histogram.maximum == 10 and found["tensor_b"].histogram.maximum == 0.5
    assert found["difference"].histogram.minimum == 7.5
    assert found["difference"].histogram.maximum == 9.5
    assert int(found["difference"].histogram.counts.sum()) == 6
    ranks = found["difference"].ranks
    assert ranks is not None and ranks.least.tolist() == [7.5, 7.5, 7.5]


def test_samples_are_made_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    held, most = 0, 0

    class Held(dict[str, np.ndarray]):
        def __del__(self) -> None:
            nonlocal held
            held -= 1

    def feeds() -> Iterator[Held]:
        nonlocal held, most
        for feed in _feeds(40):
            held += 1
            most = max(most, held)
            yield Held(feed)

    calibrate(path, feeds(), threads=2)
    assert most <= 4, "one a thread, and the one that is being made"


def test_bins_do_not_depend_on_when_the_limit_doubled() -> None:
    """Values a hair below zero or below the edge of a bin: rounding would put them elsewhere."""
    tiny = np.float32(2.0**-20)
    values = np.array([-tiny / 3, np.nextafter(tiny, np.float32(0)), -tiny * 1e-9], np.float32)
    early, late = Histogram(), Histogram()
    early.add(values, values)
    early.add(np.array([1000], np.float32), np.array([1000], np.float32))
    late.add(np.array([1000], np.float32), np.array([1000], np.float32))
    late.add(values, values)
    assert (early.counts == late.counts).all()
    assert late.counts[4095] == 2 and late.counts[4096] == 1


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
