"""The GPUs that code is made for, by compute capability.

Below 8.0 the compiler spills registers in every matrix product, so there is no code for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOST_REGISTERS = 255


@dataclass(frozen=True)
class Architecture:
    """One compute capability.

    Attributes:
        number: 10 * major + minor.
        shared_bytes: most shared memory of one block, all of it asked for.
        boards: examples.
    """

    number: int
    shared_bytes: int
    boards: str

    @property
    def name(self) -> str:
        return f"sm_{self.number}"


#: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
ARCHITECTURES: Mapping[int, Architecture] = {
    a.number: a
    for a in (
        Architecture(80, 163 * 1024, "A100"),
        Architecture(87, 163 * 1024, "Jetson Orin"),
        Architecture(89, 99 * 1024, "RTX 4090, L4, L40"),
        Architecture(90, 227 * 1024, "H100, H200"),
        Architecture(100, 227 * 1024, "B200"),
    )
}
LEAST = min(ARCHITECTURES)


def code_for(number: int) -> int | None:
    """Which architecture's code a device runs; None when there is none for it.

    Code of 8.0 runs on all of 8.x but 8.7, whose code runs nowhere else; 9.0 and 10.0 use
    instructions of that very architecture.
    """
    if number in ARCHITECTURES:
        return number
    if number // 10 == 8:
        return max(a for a in ARCHITECTURES if a // 10 == 8 and a != 87 and a <= number)
    return None
