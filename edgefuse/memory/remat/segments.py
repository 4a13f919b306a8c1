"""Run a chain by its plan: torch's checkpoint around segments, state frozen when they run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgefuse.memory.remat.chain import Item, Segment
from edgefuse.memory.remat.frozen import frozen

if TYPE_CHECKING:
    from torch import Tensor, nn


def runner(blocks: Sequence[nn.Module], items: Sequence[Item]) -> Callable[[Tensor], Tensor]:
    """The forward of a range of blocks. Random numbers need no care: no such block is in a
    segment."""
    from torch.utils.checkpoint import checkpoint

    steps: list[Callable[[Tensor], Tensor]] = []
    for item in items:
        if not isinstance(item, Segment):
            steps.append(blocks[item.block])
            continue
        inner = runner(blocks, item.items)
        contexts = frozen(blocks[item.first : item.end])

        def segment(
            x: Tensor,
            inner: Callable[[Tensor], Tensor] = inner,
            contexts: Callable[..., object] = contexts,
        ) -> Tensor:
            found: Tensor = checkpoint(
                inner, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
            )
            return found

        steps.append(segment)

    def forward(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return forward
