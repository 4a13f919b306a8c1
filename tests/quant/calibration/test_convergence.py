"""What the estimates along the way say on the number of samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import float_file, weights

from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.convergence import Convergence, Settling
from edgefuse.quant.calibration.ranges import Range, choose


def _settling(moves: Mapping[int, float], feeds: int, batch: int = 1) -> Settling:
    """A range [0, 255 - moves[count]] on the way to [0, 255]: steps of 1."""
    found = Convergence(feeds, lambda _: {}, batch)
    assert found.counts == sorted(moves)
    found.take({str(count): {"t0": [0.0, 255 - move]} for count, move in moves.items()})
    return found.settling({"t0": Range(0.0, 255.0, 0.0)})


def test_settled_from_the_count_on_that_no_later_one_contradicts() -> None:
    assert _settling({13: 3, 25: 2, 50: 1}, 100).settled_at == 13
    assert _settling({13: 3, 25: 9, 50: 1}, 100).settled_at == 50
    found = _settling({13: 30, 25: 9, 50: 1}, 100, batch=2)
    assert (found.settled_at, found.enough_samples, found.moving) == (100, None, {})
    assert found.summary == "the ranges were settled by 100 of 200 samples"


def test_what_still_moves_is_named_and_followed_to_where_it_would_rest() -> None:
    found = _settling({25: 28, 50: 20, 100: 14}, 200)
    assert found.settled_at is None and found.moving == {"t0": 14}
    # Moves of 8, 6 and 14 steps; by n^(-1/2) the last decides most.
    assert 800 < (found.enough_samples or 0) < 1600
    assert "'t0': 14" in found.summary and str(found.enough_samples) in found.summary


def test_no_number_is_told_from_too_far_away() -> None:
    found = _settling({1: 90, 2: 60, 4: 30}, 8)
    assert found.settled_at is None and found.enough_samples is None
    assert "more than 240 samples" in found.summary


def test_one_range_of_twenty_that_moves_does_not_keep_the_others_unsettled() -> None:
    found = Convergence(8, lambda _: {})
    ends = {f"t{k}": [0.0, 255.0] for k in range(20)}
    found.take({str(c): {**ends, "t3": [0.0, 100.0]} for c in (1, 2, 4)})
    final = {name: Range(0.0, 255.0, 0.0) for name in ends}
    settling = found.settling(final)
    assert settling.settled_at == 1 and settling.moving == {"t3": 155.0}
    assert settling.to_json()["farthest_steps"] == {"t3": 155.0}


@pytest.mark.parametrize(("feeds", "counts"), [(1, []), (2, [1]), (3, [1, 2]), (9, [2, 3, 5])])
def test_few_samples(feeds: int, counts: list[int]) -> None:
    found = Convergence(feeds, lambda _: {})
    assert found.counts == counts
    if feeds == 1:
        settling = found.settling({"t": Range(0.0, 1.0, 0.0)})
        assert settling.summary.startswith("the ranges rest on one sample")


def test_estimates_are_those_of_the_first_samples_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(float_file(weights()))
    draw = np.random.default_rng(1)
    feeds = [
        {"picture": draw.normal(0, 1 + k / 10, (1, 8, 8, 3)).astype(np.float32)} for k in range(40)
    ]
    watched = Convergence(40, lambda s: choose(s, "mse", 0.0))
    statistics = calibrate(path, feeds, convergence=watched)
    kept = watched.to_json()
    assert sorted(map(int, kept)) == [5, 10, 20]
    for count in (5, 10, 20):
        alone = choose(calibrate(path, feeds[:count]), "mse", 0.0)
        assert kept[str(count)] == {name: [r.low, r.high] for name, r in alone.items()}
    settling = watched.settling(choose(statistics, "mse", 0.0))
    assert settling.settled_at is None, "samples that grow never settle"
    assert len(json.dumps(settling.to_json())) < 1000
