"""The least arena that any plan needs: the largest sum of sizes alive at one step.

Exact whole numbers of any size. An arena equal to it is proven to be the smallest; an arena above
it may still be, since not every set of buffers packs without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgefuse.memory.planner.buffers import Buffer


def lower_bound(buffers: Sequence[Buffer], alignment: int = 1) -> int:
    """Bytes that are alive at once, at most; sizes rounded up to ``alignment``."""
    change: dict[int, int] = {}
    for buffer in buffers:
        size = -(-buffer.size_bytes // alignment) * alignment
        change[buffer.first] = change.get(buffer.first, 0) + size
        change[buffer.last + 1] = change.get(buffer.last + 1, 0) - size
    alive = most = 0
    for moment in sorted(change):
        alive += change[moment]
        most = max(most, alive)
    return most
