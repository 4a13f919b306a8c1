"""How far two models are apart, and how sure one can be: pure NumPy, no model knowledge.

Scores are ``[samples, classes]``, read in float64 (int8 scores are safe). Percentages are 0..100,
points are differences of percentages. Confidence bounds are one-sided at 95%. Samples of one
source picture are one group, and groups are resampled (cluster bootstrap: Davison and Hinkley,
*Bootstrap Methods and their Application*, 1997, section 3.8). A bootstrap of few groups is too
sure of itself: every :class:`Bound` says how many there were, below five it means little. NaN is
never averaged away: it raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgefuse.errors import DataError

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Side = Literal["lower", "upper"]

Z_ONE_SIDED_95 = 1.6448536269514722
Z_TWO_SIDED_95 = 1.959963984540054
_CHUNK = 4_000_000


@dataclass(frozen=True)
class Bound:
    """A figure with its one-sided 95% bound.

    Attributes:
        point: the figure on the samples as they are.
        bound: its bound on ``side``.
        side: ``lower`` (the true value is hardly below) or ``upper``.
        n_samples: samples.
        n_groups: source pictures (or processes) that were resampled.
        resamples: bootstrap resamples.
    """

    point: float
    bound: float
    side: Side
    n_samples: int
    n_groups: int
    resamples: int


@dataclass(frozen=True)
class PairedRatio:
    """Candidate time over reference time, paired by process and round.

    Attributes:
        median: median of all ratios, no unit.
        spread: interquartile range of the ratios over their median.
        upper: one-sided 95% upper bound of the median, over processes and rounds.
        process_medians: the median of each process; they show drift between processes.
        n_processes: fresh processes.
        n_rounds: rounds in each.
    """

    median: float
    spread: float
    upper: float
    process_medians: tuple[float, ...]
    n_processes: int
    n_rounds: int


def top_k_hits(scores: Array, labels: Sequence[int] | Array, k: int = 1) -> Float64:
    """1.0 for each sample whose label is among its ``k`` highest scores, else 0.0.

    Equal scores rank by class index, as argmax does.
    """
    values = _matrix(scores, "scores")
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
    a, b = _matrix(reference, "reference"), _matrix(candidate, "candidate")
    _same_shape(a, b)
    return np.asarray(a.argmax(axis=1) == b.argmax(axis=1), np.float64)


def agreement_percent(reference: Array, candidate: Array) -> float:
    """Share of samples on which both give the same first class, in percent."""
    return float(100.0 * agreements(reference, candidate).mean())


def drop_points(reference: Array, candidate: Array, labels: Sequence[int] | Array) -> float:
    """Top-1 accuracy of the reference less the candidate's, in points; negative is a gain."""
    return float(100.0 * (top_k_hits(reference, labels) - top_k_hits(candidate, labels)).mean())


def energies(reference: Array, candidate: Array) -> tuple[Float64, Float64]:
    """Signal and noise energy of each sample: sums of r^2 and of (r - c)^2."""
    a, b = _rows(reference, "reference"), _rows(candidate, "candidate")
    _same_shape(a, b)
    return (a * a).sum(axis=1), ((a - b) ** 2).sum(axis=1)


def sqnr_db(reference: Array, candidate: Array) -> float:
    """Signal to quantisation-noise ratio: 10 log10(sum r^2 / sum (r - c)^2), in dB.

    Over all values of all samples; +inf when they are equal.

    Raises:
        DataError: NaN or infinity, unequal shapes, or a reference of zeros.
    """
    signal, noise = energies(reference, candidate)
    return float(_decibels(signal.sum(), noise.sum()))


def cosine(reference: Array, candidate: Array) -> float:
    """Cosine of the angle between all values taken as two vectors: r.c / (|r| |c|).

    Raises:
        DataError: NaN or infinity, unequal shapes, or a vector of zeros.
    """
    a, b = _rows(reference, "reference").ravel(), _rows(candidate, "candidate").ravel()
    _same_shape(a, b)
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    if length == 0.0:
        raise DataError("the cosine of a vector of zeros does not exist")
    return min(1.0, max(-1.0, float(a @ b) / length))


def max_relative_error(reference: Array, candidate: Array) -> float:
    """max |r - c| / max |r|, over all values; 0 when both are all zero."""
    a, b = _rows(reference, "reference"), _rows(candidate, "candidate")
    _same_shape(a, b)
    worst, scale = float(np.abs(a - b).max()), float(np.abs(a).max())
    return 0.0 if worst == 0.0 else worst / scale if scale else math.inf


def wilson_interval(successes: float, n: int, z: float = Z_TWO_SIDED_95) -> tuple[float, float]:
    """Wilson's score interval of a proportion, as fractions 0..1 (Wilson 1927).

    With the default ``z`` two-sided 95%; with ``Z_ONE_SIDED_95`` each end is a one-sided 95% bound.
    """
    if n <= 0 or not 0 <= successes <= n:
        raise DataError(f"no proportion: {successes} of {n}")
    p, z2 = successes / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return low, 1.0 if successes == n else min(1.0, centre + half)


def cluster_bootstrap_bound(
    values: Array,
    groups: Sequence[str],
    *,
    resamples: int,
    seed: int,
    side: Side,
    statistic: Callable[[Float64], float] | None = None,
) -> Bound:
    """Bound of a statistic of per-sample values; the default statistic is the mean.

    Whole groups are drawn with replacement. The mean is fast; another statistic is called once a
    resample with the values of the drawn groups.
    """
    data = _vector(values, "values")
    if statistic is None:
        return cluster_bootstrap_ratio(
            data, np.ones_like(data), groups, resamples=resamples, seed=seed, side=side
        )
    index, count = _group_index(groups, len(data))
    members = [np.flatnonzero(index == group) for group in range(count)]
    draw = np.random.default_rng(seed)
    found = np.array(
        [
            statistic(data[np.concatenate([members[g] for g in draw.integers(0, count, count)])])
            for _ in range(resamples)
        ]
    )
    return _bound(float(statistic(data)), found, side, len(data), count)


def cluster_bootstrap_ratio(
    numerator: Array,
    denominator: Array,
    groups: Sequence[str],
    *,
    resamples: int,
    seed: int,
    side: Side,
    decibels: bool = False,
) -> Bound:
    """Bound of sum(numerator) / sum(denominator) over samples, or of 10 log10 of it.

    With the two results of :func:`energies` and ``decibels`` this is the SQNR.
    """
    above, below = _vector(numerator, "numerator"), _vector(denominator, "denominator")
    _same_shape(above, below)
    index, count = _group_index(groups, len(above))
    a, b = (np.bincount(index, weights=v, minlength=count) for v in (above, below))
    draw = np.random.default_rng(seed)
    ratio: Callable[[Any, Any], Any] = _decibels if decibels else _quotient
    found: list[Float64] = []
    for start in range(0, resamples, step := max(1, _CHUNK // count)):
        drawn = draw.integers(0, count, (min(step, resamples - start), count))
        found.append(ratio(a[drawn].sum(axis=1), b[drawn].sum(axis=1)))
    point = float(ratio(a.sum(), b.sum()))
    return _bound(point, np.concatenate(found), side, len(above), count)


def agreement_bound(hits: Array, groups: Sequence[str], *, resamples: int, seed: int) -> Bound:
    """One-sided 95% lower bound of an agreement or accuracy, in percent, from 0/1 a sample.

    The lower of the cluster bootstrap's bound and Wilson's with one trial a group: where nothing
    disagreed a bootstrap alone has nothing to vary, and would call 20 of 20 a proven 100%.
    """
    found = cluster_bootstrap_bound(hits, groups, resamples=resamples, seed=seed, side="lower")
    score = wilson_interval(found.point * found.n_groups, found.n_groups, Z_ONE_SIDED_95)[0]
    return _scaled(found, 100.0 * found.point, 100.0 * min(found.bound, score))


def drop_bound(
    reference_hits: Array,
    candidate_hits: Array,
    groups: Sequence[str],
    *,
    resamples: int,
    seed: int,
) -> Bound:
    """One-sided 95% upper bound of an accuracy drop, in points, from paired 0/1 a sample.

    The higher of the cluster bootstrap's bound and Tango's score bound (Statistics in Medicine 17,
    1998) with one pair a group, for the reason given at :func:`agreement_bound`.
    """
    a, b = _vector(reference_hits, "reference"), _vector(candidate_hits, "candidate")
    _same_shape(a, b)
    found = cluster_bootstrap_bound(a - b, groups, resamples=resamples, seed=seed, side="upper")
    share = found.n_groups / found.n_samples
    lost, gained = float((a > b).sum()) * share, float((a < b).sum()) * share
    score = _tango_upper(lost, gained, found.n_groups)
    return _scaled(found, 100.0 * found.point, 100.0 * max(found.bound, score))


def paired_ratio(
    candidate: Array, reference: Array, *, resamples: int = 2000, seed: int = 0
) -> PairedRatio:
    """Statistics of candidate / reference, both ``[processes, rounds]`` in one unit of time.

    The two times of one round were taken next to each other, so drift cancels in their ratio.
    """
    a, b = _times(candidate, "candidate"), _times(reference, "reference")
    _same_shape(a, b)
    ratios = a / b
    low, median, high = np.percentile(ratios, [25, 50, 75])
    found = _two_level(ratios, 50.0, resamples, seed)
    return PairedRatio(
        median=float(median),
        spread=float((high - low) / median),
        upper=float(max(median, np.percentile(found, 95.0))),
        process_medians=tuple(float(m) for m in np.median(ratios, axis=1)),
        n_processes=ratios.shape[0],
        n_rounds=ratios.shape[1],
    )


def time_percentile_bound(
    times: Array, percent: float, *, resamples: int = 2000, seed: int = 0
) -> Bound:
    """A percentile of ``[processes, rounds]`` times and its one-sided 95% upper bound."""
    values = _times(times, "times")
    found = _two_level(values, percent, resamples, seed)
    point = float(np.percentile(values, percent))
    return _bound(point, found, "upper", values.size, values.shape[0])


def _two_level(values: Float64, percent: float, resamples: int, seed: int) -> Float64:
    """A percentile under resampling of processes, then of the rounds within each."""
    processes, rounds = values.shape
    draw = np.random.default_rng(seed)
    found: list[Float64] = []
    for start in range(0, resamples, step := max(1, _CHUNK // values.size)):
        size = min(step, resamples - start)
        drawn = draw.integers(0, processes, (size, processes, 1))
        within = draw.integers(0, rounds, (size, processes, rounds))
        found.append(np.percentile(values[drawn, within].reshape(size, -1), percent, axis=1))
    return np.concatenate(found)


def _tango_upper(lost: float, gained: float, n: int) -> float:
    """Root in d of (lost - gained - n d) / sqrt(n (2 q + d (1 - d))) = -z, by bisection."""

    def score(d: float) -> float:
        b = -lost - gained + (2 * n - lost + gained) * d
        c = -gained * d * (1 - d)
        q = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        variance = n * (2 * q + d * (1 - d))
        return (lost - gained - n * d) / math.sqrt(variance) if variance > 0 else -math.inf

    low, high = (lost - gained) / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > -Z_ONE_SIDED_95 else (low, middle)
    return high


def _bound(point: float, found: Float64, side: Side, samples: int, groups: int) -> Bound:
    if np.isnan(found).any():
        raise DataError("the statistic is not a number on a resample")
    ranked = np.sort(found)
    at = 0.05 * (len(ranked) - 1)
    edge = float(ranked[math.floor(at)] if side == "lower" else ranked[-1 - math.floor(at)])
    edge = min(edge, point) if side == "lower" else max(edge, point)
    return Bound(point, edge, side, samples, groups, len(found))


def _scaled(found: Bound, point: float, bound: float) -> Bound:
    return Bound(point, bound, found.side, found.n_samples, found.n_groups, found.resamples)


def _quotient(above: Any, below: Any) -> Any:
    if np.any(np.asarray(below) == 0.0):
        raise DataError("a ratio with nothing below the line")
    return above / below


def _decibels(signal: Any, noise: Any) -> Any:
    if np.any(np.asarray(signal) == 0.0):
        raise DataError(
            "the reference is all zeros: no signal to compare with",
            hint="check the samples and the reference model",
        )
    with np.errstate(divide="ignore"):
        return 10.0 * np.log10(np.divide(signal, noise))


def _group_index(groups: Sequence[str], samples: int) -> tuple[npt.NDArray[np.intp], int]:
    if len(groups) != samples:
        raise DataError(f"{len(groups)} groups for {samples} samples")
    names, index = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    return index, len(names)


def _finite(values: Array, what: str) -> Float64:
    data = np.asarray(values, np.float64)
    if data.size == 0:
        raise DataError(f"{what}: no values")
    if not np.isfinite(data).all():
        raise DataError(f"{what}: NaN or infinity", hint="the model or its input is broken")
    return data


def _vector(values: Array, what: str) -> Float64:
    data = _finite(values, what)
    if data.ndim != 1:
        raise DataError(f"{what}: needs one value a sample, found shape {data.shape}")
    return data


def _matrix(values: Array, what: str) -> Float64:
    data = _finite(values, what)
    if data.ndim != 2:
        raise DataError(f"{what}: needs [samples, classes], found shape {data.shape}")
    return data


def _rows(values: Array, what: str) -> Float64:
    data = _finite(values, what)
    return data.reshape(data.shape[0], -1) if data.ndim else data.reshape(1, 1)


def _times(values: Array, what: str) -> Float64:
    data = _matrix(values, what)
    if data.min() <= 0.0:
        raise DataError(f"{what}: a time is not positive")
    return data


def _same_shape(a: Array, b: Array) -> None:
    if a.shape != b.shape:
        raise DataError(f"shapes differ: {a.shape} and {b.shape}")
