"""Metrics: known values, ties, NaN, and bounds that are honest about few groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgefuse import metrics
from edgefuse.errors import DataError


def test_top_k_breaks_ties_by_class_index_and_survives_int8() -> None:
    scores = np.array([[-128, 5, 5], [7, -128, 7], [1, 2, 3]], np.int8)
    assert metrics.top_k_hits(scores, [1, 0, 2]).tolist() == [1, 1, 1]
    assert metrics.top_k_hits(scores, [2, 2, 1]).tolist() == [0, 0, 0]
    assert metrics.top_k_accuracy_percent(scores, [2, 2, 1], k=2) == 100.0
    assert metrics.top_k_hits(scores, [1, 0, 2]).tolist() == [
        float(a == b) for a, b in zip(scores.argmax(axis=1), [1, 0, 2])
    ]


def test_agreement_and_drop() -> None:
    a, b = np.eye(4), np.eye(4)[[0, 1, 2, 2]]
    assert metrics.agreement_percent(a, b) == 75.0
    assert metrics.drop_points(a, b, [0, 1, 2, 3]) == 25.0
    assert metrics.drop_points(b, a, [0, 1, 2, 3]) == -25.0


def test_sqnr_and_cosine_known_values() -> None:
    r = np.array([[3.0, 4.0]])
    assert metrics.sqnr_db(r, r * 0.9) == pytest.approx(20.0)
    assert metrics.sqnr_db(r, r) == math.inf
    assert metrics.cosine(r, -2 * r) == pytest.approx(-1.0)
    assert metrics.cosine(r, np.array([[-4.0, 3.0]])) == pytest.approx(0.0)
    assert metrics.max_relative_error(r, r + 0.4) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: metrics.sqnr_db(x, x),
        lambda x: metrics.cosine(x, x),
        lambda x: metrics.agreement_percent(x, x),
        lambda x: metrics.top_k_accuracy_percent(x, [0, 0]),
        lambda x: metrics.max_relative_error(x, x),
        lambda x: metrics.paired_ratio(x, x),
        lambda x: metrics.cluster_bootstrap_bound(
            x[0], ["a", "b"], resamples=200, seed=0, side="lower"
        ),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_raise(call, bad) -> None:
    with pytest.raises(DataError, match="NaN or infinity"):
        call(np.array([[1.0, bad], [1.0, 1.0]]))


def test_wrong_shapes_labels_and_silence_raise() -> None:
    with pytest.raises(DataError, match="shapes differ"):
        metrics.sqnr_db(np.ones((2, 3)), np.ones((2, 1)))
    with pytest.raises(DataError, match="do not fit 3 classes"):
        metrics.top_k_hits(np.ones((1, 3)), [3])
    with pytest.raises(DataError, match="one integer label"):
        metrics.top_k_hits(np.ones((2, 3)), [1])
    with pytest.raises(DataError, match="all zeros"):
        metrics.sqnr_db(np.zeros((1, 2)), np.ones((1, 2)))
    with pytest.raises(DataError, match="no values"):
        metrics.agreement_percent(np.ones((0, 3)), np.ones((0, 3)))


def test_wilson_against_published_values() -> None:
    low, high = metrics.wilson_interval(17, 20)
    assert (low, high) == pytest.approx((0.6396, 0.9476), abs=1e-4)
    assert metrics.wilson_interval(0, 10)[0] == 0.0
    assert metrics.wilson_interval(20, 20, metrics.Z_ONE_SIDED_95)[0] == pytest.approx(
        20 / (20 + metrics.Z_ONE_SIDED_95**2)
    )
    with pytest.raises(DataError):
        metrics.wilson_interval(1, 0)


def test_bootstrap_of_independent_samples_matches_the_normal_bound() -> None:
    values = np.random.default_rng(5).normal(10, 2, 400)
    groups = [str(i) for i in range(400)]
    found = metrics.cluster_bootstrap_bound(values, groups, resamples=4000, seed=1, side="lower")
    expected = values.mean() - 1.645 * values.std() / 20
    assert found.bound == pytest.approx(expected, abs=0.02)
    assert (found.n_groups, found.n_samples, found.resamples) == (400, 400, 4000)
    again = metrics.cluster_bootstrap_bound(values, groups, resamples=4000, seed=1, side="lower")
    assert again == found


def test_crops_of_one_picture_do_not_count_as_independent() -> None:
    picture = np.random.default_rng(2).normal(0, 1, 20)
    values, groups = np.repeat(picture, 50), [f"p{i // 50}" for i in range(1000)]
    each = [str(i) for i in range(1000)]
    clustered = metrics.cluster_bootstrap_bound(
        values, groups, resamples=1000, seed=0, side="upper"
    )
    naive = metrics.cluster_bootstrap_bound(values, each, resamples=1000, seed=0, side="upper")
    ratio = (clustered.bound - clustered.point) / (naive.bound - naive.point)
    assert 5 < ratio < 10
    assert clustered.n_groups == 20


def test_any_statistic_agrees_with_the_fast_mean() -> None:
    rng = np.random.default_rng(3)
    values, groups = rng.normal(size=60), [str(i % 12) for i in range(60)]
    fast = metrics.cluster_bootstrap_bound(values, groups, resamples=3000, seed=0, side="upper")
    slow = metrics.cluster_bootstrap_bound(
        values, groups, resamples=3000, seed=9, side="upper", statistic=lambda v: float(v.mean())
    )
    assert slow.point == pytest.approx(fast.point)
    assert slow.bound == pytest.approx(fast.bound, abs=0.03)


def test_sqnr_bound_and_infinite_sqnr() -> None:
    rng = np.random.default_rng(4)
    r = rng.normal(size=(50, 10))
    c = r + 0.1 * rng.normal(size=r.shape)
    names = [str(i) for i in range(50)]
    found = metrics.cluster_bootstrap_ratio(
        *metrics.energies(r, c), names, resamples=500, seed=0, side="lower", decibels=True
    )
    assert found.point == pytest.approx(metrics.sqnr_db(r, c))
    assert found.point - 1 < found.bound < found.point
    c = r.copy()
    c[0] += 0.01
    mixed = metrics.cluster_bootstrap_ratio(
        *metrics.energies(r, c), names, resamples=500, seed=0, side="lower", decibels=True
    )
    assert math.isfinite(mixed.bound)


def test_no_disagreement_on_few_pictures_proves_little() -> None:
    hits, names = np.ones(20), [str(i) for i in range(20)]
    agreement = metrics.agreement_bound(hits, names, resamples=500, seed=0)
    assert agreement.point == 100.0
    assert 85 < agreement.bound < 90
    drop = metrics.drop_bound(hits, hits, names, resamples=500, seed=0)
    assert drop.point == 0.0
    assert 10 < drop.bound < 13
    crops = metrics.agreement_bound(
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
    found = metrics.drop_bound(reference, candidate, names, resamples=400, seed=0)
    error = 100 * (reference - candidate).std() / math.sqrt(12000)
    assert found.bound - found.point == pytest.approx(1.645 * error, rel=0.15)


def test_drop_bound_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for trial in range(300):
        u = rng.random(60)
        reference, candidate = (u < 0.9).astype(float), (u > 0.05) & (u < 0.9)
        found = metrics.drop_bound(
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
    found = metrics.paired_ratio(candidate, reference)
    assert found.median == pytest.approx(0.5, rel=0.01)
    assert found.median <= found.upper < 0.51
    assert found.spread < 0.05
    candidate[4] *= 2
    uneven = metrics.paired_ratio(candidate, reference)
    assert uneven.upper > 0.9
    assert (uneven.n_processes, uneven.n_rounds) == (5, 40)
    with pytest.raises(DataError, match="not positive"):
        metrics.paired_ratio(candidate * 0, reference)


def test_time_percentile_bound() -> None:
    times = np.tile(np.arange(1.0, 101.0), (4, 1))
    found = metrics.time_percentile_bound(times, 90.0)
    assert found.point == pytest.approx(90.1, abs=0.5)
    assert found.point <= found.bound < 96
    assert found.n_groups == 4
