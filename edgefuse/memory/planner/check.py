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
    rows = [(b.first, b.last, offsets[b.name], b.size_bytes, b.name) for b in known if b.size_bytes]
    for place, (first, last, at, size, name) in enumerate(rows):
        for from_, until, other_at, other_size, other in rows[place + 1 :]:
            in_time = first <= until and from_ <= last
            if in_time and at < other_at + other_size and other_at < at + size:
                wrong.append(f"{name!r} and {other!r} share an address at one step")
    return wrong
