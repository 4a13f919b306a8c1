"""Two models on the same samples: is the difference real, and how many samples would tell.

Problem: float and int8 answer nearly alike, so two separate accuracies hide how few samples decide.
Only the discordant ones count: with ``lost`` samples that the reference alone has right and
``gained`` ones that the candidate alone has right,

    drop = (lost - gained) / n,        p = P(|sum g_k s_k| >= |sum g_k|),        s_k = +1 or -1

at even odds, over the net loss g_k of each source picture. With one sample a picture that is
McNemar's exact test (Psychometrika 12, 1947); crops of one picture flip together, as one.

:func:`needed_samples` answers an inconclusive gate: the number of samples at which the same figures
would decide. It assumes that the rates stay as they are, and promises nothing where they do not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.bounds import (
    TWO_SIDED_95,
    Bound,
    cluster_bootstrap_bound,
    drop_bound,
    group_index,
    tango_upper,
    wilson_interval,
)
from edgefuse.bounds import Z_ONE_SIDED_95 as Z
from edgefuse.metrics import Array, Float64, finite_vector, require_same_shape

_MOST = 10_000_000


@dataclass(frozen=True)
class Paired:
    """A candidate against its reference, hit by hit.

    Attributes:
        n_samples: samples.
        n_groups: source pictures.
        lost: samples that the reference alone has right.
        gained: samples that the candidate alone has right.
        drop_points: (lost - gained) / n_samples, in points; negative is a gain.
        interval_points: two-sided 95% interval of the drop.
        p_value: exact, two-sided: how likely a net loss or gain of this size is between models
            that are equally good.
    """

    n_samples: int
    n_groups: int
    lost: int
    gained: int
    drop_points: float
    interval_points: tuple[float, float]
    p_value: float


def paired(
    reference_hits: Array,
    candidate_hits: Array,
    groups: Sequence[str],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Paired:
    """Compare 0/1 hits of two models on the same samples.

    Args:
        reference_hits: of the float model, as :func:`edgefuse.metrics.top_k_hits` gives them.
        candidate_hits: of the int8 model.
        groups: the source picture of each sample.

    Raises:
        DataError: unequal lengths, NaN, no samples.
    """
    a, b = finite_vector(reference_hits, "reference"), finite_vector(candidate_hits, "candidate")
    require_same_shape(a, b)
    low, high = (
        drop_bound(a, b, groups, resamples=resamples, seed=seed, side=side, tail=TWO_SIDED_95)
        for side in ("lower", "upper")
    )
    return Paired(
        n_samples=len(a),
        n_groups=low.n_groups,
        lost=int((a > b).sum()),
        gained=int((a < b).sum()),
        drop_points=low.point,
        interval_points=(low.bound, high.bound),
        p_value=mcnemar_p(a, b, groups),
    )


def mcnemar_p(reference_hits: Array, candidate_hits: Array, groups: Sequence[str]) -> float:
    """Exact two-sided p-value of no difference, by the signs of each source picture's net loss."""
    a, b = finite_vector(reference_hits, "reference"), finite_vector(candidate_hits, "candidate")
    require_same_shape(a, b)
    index, count = group_index(groups, len(a))
    net = np.rint(np.bincount(index, weights=a - b, minlength=count)).astype(int)
    sizes = Counter(abs(net[net != 0]).tolist())
    odds: Float64 = np.ones(1)  # of the sum under random signs, from -reach in steps of 1
    for size, times in sorted(sizes.items()):
        spread = np.zeros(2 * size * times + 1)
        spread[:: 2 * size] = _binomial(times)
        odds = np.convolve(odds, spread)
    reach = len(odds) // 2
    sums = np.abs(np.arange(-reach, reach + 1))
    return min(1.0, float(odds[sums >= abs(int(net.sum()))].sum()))


def needed_samples(
    found: Bound, threshold: float, score: Callable[[float], float] | None = None
) -> int | None:
    """About how many samples bring the bound to the threshold, if the figures stay as they are.

    The resampled bound nears the figure as 1 / sqrt(n); ``score`` gives the score bound at any
    number of groups, and the more careful of the two must hold.

    Args:
        found: the figure with its bootstrap bound, in the threshold's unit.
        threshold: what the bound must reach.

    Returns:
        Samples in all, rounded up to two digits; None when no number settles it: the figure lies
        on the threshold or beyond it, or it would take more than ten million.
    """
    sign = 1.0 if found.side == "lower" else -1.0
    if sign * (found.point - threshold) <= 0:
        return None

    def holds(growth: float) -> bool:
        bound = found.point + (found.bound - found.point) / math.sqrt(growth)
        if score is not None:
            scored = score(growth * found.n_groups)
            bound = min(bound, scored) if sign > 0 else max(bound, scored)
        return sign * (bound - threshold) >= 0

    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
        if low * found.n_samples > _MOST:
            return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if middle > 0 and holds(middle) else (middle, high)
    return _two_digits(high * found.n_samples)


def agreement_needs(
    hits: Array, groups: Sequence[str], min_percent: float, *, resamples: int, seed: int
) -> int | None:
    """:func:`needed_samples` for an agreement or accuracy judged by ``agreement_bound``."""
    found = cluster_bootstrap_bound(hits, groups, resamples=resamples, seed=seed, side="lower")
    return needed_samples(
        found, min_percent / 100, lambda n: wilson_interval(found.point * n, n, Z)[0]
    )


def drop_needs(
    reference_hits: Array,
    candidate_hits: Array,
    groups: Sequence[str],
    max_points: float,
    *,
    resamples: int,
    seed: int,
) -> int | None:
    """:func:`needed_samples` for a drop judged by ``drop_bound``."""
    a, b = finite_vector(reference_hits, "reference"), finite_vector(candidate_hits, "candidate")
    require_same_shape(a, b)
    found = cluster_bootstrap_bound(a - b, groups, resamples=resamples, seed=seed, side="upper")
    lost, gained = float((a > b).mean()), float((a < b).mean())
    return needed_samples(found, max_points / 100, lambda n: tango_upper(lost * n, gained * n, n))


def _binomial(n: int) -> Float64:
    """P(k of n) at even odds, k = 0..n."""
    logs = np.array([math.lgamma(k + 1) for k in range(n + 1)])
    odds: Float64 = np.exp(logs[-1] - logs - logs[::-1] - n * math.log(2.0))
    return odds


def _two_digits(value: float) -> int:
    step = 10 ** max(0, math.floor(math.log10(max(value, 1.0))) - 1)
    return int(math.ceil(round(value / step, 6)) * step)
