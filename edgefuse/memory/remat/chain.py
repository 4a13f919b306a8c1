"""Which blocks of a chain to compute again: the least work whose peak keeps to a budget.

Problem: the forward of blocks 0..n-1 leaves bytes for the backward of n-1..0. A plan of a range of
blocks is a row of items:

    keep k in mode m          bytes for backward stay; a mode may recompute inside of the block
    segment [a, b) of items   only the input stays; before its backward the forward runs again,
                              by a plan of its own, nested as deep as it pays

With H the bytes held by the items before one, every item asks that

    H + what it takes forward, and again backward,  <=  budget

and costs what it computes twice. What it takes backward includes the gradients of the parameters
of all later blocks. Given H, nothing else of the past matters, so the best plan of (range, bytes
left) is found by recursion on its first item, remembered. Exact for short chains; past
:data:`EXACT_BLOCKS` the bytes left are rounded down to 1/2048 of the budget, which may miss a plan
but never exceeds it. After Beaumont et al., 2019 (arXiv:1911.13214), with measured working bytes,
modes, and a budget for the peak. Ties go to the plan that was found first: the same on every run.

Left alone: graphs that are no chains; moving activations elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

EXACT_BLOCKS = 12
_GRAINS = 2048


@dataclass(frozen=True)
class Mode:
    """A way to run a block whose bytes for backward stay.

    Attributes:
        saved_bytes: held from its forward to its backward, without its input, and without its
            output unless backward reads that.
        output_bytes: of the output, unless it is among those.
        forward_bytes, backward_bytes: the most above what was held when it began; backward with
            the output's gradient.
        cost: of what it computes twice.
    """

    name: str
    saved_bytes: int
    output_bytes: int
    forward_bytes: int
    backward_bytes: int
    cost: int = 0


@dataclass(frozen=True)
class Block:
    """A block of a chain, measured.

    Attributes:
        modes: the first one computes nothing twice.
        result_bytes: of its output.
        bare_bytes: the most above what was held when it runs forward and nothing is kept.
        holds_input: whether backward reads its input.
        parameter_bytes: gradients of its parameters.
        state_bytes: of its buffers, of which a segment holds a copy, and two when it runs again.
        cost: of its forward, in any unit.
        kept_because: why it must not run twice; empty when it may.
    """

    name: str
    modes: tuple[Mode, ...]
    result_bytes: int
    bare_bytes: int
    holds_input: bool
    parameter_bytes: int
    cost: int
    kept_because: str = ""
    state_bytes: int = 0


@dataclass(frozen=True)
class Keep:
    block: int
    mode: int


@dataclass(frozen=True)
class Segment:
    first: int
    end: int
    items: tuple[Keep | Segment, ...]


Item = Keep | Segment


@dataclass(frozen=True)
class Around:
    """What the step needs around the chain.

    Attributes:
        before_bytes: held when the chain begins.
        after_bytes: the most above the chain's own, between its forward and its backward.
        beside_bytes: gradients held beside the chain's while it runs backward.
        elsewhere_bytes: the most at other times, whatever the plan.
    """

    before_bytes: int = 0
    after_bytes: int = 0
    beside_bytes: int = 0
    elsewhere_bytes: int = 0


def blocks_of(items: Sequence[Item]) -> Iterator[int]:
    """The blocks that are computed twice as a whole, in order."""
    for item in items:
        if isinstance(item, Segment):
            yield from range(item.first, item.end)


def modes_of(items: Sequence[Item]) -> Iterator[Keep]:
    """Every block once, with its mode."""
    for item in items:
        if isinstance(item, Segment):
            yield from modes_of(item.items)
        else:
            yield item


def cost(blocks: Sequence[Block], items: Sequence[Item]) -> int:
    """Of all that a plan computes again."""
    total = 0
    for item in items:
        if isinstance(item, Segment):
            total += sum(block.cost for block in blocks[item.first : item.end])
            total += cost(blocks, item.items)
        else:
            total += blocks[item.block].modes[item.mode].cost
    return total


class _Chain:
    """The bytes that items take, above what is held by the items before them.

    ``given`` is the bytes of an item's input as far as nobody else holds them; ``inner`` says that
    a range is a segment's, and runs forward while the gradient of its result is held.
    """

    def __init__(self, blocks: Sequence[Block], around: Around) -> None:
        self.blocks, self.around = blocks, around
        self.later = [around.beside_bytes] * (len(blocks) + 1)
        for place in reversed(range(len(blocks))):
            self.later[place] = self.later[place + 1] + blocks[place].parameter_bytes

    def output(self, item: Item) -> int:
        """Bytes of an item's output that it does not hold itself."""
        if isinstance(item, Segment):
            return self.blocks[item.end - 1].result_bytes
        return self.blocks[item.block].modes[item.mode].output_bytes

    def held(self, item: Item, given: int) -> int:
        """Until the item's backward is over."""
        if isinstance(item, Segment):
            return given + self.state(item.first, item.end)
        block = self.blocks[item.block]
        return block.modes[item.mode].saved_bytes + (given if block.holds_input else 0)

    def state(self, begin: int, stop: int) -> int:
        """One copy of the buffers of a segment."""
        return sum(block.state_bytes for block in self.blocks[begin:stop])

    def beside(self, end: int, inner: bool) -> int:
        """Held beside the forward of a range."""
        return self.later[end] + self.blocks[end - 1].result_bytes if inner else 0

    def keep_need(self, item: Keep, given: int, end: int, inner: bool) -> int:
        """The most that a kept block takes, what it holds included."""
        mode = self.blocks[item.block].modes[item.mode]
        forward = given + mode.forward_bytes + self.beside(end, inner)
        backward = self.held(item, given) + mode.backward_bytes + self.later[item.block + 1]
        return max(forward, backward)

    def pass_need(self, begin: int, stop: int, given: int, end: int, inner: bool) -> int:
        """The most that the first forward of a segment takes, its input included."""
        need = 0
        for place in range(begin, stop):
            own = 0 if place == begin else self.blocks[place - 1].result_bytes
            need = max(need, own + self.blocks[place].bare_bytes)
        return given + self.state(begin, stop) + need + self.beside(end, inner)


def predict(blocks: Sequence[Block], items: Sequence[Item], around: Around | None = None) -> int:
    """The peak of a plan."""
    around = around or Around()
    peak, held = _peak(_Chain(blocks, around), items, len(blocks), inner=False)
    peak = max(peak, held + around.after_bytes)
    return max(around.before_bytes + peak, around.elsewhere_bytes)


def _peak(chain: _Chain, items: Sequence[Item], end: int, *, inner: bool) -> tuple[int, int]:
    """The most that a range takes, and what it holds when its forward is over."""
    peak = held = given = 0
    for item in items:
        own = chain.held(item, given)
        if isinstance(item, Segment):
            need = chain.pass_need(item.first, item.end, given, end, inner)
            copy = chain.state(item.first, item.end)
            need = max(need, own + copy + _peak(chain, item.items, item.end, inner=True)[0])
        else:
            need = chain.keep_need(item, given, end, inner)
        peak = max(peak, held + need)
        held += own
        given = chain.output(item)
    return peak, held


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
    if around.elsewhere_bytes > budget_bytes:
        return None
    grain = 1 if len(blocks) <= EXACT_BLOCKS else max(1, budget_bytes // _GRAINS)
    search = _Search(_Chain(blocks, around), grain)
    found = search.best(_Range(0, len(blocks), budget_bytes - around.before_bytes, 0, False))
    if found is None:
        return None
    items = _listed(found[1])
    return Planned(items, found[0], predict(blocks, items, around))


def least_peak(blocks: Sequence[Block], around: Around | None = None) -> int:
    """The least budget for which :func:`plan` finds a plan."""
    keep_all = tuple(Keep(place, 0) for place in range(len(blocks)))
    low, high = 0, predict(blocks, keep_all, around)
    high += high // _GRAINS * len(blocks) if len(blocks) > EXACT_BLOCKS else 0
    while low < high:
        middle = (low + high) // 2
        if plan(blocks, middle, around) is None:
            low = middle + 1
        else:
            high = middle
    return high


# A plan as a chain of pairs, so that ranges share their tails.
_Row = tuple[Item, "_Row"] | None
_Found = tuple[int, _Row]


def _listed(row: _Row) -> tuple[Item, ...]:
    items = []
    while row is not None:
        items.append(row[0])
        row = row[1]
    return tuple(items)


class _Range(NamedTuple):
    """Blocks [begin, end) to plan in ``room`` bytes; the rest as :class:`_Chain` has it."""

    begin: int
    end: int
    room: int
    given: int
    inner: bool


class _Search:
    def __init__(self, chain: _Chain, grain: int) -> None:
        self.chain, self.grain = chain, grain
        self.known: dict[_Range, _Found | None] = {}

    def best(self, span: _Range) -> _Found | None:
        """The cheapest plan of a range."""
        if span.begin == span.end:
            after = 0 if span.inner else self.chain.around.after_bytes
            return (0, None) if after <= span.room else None
        if span.room < 0:
            return None
        key = span._replace(room=span.room // self.grain * self.grain)
        if key not in self.known:
            self.known[key] = self._best(key)
        return self.known[key]

    def _best(self, span: _Range) -> _Found | None:
        best = self._kept(span)
        again = 0
        for stop in range(span.begin + 1, span.end + 1):
            block = self.chain.blocks[stop - 1]
            again += block.cost
            if block.kept_because or (best is not None and again >= best[0]):
                break
            best = self._segment(span, stop, again, best)
        return best

    def _kept(self, span: _Range) -> _Found | None:
        """The cheapest plan that keeps the first block."""
        chain, best = self.chain, None
        for mode, described in enumerate(chain.blocks[span.begin].modes):
            item = Keep(span.begin, mode)
            if chain.keep_need(item, span.given, span.end, span.inner) > span.room:
                continue
            rest = self.best(self._after(span, item, span.begin + 1))
            if rest is not None and (best is None or rest[0] + described.cost < best[0]):
                best = (rest[0] + described.cost, (item, rest[1]))
        return best

    def _segment(self, span: _Range, stop: int, again: int, best: _Found | None) -> _Found | None:
        """The cheapest plan that begins with a segment up to ``stop``, if it beats ``best``."""
        chain = self.chain
        # Of what fills its range, the inner plan is that of the range itself.
        whole = span.inner and stop == span.end and not span.given
        if whole or chain.pass_need(span.begin, stop, span.given, span.end, span.inner) > span.room:
            return best
        rest = self.best(self._after(span, Segment(span.begin, stop, ()), stop))
        if rest is None or (best is not None and rest[0] + again >= best[0]):
            return best
        left = span.room - span.given - 2 * chain.state(span.begin, stop)
        inner = self.best(_Range(span.begin, stop, left, 0, True))
        if inner is None:
            return best
        total = rest[0] + again + inner[0]
        if best is not None and total >= best[0]:
            return best
        return total, (Segment(span.begin, stop, _listed(inner[1])), rest[1])

    def _after(self, span: _Range, item: Item, begin: int) -> _Range:
        room = span.room - self.chain.held(item, span.given)
        return _Range(begin, span.end, room, self.chain.output(item), span.inner)
