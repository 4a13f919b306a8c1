"""Whether calibration has seen enough: which ranges still move, and how many samples would do.

Ranges are estimated after 1/8, 1/4 and 1/2 of the samples, beside the final ones. How far a range
moved between two of them counts in int8 steps of the final range:

    move = max(|low' - low|, |high' - high|) / ((high - low) / 255)

A range is settled when the last doubling of the samples moved it by at most 4 steps. If not all
are, the moves of the doublings are fitted with n^-a and the fit is followed until the greatest is
4 steps. Only two numbers a tensor are kept of each estimate. This tells about samples like those
given; it cannot know of samples that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefuse.quant.calibrate import TensorStatistics
    from edgefuse.quant.ranges import Range

SETTLED_STEPS = 4.0
_SLOWEST, _USUAL, _FASTEST = 0.25, 0.5, 2.0
_NAMED = 5
_FARTHEST = 100
_Ends = dict[str, list[float]]


class Convergence:
    """Collects estimates while :func:`~edgefuse.quant.calibrate.calibrate` runs.

    Args:
        feeds: how many there will be.
        estimate: from the statistics so far to ranges, as the final ones are chosen.
        samples_per_feed: the model's batch.
    """

    def __init__(
        self,
        feeds: int,
        estimate: Callable[[Sequence[TensorStatistics]], Mapping[str, Range]],
        samples_per_feed: int = 1,
    ) -> None:
        self.feeds = feeds
        self.counts = sorted({-(-feeds * k // 8) for k in (1, 2, 4)} - {0, feeds})
        self._estimate = estimate
        self._samples_per_feed = samples_per_feed
        self._estimates: dict[int, _Ends] = {}

    def look(self, done: int, statistics: Sequence[TensorStatistics]) -> None:
        """Note the ranges after ``done`` feeds, if an estimate is due."""
        if done in self.counts:
            self._estimates[done] = _ends(self._estimate(statistics))

    def to_json(self) -> dict[str, _Ends]:
        return {str(count): ends for count, ends in self._estimates.items()}

    def take(self, noted: Mapping[str, _Ends]) -> None:
        """Go on from what :meth:`to_json` gave."""
        self._estimates = {int(count): dict(ends) for count, ends in noted.items()}

    def report(self, final: Mapping[str, Range]) -> dict[str, Any]:
        """Evidence, JSON.

        Returns:
            ``samples``; ``settled_at``: the least number of samples from which on no range was
            more than 4 steps from its final ends, null when none; ``moving``: how many ranges the
            last doubling moved by more; ``worst``: the farthest, in steps by tensor;
            ``enough_samples``: estimated, null when settled or beyond 100 times the samples;
            ``summary``: a sentence.
        """
        every = {**self._estimates, self.feeds: _ends(final)}
        counts = sorted(every)
        samples = self.feeds * self._samples_per_feed
        if len(counts) < 2:
            return {
                "samples": samples,
                "settled_at": None,
                "moving": 0,
                "worst": {},
                "enough_samples": None,
                "summary": f"{samples} {'sample says' if samples == 1 else 'samples say'} "
                "nothing on whether the ranges are settled",
            }
        last = _moves(every[counts[-2]], every[self.feeds], final)
        moving = sorted((n for n in last if last[n] > SETTLED_STEPS), key=lambda n: -last[n])
        settled = None
        for count in reversed(counts):
            if max(_moves(every[count], every[self.feeds], final).values()) > SETTLED_STEPS:
                break
            settled = count * self._samples_per_feed
        enough = None
        if moving:
            steps = [_moves(every[a], every[b], final) for a, b in pairwise(counts)]
            factor = (last[moving[0]] / SETTLED_STEPS) ** (1 / _rate(steps, moving))
            enough = _two_digits(samples * factor) if factor <= _FARTHEST else None
        earlier = counts[-2] * self._samples_per_feed
        return {
            "samples": samples,
            "settled_at": settled if not moving else None,
            "moving": len(moving),
            "worst": {name: round(last[name], 1) for name in moving[:_NAMED]},
            "enough_samples": enough,
            "summary": _sentence(samples, earlier, settled, moving, last, enough),
        }


def _ends(ranges: Mapping[str, Range]) -> _Ends:
    return {name: [found.low, found.high] for name, found in ranges.items()}


def _moves(before: _Ends, after: _Ends, final: Mapping[str, Range]) -> dict[str, float]:
    return {
        name: max(abs(a - b) for a, b in zip(before[name], after[name]))
        / ((found.high - found.low) / 255)
        for name, found in final.items()
    }


def _rate(steps: Sequence[Mapping[str, float]], moving: Sequence[str]) -> float:
    """The exponent a of moves that shrink as n^-a, over all tensors that still move."""
    first, last = (sum(move[name] for name in moving) for move in (steps[0], steps[-1]))
    if len(steps) < 2 or not first or not last:
        return _USUAL
    return min(max(math.log2(first / last) / (len(steps) - 1), _SLOWEST), _FASTEST)


def _two_digits(value: float) -> int:
    digits = max(0, math.ceil(math.log10(value)) - 2)
    return math.ceil(value / 10**digits) * int(10**digits)


def _sentence(
    samples: int,
    earlier: int,
    settled: int | None,
    moving: Sequence[str],
    last: Mapping[str, float],
    enough: int | None,
) -> str:
    if not moving:
        return f"the ranges were settled by {settled} of {samples} samples"
    would = f"about {enough} samples would settle them" if enough else "more samples will not do"
    are = "range" if len(last) == 1 else "ranges"
    return (
        f"{len(moving)} of {len(last)} {are} moved by more than {SETTLED_STEPS:g} int8 steps "
        f"between {earlier} and {samples} samples ({moving[0]!r} by {last[moving[0]]:.0f}); {would}"
    )
