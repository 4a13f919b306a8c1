"""The numbers of a program: one block of bytes, every weight at its tensor's offset.

Written beside the program's JSON; a launcher maps it as it is. Weights lie on 256 bytes, so that
vector loads are aligned; gaps are zero.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from edgefuse.cuda.program import ARENA_ALIGNMENT, Tensor
from edgefuse.cuda.storage import HELD, Array
from edgefuse.memory.arena import aligned


@dataclass(frozen=True)
class Weights:
    """The bytes of all weights of a program."""

    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def held(self, tensor: Tensor) -> Array:
        """A weight as it is held, read-only: bfloat16 as uint16."""
        flat = np.frombuffer(self.data, HELD[tensor.dtype], tensor.elements, tensor.offset)
        return flat.reshape(tensor.shape)


class WeightsWriter:
    """Collects weights; ``add`` gives each its offset."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def add(self, held: Array) -> int:
        """The offset of an array that is held as its dtype asks for."""
        offset = self._length
        data = np.ascontiguousarray(held).tobytes()
        end = aligned(len(data), ARENA_ALIGNMENT)
        self._parts.append(data.ljust(end, b"\0"))
        self._length += end
        return offset

    def weights(self) -> Weights:
        return Weights(b"".join(self._parts))
