"""The largest, or the mean, of a window for each pixel and channel: pixels by channels."""

from __future__ import annotations

from typing import Any

from edgefuse.cuda.codegen.body import INTEGERS, Body, Value
from edgefuse.cuda.codegen.window import both, pixels_by_channels, window

_MOST_UNROLLED = 9


def write(body: Body) -> None:
    x = body.tensor(body.launch.inputs[0])
    attributes: Any = body.launch.attributes
    channels = body.output.shape[3]
    r, c, (height, width) = pixels_by_channels(body)
    geometry = window(body, attributes["window"])
    geometry.corners(body)
    integer = x.dtype in INTEGERS
    largest = attributes["kind"] == "max"
    least = "-128" if integer else 'float("-inf")'
    kind = "tl.int32" if integer else "tl.float32"
    body.say(f"acc = tl.full(({height}, {width}), {least if largest else 0}, dtype={kind})")
    counted = not largest and not integer and not attributes["count_padding"]
    if counted:
        body.say(f"count = tl.zeros(({height},), dtype=tl.float32)")
    over = "tl.static_range" if geometry.taps <= _MOST_UNROLLED else "range"
    body.say(f"for i in {over}({geometry.extent[0]}):")
    body.indent += 1
    body.say(f"for j in {over}({geometry.extent[1]}):")
    body.indent += 1
    pixel, inside = geometry.pixel(body, "i", "j")
    body.say(f"px = {pixel}")
    mask = both(r.spread_mask, f"({inside})[:, None]" if inside else "", c.spread_mask)
    outside = least if largest else geometry.pad
    read = body.load(x.name, f"px[:, None] * {channels} + c[None, :]", mask, outside)
    value = body.computed(x.name, read).name
    if largest:
        body.say(f"acc = tl.maximum(acc, {value})")
    else:
        shift = f" - {int(attributes['pad_value'])}" if integer else ""
        body.say(f"acc += {value}{shift}")
    if counted:
        body.say(f"count += ({inside}).to(tl.float32)" if inside else "count += 1.0")
    body.indent -= 2
    if counted:
        body.say("acc = acc / tl.maximum(count, 1.0)[:, None]")
    elif not largest and not integer:
        body.say(f"acc = acc / {float(geometry.taps)}")
    body.finish(Value("acc", integer), (r, c))
