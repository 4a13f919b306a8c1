"""An arena: which bytes are alive when, and where they lie. What planners make and pictures show.

Time is the place of an operator in the order of execution, from 0. A buffer lives from step
``first`` to step ``last``, both included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Live:
    """A buffer of an arena.

    Attributes:
        name: of the first tensor that lies in it; unique in its graph.
        size_bytes: as the arena's owner rounds it.
        first: the step that makes it; model inputs: 0.
        last: the last step that reads it; model outputs: the graph's last step.
        tensors: names of all tensors that share it, in the order of their making; empty for
            scratch of one operator.
    """

    name: str
    size_bytes: int
    first: int
    last: int
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arena:
    """Buffers with their addresses.

    Attributes:
        owner: whose plan this is: ``tflite-micro``, ``LiteRT``, ``edgefuse``.
        buffers: what lies in it.
        offsets: bytes from its beginning, in the order of ``buffers``.
        steps: label of every operator, in order: ``CONV_2D#5``.
        bound_bytes: no plan in this order of operators needs less.
        proven: whether no smaller arena exists for these buffers.
    """

    owner: str
    buffers: tuple[Live, ...]
    offsets: tuple[int, ...]
    steps: tuple[str, ...]
    bound_bytes: int
    proven: bool

    @property
    def arena_bytes(self) -> int:
        """The end of the last buffer."""
        ends = (offset + b.size_bytes for offset, b in zip(self.offsets, self.buffers, strict=True))
        return max(ends, default=0)

    @property
    def peak_step(self) -> int:
        """The first step at which the most bytes are alive."""
        return peak(self.buffers)[1]

    def alive_at(self, step: int) -> tuple[Live, ...]:
        """The buffers alive at a step, the largest first."""
        alive = (b for b in self.buffers if b.first <= step <= b.last)
        return tuple(sorted(alive, key=lambda b: (-b.size_bytes, b.first, b.name)))


def peak(buffers: Sequence[Live], alignment: int = 1) -> tuple[int, int]:
    """The most bytes alive at once, and the first step at which they are; (0, 0) of none.

    No plan needs less, in this order of operators. Exact whole numbers of any size.

    Args:
        alignment: bytes; sizes are rounded up to a multiple.
    """
    change: dict[int, int] = {}
    for buffer in buffers:
        size = aligned(buffer.size_bytes, alignment)
        change[buffer.first] = change.get(buffer.first, 0) + size
        change[buffer.last + 1] = change.get(buffer.last + 1, 0) - size
    alive = most = where = 0
    for moment in sorted(change):
        alive += change[moment]
        if alive > most:
            most, where = alive, moment
    return most, where


def aligned(size_bytes: int, alignment: int) -> int:
    """``size_bytes`` rounded up to a multiple of ``alignment``."""
    return -(-size_bytes // alignment) * alignment


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """The same names, those that repeat numbered: ``x``, ``x (2)``; an empty one: ``tensor``."""
    given = [name or "tensor" for name in names]
    taken, seen = set(given), set[str]()
    unique = []
    for name in given:
        wanted, count = name, 1
        while wanted in seen or (count > 1 and wanted in taken):
            count += 1
            wanted = f"{name} ({count})"
        seen.add(wanted)
        unique.append(wanted)
    return tuple(unique)
