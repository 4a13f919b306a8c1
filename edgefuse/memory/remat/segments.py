"""Run a chain by its plan: torch's checkpoint around segments, state frozen when they run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from edgefuse.memory.remat.chain import Item, Keep, Segment
from edgefuse.memory.remat.frozen import frozen
from edgefuse.memory.remat.grouped import InARow, again_in_groups, in_groups

if TYPE_CHECKING:
    from torch import Tensor, nn

    Forward = Callable[[Tensor], Tensor]


def runner(
    blocks: Sequence[nn.Module], items: Sequence[Item], inputs: Sequence[Tensor] = ()
) -> Forward:
    """The forward of a range of blocks. Random numbers need no care: no such block is in a
    segment.

    Args:
        inputs: of the blocks, in an example: with them, they run in groups of samples where they
            can, see :mod:`~.grouped`.
    """
    steps: list[Forward] = []
    for kind, group in groupby(items, key=type):
        if kind is Segment:
            steps += [_segment(blocks, item, inputs) for item in group if isinstance(item, Segment)]
            continue
        kept = [item.block for item in group if isinstance(item, Keep)]
        layers = [blocks[place] for place in kept]
        steps += in_groups(layers, [inputs[place] for place in kept]) if inputs else layers
    return InARow(steps)


def _segment(blocks: Sequence[nn.Module], segment: Segment, inputs: Sequence[Tensor]) -> Forward:
    layers = blocks[segment.first : segment.end]
    forward = _Again(layers, runner(blocks, segment.items))
    if not inputs:
        return forward
    return again_in_groups(layers, inputs[segment.first : segment.end], forward)


class _Again:
    """Blocks that run again in backward.

    Args:
        forward: theirs.
    """

    def __init__(self, blocks: Sequence[nn.Module], forward: Forward) -> None:
        self.blocks, self.forward = tuple(blocks), forward

    def __call__(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        found: Tensor = checkpoint(
            self.forward,
            x,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=frozen(self.blocks),
        )
        return found
