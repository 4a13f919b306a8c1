"""Time cut into sections: the largest sets of buffers that are alive at once.

Two buffers meet in time when, and only when, they share a section, so that a planner needs no
other clock. There are at most as many sections as buffers.

Sizes are in units of their greatest common divisor: in a plan in which every buffer rests on the
floor or on another, all offsets are sums of sizes, so that nothing lies between the units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgefuse.errors import StageError
from edgefuse.memory.arena import Live, aligned

Ints: TypeAlias = npt.NDArray[np.int64]

# Offsets and tops are added as 64-bit numbers.
_MOST_UNITS = 2**61


@dataclass(frozen=True)
class Sections:
    """Buffers by index: their sizes in units, and their sections, half-open.

    Attributes:
        unit: bytes in a unit.
        size: of each buffer, in units; none is zero.
        start: first section of each buffer.
        stop: the section after its last.
        lifetime: in steps of the given time, of each buffer.
        count: of sections.
    """

    unit: int
    size: Ints
    start: Ints
    stop: Ints
    lifetime: Ints
    count: int

    def pressure(self) -> Ints:
        """The units alive in each section."""
        change = np.zeros(self.count + 1, np.int64)
        np.add.at(change, self.start, self.size)
        np.add.at(change, self.stop, -self.size)
        return np.cumsum(change)[:-1]


def sections(buffers: Sequence[Live], alignment: int) -> Sections:
    """Sections of ``buffers``, all of which take space, their sizes rounded up to ``alignment``.

    Raises:
        StageError: sizes that add up to more than a 64-bit address can tell.
    """
    rounded = [aligned(buffer.size_bytes, alignment) for buffer in buffers]
    unit = gcd(*rounded) or 1
    if sum(rounded) // unit >= _MOST_UNITS:
        raise StageError(
            f"{len(buffers)} buffers add up to {sum(rounded)} bytes: more than can be planned",
            hint="make the input or the batch smaller",
        )
    # Time is ranked first: steps may be any whole numbers.
    clock = sorted({moment for buffer in buffers for moment in (buffer.first, buffer.last)})
    rank = {moment: place for place, moment in enumerate(clock)}
    first = np.array([rank[buffer.first] for buffer in buffers], np.int64)
    last = np.array([rank[buffer.last] for buffer in buffers], np.int64)
    ends = _ends(first, last)
    return Sections(
        unit=unit,
        size=np.array([size // unit for size in rounded], np.int64),
        start=np.searchsorted(ends, first, side="left").astype(np.int64),
        stop=np.searchsorted(ends, last, side="right").astype(np.int64),
        lifetime=np.array(
            [min(buffer.last - buffer.first + 1, 2**31) for buffer in buffers], np.int64
        ),
        count=len(ends),
    )


def _ends(first: Ints, last: Ints) -> Ints:
    """The moments at which a largest set is whole: the first end after a beginning."""
    begins, ends = np.unique(first), np.unique(last)
    chosen: list[int] = []
    for end in ends.tolist():
        before = chosen[-1] if chosen else -1
        after = int(np.searchsorted(begins, before, side="right"))
        if after < len(begins) and begins[after] <= end:
            chosen.append(end)
    return np.array(chosen, np.int64)
