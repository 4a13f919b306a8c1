"""A depthwise convolution, its activation and the projection after it; the middle is not stored.

An instance makes a tile of pixels by all, or many, columns. It runs through the channels: a piece
of the depthwise result is made in registers, rounded as if it had been stored, and multiplied into
the accumulator at once. Columns in several tiles make the depthwise part again for each.
"""

from __future__ import annotations

from math import ceil

from edgefuse.cuda.codegen.axes import Axis
from edgefuse.cuda.codegen.body import INTEGERS, Body, Value
from edgefuse.cuda.codegen.depthwise import MOST_UNROLLED, taps
from edgefuse.cuda.codegen.machine import matrix_warps, power_of_two
from edgefuse.cuda.codegen.window import both, window
from edgefuse.cuda.storage import ITEM_BYTES

_WIDEST = 512
# From this width on, rows of taps are a loop: unrolled, their loads would take too many registers.
_WIDE = 128
_MOST_RESULTS = 8192
_MOST_TAPPED = 2048
_DEEPEST = 32


def write(body: Body) -> None:
    x, first = body.tensor(body.launch.inputs[0]), body.tensor(body.launch.weights[0])
    second = body.tensor(body.launch.weights[1])
    channels, columns = second.shape
    shape = body.output.shape
    rows = shape[0] * shape[1] * shape[2]
    height, width, deep = _tile(body, rows, channels, columns, ITEM_BYTES[x.dtype])
    # Taps need registers beside the accumulators: at most 32 results and 8 elements of a tap.
    wide = height * width >= _MOST_RESULTS or height * deep >= _MOST_TAPPED
    body.warps = 8 if wide else matrix_warps((height, width))
    body.stages = 1
    body.cut(rows, height, columns, width)
    r = body.axis("r", "tr", height, shape[:3], "[:, None]")
    c = body.axis("c", "tc", width, (columns,), "[None, :]")
    geometry = window(body, (first.shape[0], first.shape[1]))
    geometry.corners(body)
    integer = first.dtype in INTEGERS
    kind = "tl.int32" if integer else "tl.float32"
    body.say(f"total = tl.zeros(({height}, {width}), dtype={kind})")
    body.say(f"for k0 in range({ceil(channels / deep)}):")
    body.indent += 1
    body.say(f"k = k0 * {deep} + tl.arange(0, {deep})")
    k = Axis("k", (channels,), "[None, :]", f"k < {channels}" if channels % deep else "")
    made = body.zeros(height, deep, integer)
    taps(body, geometry, r, k, most_unrolled=0 if width >= _WIDE else MOST_UNROLLED)
    value = body.steps(body.launch.inner, made, (r, k), "i")
    body.say(f"a = {body.cast(value, x.dtype)}")
    down = ""
    if k.mask:
        body.say(f"a = tl.where({k.spread_mask}, a, 0).to(a.dtype)")
        down = f"({k.mask})[:, None]"
    offset = f"k[:, None] * {columns} + c[None, :]"
    body.say(f"b = {body.load(second.name, offset, both(down, c.spread_mask))}")
    body.say(f"total = {body.product('a', 'b', x.dtype, 'total')}")
    body.indent -= 1
    body.finish(Value("total", integer), (r, c))


def _tile(
    body: Body, rows: int, channels: int, columns: int, item_bytes: int
) -> tuple[int, int, int]:
    """Rows and columns of the result, and channels at a time."""
    if body.machine.interpreted:
        deep = min(power_of_two(channels), 256)
        return min(power_of_two(rows), 1024), power_of_two(columns), deep
    width = min(power_of_two(columns, 16), _WIDEST)
    height = max(16, min(64, _MOST_RESULTS // 2 // width))
    while height > 16 and ceil(rows / height) * ceil(columns / width) < body.machine.parallel_tiles:
        height //= 2
    return height, width, max(_DEEPEST if item_bytes < 4 else 16, 32 if item_bytes == 1 else 16)
