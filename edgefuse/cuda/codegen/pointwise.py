"""Steps alone, on inputs seen through strided views: copies, transpositions, chains."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from edgefuse.cuda.codegen.axes import address, broadcast_strides
from edgefuse.cuda.codegen.body import Body, Value
from edgefuse.cuda.codegen.machine import vector_tile, vector_warps


def write(body: Body) -> None:
    attributes: Any = body.launch.attributes
    shape: tuple[int, ...] = attributes["shape"] or (1,)
    views = [(offset, strides or (0,)) for offset, strides in attributes["views"]]
    strides = [view[1] for view in views]
    strides += [broadcast_strides(body.tensor(n).shape, shape) for n in body.launch.operands]
    split = _split(shape, strides)
    rows, columns = prod(shape[:split]), prod(shape[split:])
    height, width = vector_tile(body.machine, rows, columns, body.item_bytes, widest=1024)
    body.warps = vector_warps((height, width), body.item_bytes)
    body.cut(rows, height, columns, width)
    r = body.axis("r", "tr", height, shape[:split], "[:, None]")
    c = body.axis("c", "tc", width, shape[split:], "[None, :]")

    def reading(place: int) -> Value:
        name = body.launch.inputs[place]
        offset, strides = views[place]
        text, mask = address((r, c), strides)
        whole = f"{offset} + {text}" if offset and text else text or str(offset)
        return body.computed(name, body.load(name, whole, mask))

    first = reading(0)
    # A view that repeats one element is a number: spread it over the tile.
    kind = "tl.int32" if first.integer else "tl.float32"
    body.say(f"acc = {first.name} + tl.zeros(({height}, {width}), dtype={kind})")
    body.finish(Value("acc", first.integer), (r, c), reading)


def _split(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """Where the axes are parted into rows and columns: as many in columns as all read in one go.

    Axes at the end that every view reads contiguously, or repeats, are one axis of columns.
    """
    split = len(shape) - 1
    while split > 0 and all(
        own[split - 1] == own[split] * shape[split] or shape[split - 1] == 1 for own in strides
    ):
        split -= 1
    return split
