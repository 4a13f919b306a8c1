"""How far two models are apart, in figures: pure NumPy, no model knowledge.

Scores are ``[samples, classes]``, read in float64 (int8 scores are safe). Percentages are 0..100,
points are differences of percentages. NaN is never averaged away: it raises. How sure one can be
of a figure is said by :mod:`edgefuse.bounds` and :mod:`edgefuse.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgefuse.errors import DataError

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def top_k_hits(scores: Array, labels: Sequence[int] | Array, k: int = 1) -> Float64:
    """1.0 for each sample whose label is among its ``k`` highest scores, else 0.0.

    Equal scores rank by class index, as argmax does.
    """
    values = finite_matrix(scores, "scores")
    truth = np.asarray(labels)
    if truth.shape != values.shape[:1] or truth.dtype.kind not in "iu":
        raise DataError(f"needs one integer label a sample, found {truth.dtype} {truth.shape}")
    if truth.min() < 0 or truth.max() >= values.shape[1]:
        raise DataError(
            f"labels {truth.min()}..{truth.max()} do not fit {values.shape[1]} classes",
            hint="labels are class indices from 0 in the model's own order",
        )
    own = values[np.arange(len(truth)), truth][:, None]
    before = np.arange(values.shape[1])[None] < truth[:, None]
    rank = ((values > own) | ((values == own) & before)).sum(axis=1)
    return np.asarray(rank < k, np.float64)


def top_k_accuracy_percent(scores: Array, labels: Sequence[int] | Array, k: int = 1) -> float:
    """Share of samples whose label is among their ``k`` highest scores, in percent."""
    return float(100.0 * top_k_hits(scores, labels, k).mean())


def agreements(reference: Array, candidate: Array) -> Float64:
    """1.0 for each sample on which both give the same first class, else 0.0."""
    a, b = _pair(reference, candidate)
    return np.asarray(a.argmax(axis=1) == b.argmax(axis=1), np.float64)


def agreement_percent(reference: Array, candidate: Array) -> float:
    """Share of samples on which both give the same first class, in percent."""
    return float(100.0 * agreements(reference, candidate).mean())


def top_k_overlap(reference: Array, candidate: Array, k: int = 5) -> Float64:
    """The share of the reference's ``k`` first classes among the candidate's, for each sample."""
    first, second = (_ranked(scores, k) for scores in _pair(reference, candidate))
    return np.asarray((first[:, :, None] == second[:, None]).any(axis=2).mean(axis=1), np.float64)


def top_k_order(reference: Array, candidate: Array, k: int = 5) -> Float64:
    """Kendall's tau over the reference's ``k`` first classes, for each sample: -1..1.

    Pairs of classes that the candidate puts in the same order less those in the other order, of
    all pairs; a tie of the candidate counts as neither. Classes below the first ``k`` do not
    matter, so that a head whose low scores are clipped is judged by what it is for.
    """
    a, b = _pair(reference, candidate)
    held = np.take_along_axis(b, _ranked(a, k), axis=1)
    if held.shape[1] < 2:
        raise DataError(f"an order needs two classes, found {held.shape[1]}")
    upper = np.triu_indices(held.shape[1], 1)
    return np.asarray(np.sign(held[:, upper[0]] - held[:, upper[1]]).mean(axis=1), np.float64)


def drop_points(reference: Array, candidate: Array, labels: Sequence[int] | Array) -> float:
    """Top-1 accuracy of the reference less the candidate's, in points; negative is a gain."""
    return float(100.0 * (top_k_hits(reference, labels) - top_k_hits(candidate, labels)).mean())


def energies(reference: Array, candidate: Array) -> tuple[Float64, Float64]:
    """Signal and noise energy of each sample: sums of r^2 and of (r - c)^2."""
    a, b = finite_rows(reference, "reference"), finite_rows(candidate, "candidate")
    require_same_shape(a, b)
    return (a * a).sum(axis=1), ((a - b) ** 2).sum(axis=1)


def sqnr_db(reference: Array, candidate: Array) -> float:
    """Signal to quantisation-noise ratio: 10 log10(sum r^2 / sum (r - c)^2), in dB.

    Over all values of all samples; +inf when they are equal.

    Raises:
        DataError: NaN or infinity, unequal shapes, or a reference of zeros.
    """
    signal, noise = energies(reference, candidate)
    return float(decibels_of(signal.sum(), noise.sum()))


def cosine(reference: Array, candidate: Array) -> float:
    """Cosine of the angle between all values taken as two vectors: r.c / (|r| |c|).

    Raises:
        DataError: NaN or infinity, unequal shapes, or a vector of zeros.
    """
    a, b = finite_rows(reference, "reference").ravel(), finite_rows(candidate, "candidate").ravel()
    require_same_shape(a, b)
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    if length == 0.0:
        raise DataError("the cosine of a vector of zeros does not exist")
    return min(1.0, max(-1.0, float(a @ b) / length))


def max_relative_error(reference: Array, candidate: Array) -> float:
    """max |r - c| / max |r|, over all values; 0 when both are all zero."""
    a, b = finite_rows(reference, "reference"), finite_rows(candidate, "candidate")
    require_same_shape(a, b)
    worst, scale = float(np.abs(a - b).max()), float(np.abs(a).max())
    return 0.0 if worst == 0.0 else worst / scale if scale else math.inf


def _pair(reference: Array, candidate: Array) -> tuple[Float64, Float64]:
    a, b = finite_matrix(reference, "reference"), finite_matrix(candidate, "candidate")
    require_same_shape(a, b)
    return a, b


def _ranked(scores: Float64, k: int) -> npt.NDArray[np.intp]:
    """The ``k`` first classes of each sample, best first; equal scores by class index."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def decibels_of(signal: Any, noise: Any) -> Any:
    if np.any(np.asarray(signal) == 0.0):
        raise DataError(
            "the reference is all zeros: no signal to compare with",
            hint="check the samples and the reference model",
        )
    with np.errstate(divide="ignore"):
        return 10.0 * np.log10(np.divide(signal, noise))


def _finite(values: Array, what: str) -> Float64:
    data = np.asarray(values, np.float64)
    if data.size == 0:
        raise DataError(f"{what}: no values")
    if not np.isfinite(data).all():
        raise DataError(f"{what}: NaN or infinity", hint="the model or its input is broken")
    return data


def finite_vector(values: Array, what: str) -> Float64:
    data = _finite(values, what)
    if data.ndim != 1:
        raise DataError(f"{what}: needs one value a sample, found shape {data.shape}")
    return data


def finite_matrix(values: Array, what: str) -> Float64:
    data = _finite(values, what)
    if data.ndim != 2:
        raise DataError(f"{what}: needs [samples, classes], found shape {data.shape}")
    return data


def finite_rows(values: Array, what: str) -> Float64:
    data = _finite(values, what)
    return data.reshape(data.shape[0], -1) if data.ndim else data.reshape(1, 1)


def require_same_shape(a: Array, b: Array) -> None:
    if a.shape != b.shape:
        raise DataError(f"shapes differ: {a.shape} and {b.shape}")
