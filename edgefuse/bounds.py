"""How sure one can be of a figure: confidence bounds, resampled by source picture.

Bounds are one-sided at 95% unless ``tail`` says otherwise; two of tail 0.025 are the two-sided 95%
interval. Samples of one source picture are one group, and groups are resampled (cluster bootstrap:
Davison and Hinkley, *Bootstrap Methods and their Application*, 1997, section 3.8). A bootstrap of
few groups is too sure of itself: every :class:`Bound` says how many there were, below five it means
little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from edgefuse.errors import DataError
from edgefuse.metrics import (
    Array,
    Float64,
    decibels_of,
    finite_matrix,
    finite_vector,
    require_same_shape,
)

Side = Literal["lower", "upper"]

ONE_SIDED_95 = 0.05
TWO_SIDED_95 = 0.025
Z_ONE_SIDED_95 = 1.6448536269514722
Z_TWO_SIDED_95 = 1.959963984540054
_CHUNK = 4_000_000


class Resampling(TypedDict):
    """What every bootstrap needs: how often, and from which seed."""

    resamples: int
    seed: int


@dataclass(frozen=True)
class Bound:
    """A figure with its bound on one side.

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


def wilson_interval(successes: float, n: float, z: float = Z_TWO_SIDED_95) -> tuple[float, float]:
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


def tango_upper(lost: float, gained: float, n: float, z: float = Z_ONE_SIDED_95) -> float:
    """Tango's score bound of a drop among ``n`` pairs, as a fraction.

    The root in d of (lost - gained - n d) / sqrt(n (2 q + d (1 - d))) = -z, by bisection.
    """

    def score(d: float) -> float:
        b = -lost - gained + (2 * n - lost + gained) * d
        c = -gained * d * (1 - d)
        q = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        variance = n * (2 * q + d * (1 - d))
        return (lost - gained - n * d) / math.sqrt(variance) if variance > 0 else -math.inf

    low, high = (lost - gained) / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > -z else (low, middle)
    return high


def cluster_bootstrap_bound(
    values: Array,
    groups: Sequence[str],
    *,
    resamples: int,
    seed: int,
    side: Side,
    tail: float = ONE_SIDED_95,
    statistic: Callable[[Float64], float] | None = None,
) -> Bound:
    """Bound of a statistic of per-sample values; the default statistic is the mean.

    Whole groups are drawn with replacement. The mean is fast; another statistic is called once a
    resample with the values of the drawn groups.
    """
    data = finite_vector(values, "values")
    if statistic is None:
        return cluster_bootstrap_ratio(
            data, np.ones_like(data), groups, resamples=resamples, seed=seed, side=side, tail=tail
        )
    index, count = group_index(groups, len(data))
    members = [np.flatnonzero(index == group) for group in range(count)]
    draw = np.random.default_rng(seed)
    found = np.array(
        [
            statistic(data[np.concatenate([members[g] for g in draw.integers(0, count, count)])])
            for _ in range(resamples)
        ]
    )
    return _bound(float(statistic(data)), found, side, len(data), count, tail)


def cluster_bootstrap_ratio(
    numerator: Array,
    denominator: Array,
    groups: Sequence[str],
    *,
    resamples: int,
    seed: int,
    side: Side,
    tail: float = ONE_SIDED_95,
    decibels: bool = False,
) -> Bound:
    """Bound of sum(numerator) / sum(denominator) over samples, or of 10 log10 of it.

    With the two results of :func:`energies` and ``decibels`` this is the SQNR.
    """
    above, below = finite_vector(numerator, "numerator"), finite_vector(denominator, "denominator")
    require_same_shape(above, below)
    index, count = group_index(groups, len(above))
    a, b = (np.bincount(index, weights=v, minlength=count) for v in (above, below))
    draw = np.random.default_rng(seed)
    ratio: Callable[[Any, Any], Any] = decibels_of if decibels else _quotient
    found: list[Float64] = []
    for start in range(0, resamples, step := max(1, _CHUNK // count)):
        drawn = draw.integers(0, count, (min(step, resamples - start), count))
        found.append(ratio(a[drawn].sum(axis=1), b[drawn].sum(axis=1)))
    point = float(ratio(a.sum(), b.sum()))
    return _bound(point, np.concatenate(found), side, len(above), count, tail)


def agreement_bound(
    hits: Array,
    groups: Sequence[str],
    *,
    resamples: int,
    seed: int,
    side: Side = "lower",
    tail: float = ONE_SIDED_95,
) -> Bound:
    """Bound of an agreement or accuracy, in percent, from 0/1 a sample.

    The more careful of the cluster bootstrap's bound and Wilson's with one trial a group: where
    nothing disagreed a bootstrap alone has nothing to vary, and would call 20 of 20 a proven 100%.
    """
    found = cluster_bootstrap_bound(
        hits, groups, resamples=resamples, seed=seed, side=side, tail=tail
    )
    low, high = wilson_interval(found.point * found.n_groups, found.n_groups, _z(tail))
    bound = min(found.bound, low) if side == "lower" else max(found.bound, high)
    return _scaled(found, 100.0 * found.point, 100.0 * bound)


def drop_bound(
    reference_hits: Array,
    candidate_hits: Array,
    groups: Sequence[str],
    *,
    resamples: int,
    seed: int,
    side: Side = "upper",
    tail: float = ONE_SIDED_95,
) -> Bound:
    """Bound of an accuracy drop, in points, from paired 0/1 a sample.

    The more careful of the cluster bootstrap's bound and Tango's score bound (Statistics in
    Medicine 17, 1998) with one pair a group, for the reason given at :func:`agreement_bound`.
    """
    a, b = finite_vector(reference_hits, "reference"), finite_vector(candidate_hits, "candidate")
    require_same_shape(a, b)
    found = cluster_bootstrap_bound(
        a - b, groups, resamples=resamples, seed=seed, side=side, tail=tail
    )
    share = found.n_groups / found.n_samples
    lost, gained = float((a > b).sum()) * share, float((a < b).sum()) * share
    if side == "upper":
        bound = max(found.bound, tango_upper(lost, gained, found.n_groups, _z(tail)))
    else:
        bound = min(found.bound, -tango_upper(gained, lost, found.n_groups, _z(tail)))
    return _scaled(found, 100.0 * found.point, 100.0 * bound)


def paired_ratio(
    candidate: Array, reference: Array, *, resamples: int = 2000, seed: int = 0
) -> PairedRatio:
    """Statistics of candidate / reference, both ``[processes, rounds]`` in one unit of time.

    The two times of one round were taken next to each other, so drift cancels in their ratio.
    """
    a, b = _times(candidate, "candidate"), _times(reference, "reference")
    require_same_shape(a, b)
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


def _z(tail: float) -> float:
    return NormalDist().inv_cdf(1.0 - tail)


def _bound(
    point: float,
    found: Float64,
    side: Side,
    samples: int,
    groups: int,
    tail: float = ONE_SIDED_95,
) -> Bound:
    if np.isnan(found).any():
        raise DataError("the statistic is not a number on a resample")
    ranked = np.sort(found)
    at = tail * (len(ranked) - 1)
    edge = float(ranked[math.floor(at)] if side == "lower" else ranked[-1 - math.floor(at)])
    edge = min(edge, point) if side == "lower" else max(edge, point)
    return Bound(point, edge, side, samples, groups, len(found))


def _scaled(found: Bound, point: float, bound: float) -> Bound:
    return Bound(point, bound, found.side, found.n_samples, found.n_groups, found.resamples)


def _quotient(above: Any, below: Any) -> Any:
    if np.any(np.asarray(below) == 0.0):
        raise DataError("a ratio with nothing below the line")
    return above / below


def group_index(groups: Sequence[str], samples: int) -> tuple[npt.NDArray[np.intp], int]:
    if len(groups) != samples:
        raise DataError(f"{len(groups)} groups for {samples} samples")
    names, index = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    return index, len(names)


def _times(values: Array, what: str) -> Float64:
    data = finite_matrix(values, what)
    if data.min() <= 0.0:
        raise DataError(f"{what}: a time is not positive")
    return data
