"""Which rule gives a tensor its range, and what the samples cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgefuse.errors import RecipeError
from edgefuse.quant.calibration.calibrate import TensorStatistics
from edgefuse.quant.calibration.histogram import Histogram
from edgefuse.quant.calibration.ranges import choose, symmetric, unsure
from edgefuse.recipe.quantize import RangeMethod, TensorRule


def _statistics(name: str, values: Sequence[float] | np.ndarray) -> TensorStatistics:
    histogram = Histogram()
    array = np.asarray(values, np.float32)
    histogram.add(array, array)
    return TensorStatistics(name, array.shape, histogram)


BELL = np.random.default_rng(0).normal(0, 1, 100_000)
THREE = [_statistics(name, BELL) for name in ("block1/add", "block2/add", "logits")]


@pytest.mark.parametrize("method", ["percentile", "minmax", "mse", "entropy"])
def test_every_method_holds_zero_and_most_values(method: RangeMethod) -> None:
    found = choose(THREE, method, 0.1)["block1/add"]
    assert found.low < -2.5 and found.high > 2.5 and found.method == method
    assert found.clipped_fraction < 0.01
    if method == "minmax":
        assert found.low <= BELL.min() and found.high >= BELL.max()
    else:
        assert found.low > BELL.min() and found.high < BELL.max()


def test_the_first_rule_that_matches_counts_before_all_else() -> None:
    rules = [
        TensorRule(match="2/", ranges="minmax"),
        TensorRule(match="block", ranges="percentile", tail_percent=10),
        TensorRule(match="^logits$", ranges="percentile", tail_percent=20),
    ]
    found = choose(THREE, "mse", 0.0, {"logits"}, rules=rules)
    assert found["block2/add"].method == "minmax" and found["block2/add"].high > 4
    assert found["block1/add"].high == pytest.approx(1.28, abs=0.02)
    assert found["logits"].high == pytest.approx(0.84, abs=0.02), "an output, when it is named"
    assert choose(THREE, "mse", 0.0, {"logits"})["logits"].method == "whole"


def test_a_rule_without_a_tensor_is_an_error_that_names_the_near_ones() -> None:
    rules = [TensorRule(match="add", ranges="mse"), TensorRule(match="block3/add", ranges="mse")]
    with pytest.raises(RecipeError, match="block3/add") as caught:
        choose(THREE, "percentile", 0.01, rules=rules)
    assert caught.value.where == "quantize.tensors.1.match"
    assert "block1/add" in caught.value.hint and "logits" not in caught.value.hint


def test_symmetric_ranges_reach_as_far_on_both_sides() -> None:
    found = symmetric(choose([_statistics("t", [-1.0, 0.5, 3.0])], "minmax", 0.0))["t"]
    assert found.low == -found.high == -3.0


@pytest.mark.parametrize("method", ["percentile", "minmax", "mse", "entropy"])
@pytest.mark.parametrize("value", [0.0, 2.5, -0.75, 1e-9])
def test_one_value_is_held_exactly_enough(method: RangeMethod, value: float) -> None:
    found = choose([_statistics("t", [value] * 50)], method, 1.0)["t"]
    assert found.low <= 0.0 <= found.high and found.high > found.low
    step = (found.high - found.low) / 255
    held = np.clip(np.round(value / step), found.low / step, found.high / step) * step
    assert abs(held - value) <= max(step / 2, 1e-3 * abs(value))
    if value == 0.0:
        assert (found.low, found.high) == (0.0, 1.0), "no step so small that a bias overflows"


def test_what_the_samples_cannot_tell_is_said() -> None:
    dead = [_statistics(f"dead{k}", [0.0, 0.0]) for k in range(7)]
    fixed = _statistics("fixed", [2.0, 2.0])
    told = unsure([*THREE, *dead, fixed], 1)
    assert len(told) == 3
    assert "one calibration sample" in told[0]
    assert "'dead0'" in told[1] and "and 2 more" in told[1] and "held zero" in told[1]
    assert told[2].startswith("tensor 'fixed' held one value throughout")
    assert unsure(THREE, 2) == []


def test_tensors_of_one_name_share_a_range_that_holds_both() -> None:
    found = choose([_statistics("t", [-1.0, 2.0]), _statistics("t", [-3.0, 1.0])], "minmax", 0.0)
    assert (found["t"].low, found["t"].high) == (-3.0, 2.0)
