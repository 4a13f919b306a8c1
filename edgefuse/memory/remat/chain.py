"""A chain of blocks, plans of which of them to compute again, and the peak of a plan.

Problem: the forward of blocks 0..n-1 leaves bytes for the backward of n-1..0. A plan of a range of
blocks is a row of items:

    keep k in mode m          bytes for backward stay; a mode may recompute inside of the block
    segment [a, b) of items   only the input stays; before its backward the forward runs again,
                              by a plan of its own, nested as deep as it pays

With H the bytes held by the items before one, every item asks that

    H + what it takes forward, and again backward,  <=  budget

and costs what it computes twice. What it takes backward includes the gradients of the parameters
of all later blocks. :mod:`~.plan` finds the cheapest plan.

Left alone: graphs that are no chains; moving activations elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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

    def beaten_by(self, other: Mode) -> bool:
        """Whether another mode serves as well wherever this one does."""
        return (
            other.saved_bytes <= self.saved_bytes
            and other.output_bytes <= self.output_bytes
            and other.forward_bytes <= self.forward_bytes
            and other.backward_bytes <= self.backward_bytes
            and other.cost <= self.cost
        )


@dataclass(frozen=True)
class Block:
    """A block of a chain, measured.

    Attributes:
        modes: the first one computes nothing twice, and is torch's own. Of modes that cost the same
            the last is the best.
        result_bytes: of its output.
        bare_bytes: the most above what was held when it runs forward and nothing is kept.
        holds_input: whether backward reads its input.
        parameter_bytes: gradients of its parameters.
        in_place: whether it writes over its input, or gives a view of it: it may run twice with
            the block that made the input, never as the first of a segment.
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
    in_place: bool = False


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


class Chain:
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
    peak, held = _peak(Chain(blocks, around), items, len(blocks), inner=False)
    peak = max(peak, held + around.after_bytes)
    return max(around.before_bytes + peak, around.elsewhere_bytes)


def _peak(chain: Chain, items: Sequence[Item], end: int, *, inner: bool) -> tuple[int, int]:
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
