"""Whether calibration has seen enough: which ranges still move, and how many samples would do.

Ranges are estimated after 1/8, 1/4 and 1/2 of the samples, beside the final ones. How far a range
moved between two of them counts in int8 steps of the final range:

    move = max(|low' - low|, |high' - high|) / ((high - low) / 255)

A range is settled when the last doubling of the samples moved it by at most 4 steps. The ranges
as a whole are settled when nine of ten are. If they are not, the move that nine of ten stay
below, m, pooled over the doublings, is taken to shrink as that of any quantile, as n^(-1/2):

    samples that would do = n (m / 4)^2

Only two numbers a tensor are kept of each estimate. All this is about samples like those given:
it cannot know of samples that are missing, and the ends of ``minmax`` settle more slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefuse.quant.calibration.calibrate import TensorStatistics
    from edgefuse.quant.calibration.ranges import Range

SETTLED_STEPS = 4.0
_SETTLED_SHARE = 0.9
_FARTHEST = 30
_NAMED = 5
_Ends = dict[str, list[float]]


@dataclass(frozen=True)
class Settling:
    """What the estimates say.

    Attributes:
        samples: how many there were.
        tensors: how many ranges.
        moving: ranges that the last doubling moved by more than 4 steps, farthest first, with
            their move in steps.
        settled_at: the number of samples from which on nine of ten ranges were within 4 steps of
            their final ends; None when the last doubling still moved more of them.
        enough_samples: how many would do, estimated; None when these did, or when it is more than
            30 times as many, which nobody can tell.
        earlier: the samples before the last doubling; 0 when there were too few to tell.
    """

    samples: int
    tensors: int
    moving: Mapping[str, float]
    settled_at: int | None
    enough_samples: int | None
    earlier: int

    @property
    def summary(self) -> str:
        if not self.earlier:
            rest = "one sample" if self.samples == 1 else f"{self.samples} samples"
            return f"the ranges rest on {rest}: too few to tell whether they are settled"
        if self.settled_at is not None:
            return f"the ranges were settled by {self.settled_at} of {self.samples} samples"
        name, steps = next(iter(self.moving.items()))
        would = f"about {self.enough_samples}"
        if self.enough_samples is None:
            would = f"more than {_two_digits(self.samples * _FARTHEST)}"
        return (
            f"{len(self.moving)} of {self.tensors} ranges moved by more than {SETTLED_STEPS:g} "
            f"int8 steps between {self.earlier} and {self.samples} samples (farthest {name!r}: "
            f"{steps:.0f}); {would} samples would settle nine of ten"
        )

    def to_json(self) -> dict[str, Any]:
        """Evidence, small: the five ranges that moved farthest stand for the others."""
        worst = list(self.moving.items())[:_NAMED]
        return {
            "samples": self.samples,
            "settled_at": self.settled_at,
            "enough_samples": self.enough_samples,
            "moving": len(self.moving),
            "farthest_steps": {name: round(steps, 1) for name, steps in worst},
            "summary": self.summary,
        }


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

    def settling(self, final: Mapping[str, Range]) -> Settling:
        """Compare the estimates with the final ranges."""
        every = {**self._estimates, self.feeds: _ends(final)}
        counts, batch = sorted(every), self._samples_per_feed
        samples = self.feeds * batch
        if len(counts) < 2:
            return Settling(samples, len(final), {}, None, None, 0)
        steps = [_moves(every[a], every[b], final) for a, b in pairwise(counts)]
        far = sorted(steps[-1].items(), key=lambda item: -item[1])
        moving = {name: move for name, move in far if move > SETTLED_STEPS}
        settled = enough = None
        if _most(steps[-1]) <= SETTLED_STEPS:
            settled = samples
            for count in reversed(counts[:-1]):
                if _most(_moves(every[count], every[self.feeds], final)) > SETTLED_STEPS:
                    break
                settled = count * batch
        else:
            squares = [
                _most(move) ** 2 * count / self.feeds for move, count in zip(steps, counts[1:])
            ]
            pooled = sum(squares) / len(squares) / SETTLED_STEPS**2
            enough = _two_digits(samples * max(pooled, 2.0)) if pooled <= _FARTHEST else None
        return Settling(samples, len(final), moving, settled, enough, counts[-2] * batch)


def _ends(ranges: Mapping[str, Range]) -> _Ends:
    return {name: [found.low, found.high] for name, found in ranges.items()}


def _moves(before: _Ends, after: _Ends, final: Mapping[str, Range]) -> dict[str, float]:
    return {
        name: max(abs(a - b) for a, b in zip(before[name], after[name]))
        / ((found.high - found.low) / 255)
        for name, found in final.items()
    }


def _most(moves: Mapping[str, float]) -> float:
    """The move that nine of ten stay below or at."""
    ordered = sorted(moves.values())
    return ordered[math.ceil(_SETTLED_SHARE * len(ordered)) - 1]


def _two_digits(value: float) -> int:
    digits = max(0, math.ceil(math.log10(value)) - 2)
    unit: int = 10**digits
    return math.ceil(value / unit) * unit
