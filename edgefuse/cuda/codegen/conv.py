"""A dense convolution as a product whose left operand is gathered: pixels by output channels.

With many channels one step of the sum is some channels of one tap; with few, or channels apart from
each other in memory, the taps and channels are one axis, and each element finds its own pixel.
"""

from __future__ import annotations

from math import ceil

from edgefuse.cuda.codegen.axes import Axis
from edgefuse.cuda.codegen.body import INTEGERS, Body
from edgefuse.cuda.codegen.machine import depth, matrix_tile, matrix_warps
from edgefuse.cuda.codegen.window import Window, both, window
from edgefuse.cuda.storage import ITEM_BYTES

_FEW_CHANNELS = 16
_MOST_GATHERED = 64


def write(body: Body) -> None:
    x, weight = body.tensor(body.launch.inputs[0]), body.tensor(body.launch.weights[0])
    layout = str(body.launch.attributes["layout"])
    down, along, channels, columns = weight.shape
    shape = body.output.shape
    rows = shape[0] * shape[1] * shape[2]
    gathered = channels < _FEW_CHANNELS or layout == "NCHW"
    inner = down * along * channels if gathered else channels
    height, width = matrix_tile(body.machine, rows, columns)
    if gathered and not body.machine.interpreted:  # Addresses of all elements take registers.
        height = min(height, _MOST_GATHERED)
    deep = depth(body.machine, inner, ITEM_BYTES[x.dtype])
    body.warps = matrix_warps((height, width))
    body.cut(rows, height, columns, width)
    r = body.axis("r", "tr", height, shape[:3], "[:, None]")
    c = body.axis("c", "tc", width, (columns,), "[None, :]")
    geometry = window(body, (down, along), layout)
    geometry.corners(body)
    accumulator = body.zeros(height, width, weight.dtype in INTEGERS)
    steps = ceil(inner / deep)
    body.say(f"for step in range({steps if gathered else steps * geometry.taps}):")
    body.indent += 1
    if gathered:
        _gather(body, geometry, r, deep, inner, layout)
    else:
        _channels(body, geometry, r, deep, steps)
    mask = f"(k < {inner})[:, None]" if inner % deep else ""
    tap = "" if gathered else f"tap * {channels * columns} + "
    offset = f"{tap}k[:, None] * {columns} + c[None, :]"
    body.say(f"b = {body.load(weight.name, offset, both(mask, c.spread_mask))}")
    body.say(f"acc = {body.product('a', 'b', x.dtype)}")
    body.indent -= 1
    body.finish(accumulator, (r, c))


def _channels(body: Body, geometry: Window, r: Axis, deep: int, steps: int) -> None:
    """``a``: pixels by channels ``k`` of tap ``tap``."""
    channels, along = geometry.picture[2], geometry.extent[1]
    body.say(f"tap = step // {steps}", f"k = (step % {steps}) * {deep} + tl.arange(0, {deep})")
    pixel, inside = geometry.pixel(body, f"(tap // {along})", f"(tap % {along})")
    body.say(f"px = {pixel}")
    columns = f"(k < {channels})[None, :]" if channels % deep else ""
    mask = both(r.spread_mask, f"({inside})[:, None]" if inside else "", columns)
    offset = f"px[:, None] * {channels} + k[None, :]"
    body.say(f"a = {body.load(body.launch.inputs[0], offset, mask, geometry.pad)}")


def _gather(body: Body, geometry: Window, r: Axis, deep: int, inner: int, layout: str) -> None:
    """``a``: pixels by ``k``, an axis of all taps and channels."""
    h, w, channels = geometry.picture
    along = geometry.extent[1]
    body.say(
        f"k = step * {deep} + tl.arange(0, {deep})",
        f"gi = (k // {along * channels})[None, :] * {geometry.dilations[0]}",
        f"gj = ((k // {channels}) % {along})[None, :] * {geometry.dilations[1]}",
        f"gc = (k % {channels})[None, :]",
        "gh = wh[:, None] + gi",
        "gw = ww[:, None] + gj",
    )
    if layout == "NHWC":
        offset = f"((wn[:, None] * {h} + gh) * {w} + gw) * {channels} + gc"
    else:
        offset = f"((wn[:, None] * {channels} + gc) * {h} + gh) * {w} + gw"
    masks = [
        f"({name} >= 0) & ({name} < {size})"
        for name, size, bounded in zip(("gh", "gw"), (h, w), geometry.bounded)
        if bounded
    ]
    columns = f"(k < {inner})[None, :]" if inner % deep else ""
    mask = both(r.spread_mask, *masks, columns)
    body.say(f"a = {body.load(body.launch.inputs[0], offset, mask, geometry.pad)}")
