"""An arena: which bytes are alive when, and where they lie. What planners make and pictures show.

Time is the place of an operator in the order of execution, from 0. A buffer lives from step
``first`` to step ``last``, both included.
"""

from __future__ import annotations

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
        alive = [
            sum(b.size_bytes for b in self.buffers if b.first <= step <= b.last)
            for step in range(len(self.steps))
        ]
        return alive.index(max(alive)) if alive else 0

    def alive_at(self, step: int) -> tuple[Live, ...]:
        """The buffers alive at a step, the largest first."""
        alive = (b for b in self.buffers if b.first <= step <= b.last)
        return tuple(sorted(alive, key=lambda b: (-b.size_bytes, b.first, b.name)))
