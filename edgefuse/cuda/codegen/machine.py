"""Where generated code is to run: a GPU, or Triton's interpreter on the CPU.

A GPU wants tiles that fit its registers and enough of them to fill it. The interpreter takes about
a millisecond an instance whatever the tile holds, so it gets few large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod


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

    def fills(self, rows: int, columns: int, height: int, width: int) -> bool:
        """Whether tiles of this size keep the machine busy."""
        return ceil(rows / height) * ceil(columns / width) >= self.parallel_tiles


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
        if machine.fills(rows, columns, *tile):
            return tile
    return fitting[-1]


def depth(machine: Machine, inner: int, item_bytes: int) -> int:
    """Elements of the summed axis that one step of a product takes."""
    least = 1 if machine.interpreted else 32 if item_bytes == 1 else 16
    return min(power_of_two(inner, least), machine.depth_bytes // item_bytes)


def vector_tile(
    machine: Machine, rows: int, columns: int, item_bytes: int, widest: int = 256
) -> tuple[int, int]:
    """Rows and columns of a tile of a kernel without a product.

    The smallest still gives every thread of a warp 16 bytes.
    """
    if machine.interpreted:
        widest = machine.vector_elements
    width = min(power_of_two(columns), widest)
    height = min(power_of_two(rows), max(1, machine.vector_elements // width))
    least = 32 * 16 // item_bytes
    while height > 1 and height * width > least and not machine.fills(rows, columns, height, width):
        height //= 2
    return height, width


def vector_warps(tile: Sequence[int], item_bytes: int) -> int:
    """Warps that work on a tile, 16 bytes a thread."""
    return min(8, max(1, power_of_two(prod(tile)) * item_bytes // 512))


def matrix_warps(tile: tuple[int, int]) -> int:
    """Warps that work on a tile of a product: at least 8 results a thread, 64 in large ones.

    Four can work as one group, from 64 rows on; eight make two groups.
    """
    elements = tile[0] * tile[1]
    return 8 if elements >= 128 * 128 else min(4, max(1, elements // 256))
