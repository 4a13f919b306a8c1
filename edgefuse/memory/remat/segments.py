"""Run a chain by its plan: torch's checkpoint around segments, state frozen when they run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from edgefuse.memory.remat.chain import Item, Keep, Segment
from edgefuse.memory.remat.frozen import frozen
from edgefuse.memory.remat.grouped import again_in_groups, in_groups

if TYPE_CHECKING:
    from torch import Tensor, nn


def runner(
    blocks: Sequence[nn.Module], items: Sequence[Item], inputs: Sequence[Tensor] = ()
) -> Callable[[Tensor], Tensor]:
    """The forward of a range of blocks. Random numbers need no care: no such block is in a
    segment.

    Args:
        inputs: of the blocks, in an example: with them, they run in groups of samples where they
            can, see :mod:`~.grouped`.
    """
    steps: list[Callable[[Tensor], Tensor]] = []
    for kind, group in groupby(items, key=type):
        if kind is Segment:
            steps += [_segment(blocks, item, inputs) for item in group if isinstance(item, Segment)]
            continue
        kept = [item.block for item in group if isinstance(item, Keep)]
        layers = [blocks[place] for place in kept]
        steps += in_groups(layers, [inputs[place] for place in kept]) if inputs else layers

    def forward(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return forward


def _segment(
    blocks: Sequence[nn.Module], segment: Segment, inputs: Sequence[Tensor]
) -> Callable[[Tensor], Tensor]:
    from torch.utils.checkpoint import checkpoint

    layers = blocks[segment.first : segment.end]
    inner, contexts = runner(blocks, segment.items), frozen(layers)

    def forward(x: Tensor) -> Tensor:
        found: Tensor = checkpoint(
            inner, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )
        return found

    if not inputs:
        return forward
    return again_in_groups(layers, inputs[segment.first : segment.end], forward)
