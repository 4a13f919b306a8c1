"""Paired comparison: exact p-values, intervals that cover, and sample sizes that do settle."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgefuse import bounds
from edgefuse.bounds import Bound
from edgefuse.errors import DataError
from edgefuse.paired import agreement_needs, drop_needs, mcnemar_p, needed_samples, paired

OPTIONS = {"resamples": 2000, "seed": 0}


def _hits(lost: int, gained: int, both: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    a = np.array([1] * lost + [0] * gained + [1] * both, float)
    b = np.array([0] * lost + [1] * gained + [1] * both, float)
    return a, b, [f"picture {k}" for k in range(len(a))]


@pytest.mark.parametrize(
    ("lost", "gained"), [(0, 0), (1, 0), (5, 5), (9, 1), (10, 2), (3, 20), (40, 25)]
)
def test_the_p_value_is_the_binomial_one(lost: int, gained: int) -> None:
    n, least = lost + gained, min(lost, gained)
    tail = sum(math.comb(n, k) for k in range(least + 1)) / 2**n
    assert mcnemar_p(*_hits(lost, gained, 30)) == pytest.approx(min(1.0, 2 * tail))


def test_crops_that_flip_together_count_as_one() -> None:
    a, b, names = _hits(12, 0, 48)
    alone = mcnemar_p(a, b, names)
    together = mcnemar_p(a, b, [f"picture {k // 4}" for k in range(60)])
    assert alone == pytest.approx(2 / 2**12)
    assert together == pytest.approx(2 / 2**3)


def test_groups_of_unequal_loss_by_every_sign() -> None:
    net = [3, 1, -2, 5]
    a = np.concatenate([np.full(abs(v), v > 0) for v in net]).astype(float)
    groups = [str(k) for k, v in enumerate(net) for _ in range(abs(v))]
    signs = [[1 if bits >> k & 1 else -1 for k in range(4)] for bits in range(16)]
    sums = [abs(sum(s * v for s, v in zip(row, net))) for row in signs]
    expected = sum(total >= abs(sum(net)) for total in sums) / 16
    assert mcnemar_p(a, 1 - a, groups) == pytest.approx(expected)


def test_many_discordant_samples_neither_overflow_nor_vanish() -> None:
    assert 0.9 < mcnemar_p(*_hits(10_000, 9_995, 10)) <= 1.0
    assert 0.0 < mcnemar_p(*_hits(700, 500, 0)) < 1e-7


def test_paired_figures() -> None:
    found = paired(*_hits(9, 2, 389))
    assert (found.lost, found.gained, found.n_samples, found.n_groups) == (9, 2, 400, 400)
    assert found.drop_points == pytest.approx(1.75)
    low, high = found.interval_points
    assert low < found.drop_points < high
    wald = 196 * math.sqrt(11 - 49 / 400) / 400
    assert high - low == pytest.approx(2 * wald, rel=0.2)
    assert found.p_value == pytest.approx(2 * sum(math.comb(11, k) for k in range(3)) / 2**11)


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(11)
    covered = 0
    for trial in range(200):
        u = rng.random(120)
        a, b = (u < 0.85).astype(float), ((u > 0.05) & (u < 0.88)).astype(float)
        low, high = paired(
            a, b, [str(k) for k in range(120)], resamples=200, seed=trial
        ).interval_points
        covered += low <= 2.0 <= high
    assert covered >= 186


@pytest.mark.parametrize(("lost", "gained", "limit"), [(9, 5, 3.0), (3, 3, 0.5), (0, 0, 0.5)])
def test_the_number_of_samples_does_settle_a_drop(lost: int, gained: int, limit: float) -> None:
    pair = _hits(lost, gained, 300 - lost - gained)
    assert bounds.drop_bound(*pair, **OPTIONS).bound > limit
    needed = drop_needs(*pair, limit, **OPTIONS)
    assert needed is not None and needed > 300
    growth = needed / 300
    larger = _hits(*(round(v * growth) for v in (lost, gained, 300 - lost - gained)))
    assert bounds.drop_bound(*larger, **OPTIONS).bound <= limit * 1.06
    smaller = _hits(*(round(v * growth * 0.7) for v in (lost, gained, 300 - lost - gained)))
    assert bounds.drop_bound(*smaller, **OPTIONS).bound > limit


def test_design_figures_for_a_drop_of_nothing() -> None:
    """4% of the pictures discordant: 1.0 point takes about 1,100, 0.3 about 12,000."""
    pair = _hits(8, 8, 384)
    assert drop_needs(*pair, 1.0, **OPTIONS) == pytest.approx(1100, rel=0.1)
    assert drop_needs(*pair, 0.3, **OPTIONS) == pytest.approx(12_000, rel=0.1)


def test_the_number_of_samples_settles_an_agreement_of_clusters() -> None:
    rng = np.random.default_rng(3)
    picture = rng.random(40) < 0.95
    hits = np.repeat(picture, 5).astype(float)
    groups = [str(k // 5) for k in range(200)]
    needed = agreement_needs(hits, groups, 90.0, **OPTIONS)
    alone = agreement_needs(hits, [str(k) for k in range(200)], 90.0, **OPTIONS)
    assert needed is not None and alone is not None
    assert 2.5 * alone < needed < 8 * alone


def test_on_the_threshold_or_beyond_nothing_settles_it() -> None:
    found = Bound(0.9, 0.8, "lower", 100, 100, 2000)
    assert needed_samples(found, 0.9) is None
    assert needed_samples(found, 0.95) is None
    assert needed_samples(found, 0.9 - 1e-5) is None
    assert needed_samples(found, 0.85) == 400
    assert drop_needs(*_hits(5, 2, 293), 1.0, **OPTIONS) is None


def test_wrong_shapes() -> None:
    with pytest.raises(DataError, match="shapes differ"):
        paired(np.ones(3), np.ones(2), ["a", "b", "c"])
    with pytest.raises(DataError, match="2 groups for 3 samples"):
        paired(np.ones(3), np.ones(3), ["a", "b"])
