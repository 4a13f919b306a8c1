"""Whether a plan holds: every pair of buffers looked at, by code that no planner uses.

O(n^2) on purpose: nothing is sorted, compressed or skipped, so that nothing can be wrong in the
same way as in the planner. Whole numbers of any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefuse.memory.arena import Live


def faults(
    buffers: Sequence[Live], offsets: Mapping[str, int], arena_bytes: int, alignment: int = 1
) -> list[str]:
    """What is wrong with a plan, one line each; empty when it holds.

    Looked for: a buffer without an offset, an offset without a buffer, a negative offset, one that
    is not a multiple of ``alignment``, a buffer that ends past the arena, two that share an address
    at one step.
    """
    names = {buffer.name for buffer in buffers}
    wrong = [f"{name!r} is no buffer" for name in offsets if name not in names]
    known = [buffer for buffer in buffers if buffer.name in offsets]
    wrong += [f"{buffer.name!r} has no offset" for buffer in buffers if buffer.name not in offsets]
    for buffer in known:
        offset = offsets[buffer.name]
        if offset < 0:
            wrong.append(f"{buffer.name!r} lies at {offset}, before the arena")
        if offset % alignment:
            wrong.append(f"{buffer.name!r} lies at {offset}, no multiple of {alignment}")
        if offset + buffer.size_bytes > arena_bytes:
            wrong.append(
                f"{buffer.name!r} ends at {offset + buffer.size_bytes}, past the arena's "
                f"{arena_bytes} bytes"
            )
    for place, one in enumerate(known):
        for other in known[place + 1 :]:
            if _share(one, offsets[one.name], other, offsets[other.name]):
                wrong.append(f"{one.name!r} and {other.name!r} share an address at one step")
    return wrong


def _share(one: Live, at: int, other: Live, other_at: int) -> bool:
    if not one.size_bytes or not other.size_bytes:
        return False
    in_time = one.first <= other.last and other.first <= one.last
    in_space = at < other_at + other.size_bytes and other_at < at + one.size_bytes
    return in_time and in_space
