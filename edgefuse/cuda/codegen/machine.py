"""Where generated code is to run: a GPU, or Triton's interpreter on the CPU.

A GPU wants tiles that fit its registers and enough of them to fill it. The interpreter takes about
a millisecond an instance whatever the tile holds, so it gets few large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Machine:
    """Limits that tiles are chosen by.

    Attributes:
        interpreted: bfloat16 dots are done in float32 there, where they would be wrong.
        parallel_tiles: how many tiles keep the machine busy.
        vector_elements: of one tile without a matrix product.
        matrix_tiles: (rows, columns) that a product may be cut into, the largest first.
        depth_bytes: of one row of a matrix operand's tile.
    """

    interpreted: bool
    parallel_tiles: int
    vector_elements: int
    matrix_tiles: tuple[tuple[int, int], ...]
    depth_bytes: int


GPU = Machine(
    interpreted=False,
    parallel_tiles=128,
    vector_elements=1024,
    matrix_tiles=(
        (128, 128),
        (128, 64),
        (64, 64),
        (64, 32),
        (32, 64),
        (32, 32),
        (16, 32),
        (16, 16),
    ),
    depth_bytes=128,
)
INTERPRETER = Machine(
    interpreted=True,
    parallel_tiles=1,
    vector_elements=1 << 17,
    matrix_tiles=((1024, 256),),
    depth_bytes=2048,
)


def power_of_two(number: int, least: int = 1) -> int:
    """The least power of two that is no smaller."""
    return max(least, 1 << max(number - 1, 0).bit_length())


def matrix_tile(machine: Machine, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a tile: the largest of those that fill the machine, else the smallest.

    A tile reaches no further beyond the result than it has to.
    """
    least = 1 if machine.interpreted else 16
    fitting: list[tuple[int, int]] = []
    for height, width in machine.matrix_tiles:
        tile = (min(height, power_of_two(rows, least)), min(width, power_of_two(columns, least)))
        if tile not in fitting:
            fitting.append(tile)
    for tile in fitting:
        if ceil(rows / tile[0]) * ceil(columns / tile[1]) >= machine.parallel_tiles:
            return tile
    return fitting[-1]


def depth(machine: Machine, inner: int, item_bytes: int) -> int:
    """Elements of the summed axis that one step of a product takes."""
    least = 1 if machine.interpreted else 32 if item_bytes == 1 else 16
    return min(power_of_two(inner, least), machine.depth_bytes // item_bytes)


def vector_tile(machine: Machine, rows: int, columns: int, widest: int = 256) -> tuple[int, int]:
    """Rows and columns of a tile of a kernel without a product."""
    if machine.interpreted:
        widest = machine.vector_elements
    width = min(power_of_two(columns), widest)
    height = min(power_of_two(rows), max(1, machine.vector_elements // width))
    while height > 1 and ceil(rows / height) * ceil(columns / width) < machine.parallel_tiles:
        height //= 2
    return height, width


def warps(tile: Sequence[int]) -> int:
    """Warps that work on one tile: about 8 elements a thread, 64 of a matrix tile."""
    elements = 1
    for extent in tile:
        elements *= extent
    return min(8, max(1, power_of_two(elements) // 256))
