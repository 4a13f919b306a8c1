"""Which blocks of a chain to compute again: the least work whose peak keeps to a budget.

Given the bytes held by the items before one (see :mod:`~.chain`), nothing else of the past matters:
the best plan of (range, bytes left) is found by recursion on its first item, and remembered for all
the rooms in which it stays the best. Exact for short chains; past :data:`EXACT_BLOCKS` the bytes
left are rounded down to 1/2048 of the budget, which may miss a plan but never exceeds it. After
Beaumont et al., 2019 (arXiv:1911.13214), with measured working bytes, modes, and a budget for the
peak. Ties go to the plan that was found first, the same on every run; of a block's modes that cost
the same, to the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgefuse.memory.remat.chain import Around, Block, Chain, Item, Keep, Segment, predict

EXACT_BLOCKS = 12
_GRAINS = 2048


@dataclass(frozen=True)
class Planned:
    """A plan, and what it takes.

    Attributes:
        cost: of what is computed twice, in the blocks' unit.
        peak_bytes: predicted.
    """

    items: tuple[Item, ...]
    cost: int
    peak_bytes: int


def plan(
    blocks: Sequence[Block], budget_bytes: int, around: Around | None = None
) -> Planned | None:
    """The cheapest plan within a budget; None when there is none."""
    around = around or Around()
    return _planned(_Search(Chain(blocks, around), _grain(blocks, budget_bytes)), budget_bytes)


def _grain(blocks: Sequence[Block], budget_bytes: int) -> int:
    return 1 if len(blocks) <= EXACT_BLOCKS else max(1, budget_bytes // _GRAINS)


def _planned(search: _Search, budget_bytes: int) -> Planned | None:
    blocks, around = search.chain.blocks, search.chain.around
    if around.elsewhere_bytes > budget_bytes:
        return None
    found = search.best(_Range(0, len(blocks), budget_bytes - around.before_bytes, 0, False))
    if found is None:
        return None
    items = _listed(found.row)
    return Planned(items, found.cost, predict(blocks, items, around))


def least_peak(blocks: Sequence[Block], around: Around | None = None) -> int:
    """The least budget for which :func:`plan` finds a plan."""
    around = around or Around()
    keep_all = tuple(Keep(place, 0) for place in range(len(blocks)))
    low, high = 0, predict(blocks, keep_all, around)
    # The grain of the highest budget serves all: what it finds, finer ones find too.
    search = _Search(Chain(blocks, around), _grain(blocks, high))
    while low < high:
        middle = (low + high) // 2
        found = _planned(search, middle)
        if found is None:
            low = middle + 1
        else:
            high = min(middle, max(found.peak_bytes, low))
    return high


# A plan as a chain of pairs, so that ranges share their tails.
_Row = tuple[Item, "_Row"] | None


class _Found(NamedTuple):
    """The cheapest plan of a range: its cost, the least bytes in which it runs, its items."""

    cost: int
    need: int
    row: _Row


def _listed(row: _Row) -> tuple[Item, ...]:
    items = []
    while row is not None:
        items.append(row[0])
        row = row[1]
    return tuple(items)


class _Range(NamedTuple):
    """Blocks [begin, end) to plan in ``room`` bytes; the rest as :class:`Chain` has it."""

    begin: int
    end: int
    room: int
    given: int
    inner: bool


class _Known:
    """The cheapest plans of a range in all rooms asked for.

    A plan that is the cheapest in a room is so in every smaller one in which it runs.
    """

    def __init__(self) -> None:
        self.none_up_to = -1
        self.rooms: list[int] = []
        self.found: list[_Found] = []

    def knows(self, room: int) -> tuple[bool, _Found | None]:
        if room <= self.none_up_to:
            return True, None
        if self.found and self.found[-1].cost == 0 and self.found[-1].need <= room:
            return True, self.found[-1]
        place = bisect_left(self.rooms, room)
        if place < len(self.rooms) and self.found[place].need <= room:
            return True, self.found[place]
        return False, None

    def learn(self, room: int, found: _Found | None) -> None:
        if found is None:
            self.none_up_to = max(self.none_up_to, room)
        else:
            place = bisect_left(self.rooms, room)
            self.rooms.insert(place, room)
            self.found.insert(place, found)


class _Search:
    def __init__(self, chain: Chain, grain: int) -> None:
        self.chain, self.grain = chain, grain
        self.known: dict[tuple[int, int, int, bool], _Known] = {}

    def best(self, span: _Range) -> _Found | None:
        """The cheapest plan of a range."""
        begin, end, room, given, inner = span
        if begin == end:
            after = 0 if inner else self.chain.around.after_bytes
            return _Found(0, after, None) if after <= room else None
        if room < 0:
            return None
        known = self.known.setdefault((begin, end, given, inner), _Known())
        sure, found = known.knows(room)
        if sure:
            return found
        lower = room // self.grain * self.grain
        sure, found = known.knows(lower)
        if not sure:
            found = self._best(_Range(begin, end, lower, given, inner))
            known.learn(lower + self.grain - 1 if found is None else lower, found)
        return found

    def _best(self, span: _Range) -> _Found | None:
        best = self._kept(span)
        if self.chain.blocks[span.begin].in_place:
            return best
        again = 0
        for stop in range(span.begin + 1, span.end + 1):
            block = self.chain.blocks[stop - 1]
            again += block.cost
            if block.kept_because or (best is not None and again >= best.cost):
                break
            best = self._segment(span, stop, again, best)
        return best

    def _kept(self, span: _Range) -> _Found | None:
        """The cheapest plan that keeps the first block."""
        chain, best = self.chain, None
        modes = enumerate(chain.blocks[span.begin].modes)
        for mode, described in sorted(modes, key=lambda each: (each[1].cost, -each[0])):
            item = Keep(span.begin, mode)
            own = chain.keep_need(item, span.given, span.end, span.inner)
            if own > span.room or (best is not None and described.cost >= best.cost):
                continue
            held = chain.held(item, span.given)
            rest = self.best(self._after(span, item, span.begin + 1))
            if rest is not None and (best is None or rest.cost + described.cost < best.cost):
                need = max(own, held + rest.need)
                best = _Found(rest.cost + described.cost, need, (item, rest.row))
        return best

    def _segment(self, span: _Range, stop: int, again: int, best: _Found | None) -> _Found | None:
        """The cheapest plan that begins with a segment up to ``stop``, if it beats ``best``."""
        chain = self.chain
        # Of what fills its range, the inner plan is that of the range itself.
        whole = span.inner and stop == span.end and not span.given
        own = chain.pass_need(span.begin, stop, span.given, span.end, span.inner)
        if whole or own > span.room:
            return best
        item = Segment(span.begin, stop, ())
        rest = self.best(self._after(span, item, stop))
        if rest is None or (best is not None and rest.cost + again >= best.cost):
            return best
        held = span.given + 2 * chain.state(span.begin, stop)
        inner = self.best(_Range(span.begin, stop, span.room - held, 0, True))
        if inner is None:
            return best
        cost = rest.cost + again + inner.cost
        if best is not None and cost >= best.cost:
            return best
        need = max(own, held + inner.need, chain.held(item, span.given) + rest.need)
        return _Found(cost, need, (Segment(span.begin, stop, _listed(inner.row)), rest.row))

    def _after(self, span: _Range, item: Item, begin: int) -> _Range:
        room = span.room - self.chain.held(item, span.given)
        return _Range(begin, span.end, room, self.chain.output(item), span.inner)
