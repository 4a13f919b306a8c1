"""``y[p, c] = epilogue(sum_ij x[pixel of tap ij, c] * weight[i, j, c])``: pixels by channels."""

from __future__ import annotations

from edgefuse.cuda.codegen.axes import Axis
from edgefuse.cuda.codegen.body import INTEGERS, Body
from edgefuse.cuda.codegen.window import Window, both, pixels_by_channels, window

MOST_UNROLLED = 9


def write(body: Body) -> None:
    weight = body.tensor(body.launch.weights[0])
    r, c, (height, width) = pixels_by_channels(body)
    geometry = window(body, (weight.shape[0], weight.shape[1]))
    geometry.corners(body)
    accumulator = body.zeros(height, width, weight.dtype in INTEGERS)
    taps(body, geometry, r, c)
    body.finish(accumulator, (r, c))


def taps(
    body: Body, geometry: Window, r: Axis, c: Axis, most_unrolled: int = MOST_UNROLLED
) -> None:
    """Add the products of all taps to ``acc``, of pixels ``r`` and channels ``c``."""
    x, weight = body.launch.inputs[0], body.launch.weights[0]
    channels = geometry.picture[2]
    over = "tl.static_range" if geometry.taps <= most_unrolled else "range"
    body.say(f"for i in {over}({geometry.extent[0]}):")
    body.indent += 1
    body.say(f"for j in tl.static_range({geometry.extent[1]}):")
    body.indent += 1
    pixel, inside = geometry.pixel(body, "i", "j")
    body.say(f"px = {pixel}")
    mask = both(r.spread_mask, f"({inside})[:, None]" if inside else "", c.spread_mask)
    read = body.load(x, f"px[:, None] * {channels} + {c.name}[None, :]", mask, geometry.pad)
    offset = f"(i * {geometry.extent[1]} + j) * {channels} + {c.name}"
    factor = body.computed(weight, body.load(weight, offset, c.mask)).name
    body.say(f"acc += {body.computed(x, read).name} * ({factor})[None, :]")
    body.indent -= 2
