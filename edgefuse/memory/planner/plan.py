"""Offsets for buffers in one arena, as small as can be found, and whether it is proven smallest.

Steps: the bound, which is the most bytes alive at once; greedy passes (:mod:`greedy`), which end at
it on nearly every inference graph; else a search for a plan at the bound (:mod:`pack`), else
bisection between what is excluded and what is found. Every plan is checked by independent code
(:mod:`check`) before anybody sees it.

Deterministic: how long is searched is counted in units of work (``effort``), not in seconds, so
that equal input gives an equal plan on any machine. ``time_limit_s`` only cuts: a plan that it cut
short says so (``timed_out``) and may be larger than that of a faster machine. The defaults are far
enough apart that the limit cuts on slow machines alone.

Alignment: sizes are rounded up to it, so that the arena is a multiple of it, and the bound is that
of the rounded sizes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.errors import StageError
from edgefuse.memory.arena import Live, peak
from edgefuse.memory.planner.buffers import refuse_bad_alignment, refuse_bad_buffers
from edgefuse.memory.planner.check import faults
from edgefuse.memory.planner.greedy import best_greedy
from edgefuse.memory.planner.pack import Packing, pack
from edgefuse.memory.planner.sections import Ints, Sections, sections

EFFORT = 20_000
TIME_LIMIT_S = 30.0
_SHARE_AT_THE_BOUND = 2
_LEAST_EFFORT = 500


@dataclass(frozen=True)
class Plan:
    """Where every buffer lies.

    Attributes:
        offsets: bytes from the arena's beginning, by name; zero-sized buffers lie at 0.
        arena_bytes: of the arena, a multiple of the alignment.
        bound_bytes: no plan needs less; proven.
        proven: whether the arena equals the bound, so that no smaller one exists.
        seconds: that planning took.
        method: the pass or search that made the plan.
        timed_out: whether the time limit cut the search short.
    """

    offsets: Mapping[str, int]
    arena_bytes: int
    bound_bytes: int
    proven: bool
    seconds: float
    method: str
    timed_out: bool = False


def plan(
    buffers: Sequence[Live],
    *,
    alignment: int = 1,
    capacity: int | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    effort: int = EFFORT,
) -> Plan:
    """Plan one arena.

    Args:
        buffers: what has to be placed; names are unique.
        alignment: bytes, a power of two; every offset is a multiple of it.
        capacity: bytes; planning ends at the first plan that fits. Without it the smallest arena is
            looked for.
        time_limit_s: cuts the search; the greedy passes by size are always made.
        effort: units of work, about 10,000 a second.

    Raises:
        StageError: bad buffers; a capacity below the bound; no plan within it that was found.
    """
    began = time.monotonic()
    refuse_bad_buffers(buffers)
    refuse_bad_alignment(alignment)
    solid = [buffer for buffer in buffers if buffer.size_bytes]
    offsets = {buffer.name: 0 for buffer in buffers}
    bound = peak(solid, alignment)[0]
    if capacity is not None and bound > capacity:
        raise StageError(
            f"{bound} bytes are alive at once, {capacity} are there: no plan can fit",
            hint=f"give at least {bound} bytes, or make the buffers smaller",
        )
    if not solid:
        return Plan(offsets, 0, 0, proven=True, seconds=0.0, method="nothing to place")
    problem = sections(solid, alignment)
    found = _Found(problem, bound // problem.unit, began + time_limit_s)
    found.improve(None if capacity is None else capacity // problem.unit, effort)
    arena = found.height * problem.unit
    offsets |= {
        buffer.name: offset * problem.unit
        for buffer, offset in zip(solid, found.offset.tolist(), strict=True)
    }
    wrong = faults(buffers, offsets, arena, alignment)
    if wrong:
        raise AssertionError(f"the planner made a plan that does not hold: {wrong[0]}")
    lowest = found.excluded * problem.unit
    if capacity is not None and arena > capacity:
        state = "no plan fits" if lowest > capacity else "no plan was found that fits"
        raise StageError(
            f"{state} {capacity} bytes: the smallest found needs {arena}, the bound is {lowest}",
            hint=f"give {arena} bytes"
            + ("" if lowest > capacity else ", or search longer (effort, time_limit_s)"),
        )
    return Plan(
        offsets=offsets,
        arena_bytes=arena,
        bound_bytes=lowest,
        proven=arena == lowest,
        seconds=time.monotonic() - began,
        method=found.method,
        timed_out=found.timed_out,
    )


class _Found:
    """The smallest plan so far, and the heights that are excluded."""

    def __init__(self, problem: Sections, bound: int, deadline: float) -> None:
        self.problem, self.deadline = problem, deadline
        self.excluded = bound
        """No plan is lower than this many units."""
        self.offset: Ints
        self.timed_out = False
        self.offset, self.height, self.method = best_greedy(problem, bound, deadline)

    def improve(self, enough: int | None, effort: int) -> None:
        """Search until the plan is ``enough``, proven smallest, or the effort is spent."""
        target = self.excluded if enough is None else enough
        if self.height <= target:
            return
        share = effort if enough is not None else effort // _SHARE_AT_THE_BOUND
        effort -= self._try(target, share)
        floor = self.excluded if self.height > target else self.height
        # What was not found is taken for excluded while bisecting, but never for proven.
        floor = max(floor, target + 1)
        while enough is None and floor < self.height and not self.timed_out:
            middle = (floor + self.height) // 2
            middle = min(middle, self.height - 1)
            share = max(effort // _SHARE_AT_THE_BOUND, _LEAST_EFFORT)
            if effort < _LEAST_EFFORT:
                return
            before = self.height
            effort -= max(self._try(middle, share), 1)
            if self.height == before:
                floor = middle + 1

    def _try(self, height: int, effort: int) -> int:
        """Search at ``height``; the work it took."""
        answer: Packing = pack(self.problem, height, effort, self.deadline)
        self.timed_out = self.timed_out or answer.timed_out
        if answer.verdict == "impossible":
            self.excluded = max(self.excluded, height + 1)
        if answer.offset is not None:
            self.offset = answer.offset
            self.height = int(np.max(answer.offset + self.problem.size))
            self.method = f"packed by {answer.order}"
        return answer.work
