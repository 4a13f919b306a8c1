"""Which buffers a planner refuses.

Planned are :class:`~edgefuse.memory.arena.Live` buffers; two that are alive at one step may not
share an address. A zero-sized buffer takes no space: it lies at offset 0 and meets nothing. Checked
here, once: names that occur twice, negative sizes, sizes that a signed 64-bit number cannot hold,
lifetimes that end before they begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgefuse.errors import StageError
from edgefuse.memory.arena import Live

MOST_BYTES = 2**63 - 1


def refuse_bad_buffers(buffers: Sequence[Live]) -> None:
    """Raise for the first buffer that no arena can hold.

    Raises:
        StageError: a name twice, a negative size, a size past 2^63 - 1, a reversed lifetime.
    """
    seen: set[str] = set()
    for buffer in buffers:
        problem, hint = "", ""
        if buffer.name in seen:
            problem, hint = "occurs twice", "give every buffer a name of its own"
        elif buffer.size_bytes < 0:
            problem = f"has a negative size, {buffer.size_bytes} bytes"
            hint = "a dynamic shape has to be fixed before memory is planned"
        elif buffer.size_bytes > MOST_BYTES:
            problem = f"has {buffer.size_bytes} bytes: more than a 64-bit size can tell"
            hint = "make the input or the batch smaller"
        elif buffer.last < buffer.first:
            problem = f"ends at step {buffer.last}, before it begins at step {buffer.first}"
            hint = "a lifetime is (first use, last use), both included"
        if problem:
            raise StageError(
                f"buffer {buffer.name!r} {problem}", hint=hint, where=f"buffer {buffer.name!r}"
            )
        seen.add(buffer.name)


def refuse_bad_alignment(alignment: int) -> None:
    """Raise unless ``alignment`` is a power of two.

    Raises:
        StageError: zero, negative, or no power of two.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise StageError(
            f"alignment {alignment} is no power of two", hint="1, 16 and 64 bytes are usual"
        )
