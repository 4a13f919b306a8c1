"""Bounds that are honest about few groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgefuse import bounds, metrics
from edgefuse.errors import DataError


def test_wilson_against_published_values() -> None:
    low, high = bounds.wilson_interval(17, 20)
    assert (low, high) == pytest.approx((0.6396, 0.9476), abs=1e-4)
    assert bounds.wilson_interval(0, 10)[0] == 0.0
    assert bounds.wilson_interval(20, 20, bounds.Z_ONE_SIDED_95)[0] == pytest.approx(
        20 / (20 + bounds.Z_ONE_SIDED_95**2)
    )
    with pytest.raises(DataError):
        bounds.wilson_interval(1, 0)


def test_bootstrap_of_independent_samples_matches_the_normal_bound() -> None:
    values = np.random.default_rng(5).normal(10, 2, 400)
    groups = [str(i) for i in range(400)]
    found = bounds.cluster_bootstrap_bound(values, groups, resamples=4000, seed=1, side="lower")
    expected = values.mean() - 1.645 * values.std() / 20
    assert found.bound == pytest.approx(expected, abs=0.02)
    assert (found.n_groups, found.n_samples, found.resamples) == (400, 400, 4000)
    again = bounds.cluster_bootstrap_bound(values, groups, resamples=4000, seed=1, side="lower")
    assert again == found


def test_crops_of_one_picture_do_not_count_as_independent() -> None:
    picture = np.random.default_rng(2).normal(0, 1, 20)
    values, groups = np.repeat(picture, 50), [f"p{i // 50}" for i in range(1000)]
    each = [str(i) for i in range(1000)]
    clustered = bounds.cluster_bootstrap_bound(values, groups, resamples=1000, seed=0, side="upper")
    naive = bounds.cluster_bootstrap_bound(values, each, resamples=1000, seed=0, side="upper")
    ratio = (clustered.bound - clustered.point) / (naive.bound - naive.point)
    assert 5 < ratio < 10
    assert clustered.n_groups == 20


def test_any_statistic_agrees_with_the_fast_mean() -> None:
    rng = np.random.default_rng(3)
    values, groups = rng.normal(size=60), [str(i % 12) for i in range(60)]
    fast = bounds.cluster_bootstrap_bound(values, groups, resamples=3000, seed=0, side="upper")
    slow = bounds.cluster_bootstrap_bound(
        values, groups, resamples=3000, seed=9, side="upper", statistic=lambda v: float(v.mean())
    )
    assert slow.point == pytest.approx(fast.point)
    assert slow.bound == pytest.approx(fast.bound, abs=0.03)


def test_sqnr_bound_and_infinite_sqnr() -> None:
    rng = np.random.default_rng(4)
    r = rng.normal(size=(50, 10))
    c = r + 0.1 * rng.normal(size=r.shape)
    names = [str(i) for i in range(50)]
    found = bounds.cluster_bootstrap_ratio(
        *metrics.energies(r, c), names, resamples=500, seed=0, side="lower", decibels=True
    )
    assert found.point == pytest.approx(metrics.sqnr_db(r, c))
    assert found.point - 1 < found.bound < found.point
    c = r.copy()
    c[0] += 0.01
    mixed = bounds.cluster_bootstrap_ratio(
        *metrics.energies(r, c), names, resamples=500, seed=0, side="lower", decibels=True
    )
    assert math.isfinite(mixed.bound)


def test_no_disagreement_on_few_pictures_proves_little() -> None:
    hits, names = np.ones(20), [str(i) for i in range(20)]
    agreement = bounds.agreement_bound(hits, names, resamples=500, seed=0)
    assert agreement.point == 100.0
    assert 85 < agreement.bound < 90
    drop = bounds.drop_bound(hits, hits, names, resamples=500, seed=0)
    assert drop.point == 0.0
    assert 10 < drop.bound < 13
    crops = bounds.agreement_bound(
        np.ones(100), [str(i % 7) for i in range(100)], resamples=500, seed=0
    )
    assert crops.n_groups == 7
    assert crops.bound < 75


def test_drop_bound_on_many_pictures() -> None:
    rng = np.random.default_rng(0)
    reference = (rng.random(12000) < 0.84).astype(float)
    flipped = rng.random(12000) < 0.04
    candidate = np.where(flipped, 1 - reference, reference)
    names = [str(i) for i in range(12000)]
    found = bounds.drop_bound(reference, candidate, names, resamples=400, seed=0)
    error = 100 * (reference - candidate).std() / math.sqrt(12000)
    assert found.bound - found.point == pytest.approx(1.645 * error, rel=0.15)


def test_drop_bound_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for trial in range(300):
        u = rng.random(60)
        reference, candidate = (u < 0.9).astype(float), (u > 0.05) & (u < 0.9)
        found = bounds.drop_bound(
            reference,
            candidate.astype(float),
            [str(i) for i in range(60)],
            resamples=200,
            seed=trial,
        )
        covered += found.bound >= 5.0
    assert covered >= 280


def test_paired_ratio_cancels_drift_and_sees_processes() -> None:
    rng = np.random.default_rng(1)
    drift = np.linspace(1, 3, 40)[None] * np.ones((5, 1))
    reference = 7.0 * drift * rng.normal(1, 0.01, (5, 40))
    candidate = 3.5 * drift * rng.normal(1, 0.01, (5, 40))
    found = bounds.paired_ratio(candidate, reference)
    assert found.median == pytest.approx(0.5, rel=0.01)
    assert found.median <= found.upper < 0.51
    assert found.spread < 0.05
    candidate[4] *= 2
    uneven = bounds.paired_ratio(candidate, reference)
    assert uneven.upper > 0.9
    assert (uneven.n_processes, uneven.n_rounds) == (5, 40)
    with pytest.raises(DataError, match="not positive"):
        bounds.paired_ratio(candidate * 0, reference)


def test_time_percentile_bound() -> None:
    times = np.tile(np.arange(1.0, 101.0), (4, 1))
    found = bounds.time_percentile_bound(times, 90.0)
    assert found.point == pytest.approx(90.1, abs=0.5)
    assert found.point <= found.bound < 96
    assert found.n_groups == 4


def test_the_two_sided_interval_holds_the_one_sided_bounds() -> None:
    rng = np.random.default_rng(6)
    reference = (rng.random(300) < 0.8).astype(float)
    candidate = np.where(rng.random(300) < 0.06, 1 - reference, reference)
    names = [str(i % 60) for i in range(300)]
    options = {"resamples": 800, "seed": 0}
    ends = [
        bounds.drop_bound(
            reference, candidate, names, side=side, tail=bounds.TWO_SIDED_95, **options
        ).bound
        for side in ("lower", "upper")
    ]
    upper = bounds.drop_bound(reference, candidate, names, **options)
    assert ends[0] < upper.point < upper.bound < ends[1]
    mirrored = bounds.drop_bound(
        candidate, reference, names, side="upper", tail=bounds.TWO_SIDED_95, **options
    )
    assert mirrored.bound == pytest.approx(-ends[0], abs=0.2)
    lower = bounds.agreement_bound(reference, names, **options)
    wide = bounds.agreement_bound(reference, names, side="upper", tail=0.025, **options)
    assert lower.bound < lower.point < wide.bound <= 100.0
    assert bounds.agreement_bound(np.ones(9), names[:9], side="upper", **options).bound == 100.0


def test_tango_is_near_the_normal_interval_where_much_differs() -> None:
    lost, gained, n = 14.0, 12.0, 44
    high = bounds.tango_upper(lost, gained, n, bounds.Z_TWO_SIDED_95)
    low = -bounds.tango_upper(gained, lost, n, bounds.Z_TWO_SIDED_95)
    assert low < (lost - gained) / n < high
    middle = (lost - gained) / n
    wald = bounds.Z_TWO_SIDED_95 * math.sqrt(lost + gained - (lost - gained) ** 2 / n) / n
    assert high - middle == pytest.approx(wald, rel=0.1)
    assert middle - low == pytest.approx(wald, rel=0.1)
