"""Depth-first packing: do these buffers fit in that many units, and where?

Problem: greedy plans miss the lower bound by a tenth and more when buffers are many and tightly
meshed. Whether a plan of a given height exists is a search, and a bounded one finds it usually.

Search: if a plan exists, one exists in which no buffer can sink; there every buffer rests on the
floor or on a neighbour (a buffer alive at the same time). Buffers are placed from the bottom up, by
(offset, order), so that the least offset of one still to be placed is the top of its neighbours
placed so far. Cut off are

- an offset that leaves a gap under it into which a buffer to be placed would sink;
- a section whose lowest free offset plus all that is to be placed in it exceeds the height, where
  a buffer whose own least offset has been passed must wait for a neighbour to rest on;
- the other candidates at a placement that had no part in the failure above it.

Where no buffer to be placed spans a point of time, the two sides are searched by themselves. Among
equal offsets the *order* decides who is tried first; no order is best, so several take turns with
growing budgets.

Deterministic: budgets are work (a placement tried, more in large problems), never seconds. A
deadline only cuts: the answer is then "unknown", never another plan.

Scope: up to ``MOST_BUFFERS`` buffers; more are answered with "unknown" at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgefuse.memory.planner.sections import Ints, Sections

MOST_BUFFERS = 2000
_FIRST_TURN = 1000
_GROWTH = 3
_LOOKS_AT_THE_CLOCK_EVERY = 32
_MEMBERS_A_UNIT_OF_WORK = 2000
_PLACED = 2**62

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Packing:
    """The answer of a search.

    Attributes:
        verdict: "fits", "impossible" (proven by exhaustion), or "unknown" (out of work or time).
        offset: of each buffer, in units; None unless it fits.
        work: placements tried, in units of work.
        order: the order that fitted.
        timed_out: whether the deadline, and not the budget, ended the search.
    """

    verdict: Literal["fits", "impossible", "unknown"]
    offset: Ints | None
    work: int
    order: str = ""
    timed_out: bool = False


def pack(problem: Sections, height: int, budget: int, deadline: float) -> Packing:
    """Search for offsets below ``height`` units, with ``budget`` units of work in all."""
    if len(problem.size) > MOST_BUFFERS:
        return Packing("unknown", None, 0)
    mesh = _Mesh(problem)
    work, turn = 0, _FIRST_TURN
    while work < budget:
        for name, rank in _orders(problem, mesh).items():
            for jumps in (True, False):
                search = _Search(mesh, height, rank, min(turn, budget - work), deadline, jumps)
                try:
                    fits = search.run()
                except _OutOfWork:
                    work += search.work
                    if search.timed_out:
                        return Packing("unknown", None, work, timed_out=True)
                    break
                work += search.work
                if fits:
                    return Packing("fits", search.offset, work, name)
                # A jump may have skipped a plan: only a search without one proves anything.
                if not search.jumped:
                    return Packing("impossible", None, work)
            if work >= budget:
                break
        turn *= _GROWTH
    return Packing("unknown", None, work)


def _orders(problem: Sections, mesh: _Mesh) -> dict[str, Ints]:
    """For each order the rank of every buffer."""
    pressure = problem.pressure()
    spans = list(zip(problem.start, problem.stop, strict=True))
    highest = np.array([pressure[a:b].max() for a, b in spans], np.int64)
    span, lifetime, size = problem.stop - problem.start, problem.lifetime, problem.size
    tall = highest.astype(float)
    area, near = size.astype(float) * lifetime, mesh.meets.sum(1).astype(float)
    # Found by drawing exponents at random; roots and products are the same on every machine.
    crowded = area * near * near * np.sqrt(np.sqrt(near)) * tall * tall * tall
    keys = {
        "area among neighbours": (crowded,),
        "pressure, lifetime, area": (highest, lifetime, area),
        "pressure, neighbours": (highest, near),
        "lifetime, area, pressure": (lifetime, area, highest),
        "sections, size": (span, size),
        "area in sections": (span * size.astype(float), size),
        "start": (-problem.start, lifetime),
    }
    ranks = {}
    for name, falling in keys.items():
        ranks[name] = np.empty(len(size), np.int64)
        ranks[name][np.lexsort([-key for key in reversed(falling)])] = np.arange(len(size))
    return ranks


class _OutOfWork(Exception):
    """The budget is spent, or the deadline has passed."""


class _Mesh:
    """Who meets whom: members of every section, one after the other, and neighbours."""

    def __init__(self, problem: Sections) -> None:
        start, stop = problem.start, problem.stop
        self.problem = problem
        when = np.arange(problem.count)[:, None]
        self.alive: Flags = (start <= when) & (when < stop)
        self.members: Ints = np.nonzero(self.alive)[1]
        self.at: Ints = np.concatenate(([0], np.cumsum(self.alive.sum(1))))
        self.meets: Flags = (start[:, None] < stop) & (start < stop[:, None])
        np.fill_diagonal(self.meets, val=False)
        self.neighbours = [np.flatnonzero(row) for row in self.meets]


@dataclass(frozen=True)
class _State:
    """After some placements.

    Attributes:
        lowest: least offset of each buffer to be placed; ``_PLACED`` for the others.
        support: the neighbour that it would rest on; the number of buffers for the floor.
        left: units to be placed in each section.
        crossing: buffers to be placed that span each cut between sections.
    """

    lowest: Ints
    support: Ints
    left: Ints
    crossing: Ints


@dataclass
class _Frame:
    """A part of time to be packed: one of the candidates has to do.

    Attributes:
        begin: first section of the part; ``end`` is the section after its last.
        todo: the buffers to be placed, by index.
        candidates: those that may come next, the next one last.
        blame: buffers that had a part in the failures so far.
        current: the candidate that was placed, and the parts that are to be packed above it.
    """

    begin: int
    end: int
    todo: Ints
    state: _State
    candidates: list[int]
    blame: Flags
    current: int = -1
    parts: list[tuple[int, int, Ints]] = field(default_factory=list)
    above: _State | None = None


class _Search:
    """One depth-first search with one order."""

    def __init__(
        self,
        mesh: _Mesh,
        height: int,
        rank: Ints,
        budget: int,
        deadline: float,
        jumps: bool,
    ) -> None:
        self.mesh, self.problem = mesh, mesh.problem
        self.height, self.rank, self.budget = height, rank, budget
        self.deadline, self.jumps = deadline, jumps
        self.offset: Ints = np.zeros(len(rank), np.int64)
        self.work = self._tried = 0
        self.jumped = self.timed_out = False

    def run(self) -> bool:
        """Whether a plan was found; it is then in ``offset``.

        Raises:
            _OutOfWork: neither found nor excluded.
        """
        count = len(self.rank)
        crossing = np.zeros(self.problem.count + 1, np.int64)
        np.add.at(crossing, self.problem.start, 1)
        np.add.at(crossing, self.problem.stop - 1, -1)
        state = _State(
            lowest=np.zeros(count, np.int64),
            support=np.full(count, count, np.int64),
            left=self.problem.pressure(),
            crossing=np.cumsum(crossing)[: self.problem.count],
        )
        if (state.left > self.height).any():
            return False
        parts = self._split(state, 0, self.problem.count, np.arange(count))
        return all(self._pack_part(self._frame(state, part, -1, -1)) for part in parts)

    def _pack_part(self, root: _Frame) -> bool:
        stack, solved = [root], False
        returning = False
        blame = root.blame
        while stack:
            frame = stack[-1]
            if returning and not solved:
                if self.jumps and not blame[frame.current]:
                    self.jumped = self.jumped or bool(frame.candidates)
                    stack.pop()
                    continue
                frame.blame |= blame
                frame.blame[frame.state.support[frame.current]] = True
            if not (returning and solved):
                frame.above = self._next(frame)
                if frame.above is None:
                    solved, returning, blame = False, True, frame.blame
                    stack.pop()
                    continue
            if not frame.parts:
                solved, returning = True, True
                stack.pop()
                continue
            assert frame.above is not None, "a candidate was placed"
            part, current = frame.parts.pop(), frame.current
            offset = int(self.offset[current])
            stack.append(self._frame(frame.above, part, offset, int(self.rank[current])))
            returning = False
        return solved

    def _frame(self, state: _State, part: tuple[int, int, Ints], offset: int, rank: int) -> _Frame:
        """The part, and who may come next in it after the placement at (offset, rank)."""
        begin, end, todo = part
        lowest = state.lowest[todo]
        tops = lowest + self.problem.size[todo]
        first = int(tops.argmin())
        ranks = self.rank[todo]
        later = (lowest > offset) | ((lowest == offset) & (ranks > rank))
        may = todo[later & (lowest < tops[first])]
        order = np.lexsort((self.rank[may], state.lowest[may]))[::-1]
        blame = np.zeros(len(self.rank) + 1, bool)
        passed = todo[~later]
        for guilty in (todo[first], state.support[todo[first]], passed, state.support[passed]):
            blame[guilty] = True
        return _Frame(begin, end, todo, state, may[order].tolist(), blame)

    def _next(self, frame: _Frame) -> _State | None:
        """Place the next candidate that is not cut off; None when there is none."""
        members = int(self.mesh.at[frame.end] - self.mesh.at[frame.begin])
        while frame.candidates:
            self._count(1 + members // _MEMBERS_A_UNIT_OF_WORK)
            frame.current = frame.candidates.pop()
            above = self._place(frame)
            if above is not None:
                return above
        return None

    def _count(self, work: int) -> None:
        self.work += work
        self._tried += 1
        if self._tried % _LOOKS_AT_THE_CLOCK_EVERY == 0 and time.monotonic() > self.deadline:
            self.timed_out = True
        if self.work > self.budget or self.timed_out:
            raise _OutOfWork

    def _place(self, frame: _Frame) -> _State | None:
        """The state after placing ``frame.current``; None, with the blame, when nothing fits."""
        current, state, size = frame.current, frame.state, self.problem.size
        offset = state.lowest[current]
        top = offset + size[current]
        near = self.mesh.neighbours[current]
        lowest, support = state.lowest.copy(), state.support.copy()
        raised = near[lowest[near] < top]
        lowest[raised] = top
        support[raised] = current
        lowest[current] = _PLACED
        todo = frame.todo[frame.todo != current]
        least = self._least(frame, todo, lowest, support, int(offset))
        if least is None:
            return None
        begin, end = frame.begin, frame.end
        start, stop = self.problem.start[current], self.problem.stop[current]
        left = state.left.copy()
        left[start:stop] -= size[current]
        floors = lowest.copy()
        floors[todo] = least
        at = self.mesh.at[begin : end + 1]
        floor = np.minimum.reduceat(floors[self.mesh.members[at[0] : at[-1]]], at[:-1] - at[0])
        over = (floor + left[begin:end] > self.height) & (left[begin:end] > 0)
        if over.any():
            full = self.mesh.alive[begin + int(over.argmax())]
            frame.blame[:-1] |= full
            frame.blame[support[todo[full[todo]]]] = True
            return None
        crossing = state.crossing.copy()
        crossing[start : stop - 1] -= 1
        above = _State(lowest, support, left, crossing)
        self.offset[current] = offset
        frame.parts = self._split(above, begin, end, todo)
        return above

    def _least(
        self, frame: _Frame, todo: Ints, lowest: Ints, support: Ints, offset: int
    ) -> Ints | None:
        """Least offsets of ``todo`` after a placement at ``offset``; None when one is too high."""
        size = self.problem.size[todo]
        least = np.maximum(lowest[todo], offset)
        rank = self.rank[todo]
        passed = (lowest[todo] < offset) | (
            (lowest[todo] == offset) & (rank < self.rank[frame.current])
        )
        meets = None
        if passed.any():
            if passed.all() and len(todo) > 1:
                frame.blame[todo] = True
                frame.blame[support[todo]] = True
                return None
            meets = self.mesh.meets[np.ix_(todo[passed], todo)]
            rests = np.where(meets, least + size, _PLACED).min(1)
            # A buffer without neighbours left to wait for is packed by itself, where it is.
            least[passed] = np.where(rests < _PLACED, rests, least[passed])
        over = least + size > self.height
        if over.any():
            high = todo[int(over.argmax())]
            waits = todo[passed & self.mesh.meets[high][todo]]
            for guilty in (high, support[high], support[waits]):
                frame.blame[guilty] = True
            return None
        return least

    def _split(
        self, state: _State, begin: int, end: int, todo: Ints
    ) -> list[tuple[int, int, Ints]]:
        """Parts of time that no buffer joins, the smallest last; single buffers are placed."""
        cuts = np.flatnonzero(state.crossing[begin : end - 1] == 0) + begin + 1
        if not len(cuts):
            spans = [(begin, end, todo)] if len(todo) else []
        else:
            edges = [begin, *cuts.tolist(), end]
            where = np.searchsorted(cuts, self.problem.start[todo], side="right")
            spans = [
                (edges[place], edges[place + 1], todo[where == place])
                for place in np.unique(where).tolist()
            ]
        parts = []
        for span in spans:
            if len(span[2]) == 1:
                self.offset[span[2]] = state.lowest[span[2]]
            else:
                parts.append(span)
        return sorted(parts, key=lambda part: -len(part[2]))
