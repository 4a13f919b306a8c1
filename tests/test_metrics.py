"""Metrics: known values, ties, NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgefuse import bounds, metrics
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
        lambda x: metrics.top_k_overlap(x, x),
        lambda x: metrics.top_k_order(x, x),
        lambda x: bounds.paired_ratio(x, x),
        lambda x: bounds.cluster_bootstrap_bound(
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


def test_a_clipped_head_is_judged_by_its_first_classes() -> None:
    reference = np.array([[9.0, 7, 5, -3, -8, -20], [0, 1, 2, 3, 4, 5]])
    clipped = np.maximum(reference, 4)
    assert metrics.top_k_overlap(reference, clipped, 3).tolist() == [1.0, 1 / 3]
    assert metrics.top_k_order(reference, clipped, 3).tolist() == [1.0, pytest.approx(2 / 3)]
    assert metrics.top_k_order(reference, -reference, 3).tolist() == [-1.0, -1.0]
    swapped = reference[:, [1, 0, 2, 3, 4, 5]]
    assert metrics.top_k_order(reference, swapped, 3)[0] == pytest.approx(1 / 3)
    assert metrics.top_k_overlap(reference, swapped, 3)[0] == 1.0
    with pytest.raises(DataError, match="two classes"):
        metrics.top_k_order(reference[:, :1], reference[:, :1])
