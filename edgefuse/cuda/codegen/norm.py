"""LayerNorm and RMSNorm over the last axis: whole rows in registers, read once."""

from __future__ import annotations

from math import prod

from edgefuse.cuda.codegen.axes import Axis
from edgefuse.cuda.codegen.body import Body, Value
from edgefuse.cuda.codegen.machine import power_of_two, vector_warps
from edgefuse.cuda.codegen.steps import number
from edgefuse.cuda.codegen.window import both


def write(body: Body) -> None:
    r, c, columns = whole_rows(body)
    layer = body.launch.attributes["kind"] == "layer"
    if layer:
        body.say(f"v = v - (tl.sum(v, axis=1) / {float(columns)})[:, None]")
        if c.mask:
            body.say(f"v = tl.where({c.spread_mask}, v, 0.0)")
    epsilon = number(float(str(body.launch.attributes["epsilon"])))
    body.say(f"deviation = tl.sqrt(tl.sum(v * v, axis=1) / {float(columns)} + {epsilon})")
    weights = body.launch.weights
    scale = body.computed(weights[0], body.load(weights[0], "c", c.mask)).name
    shift = ""
    if layer:
        shift = (
            f" + ({body.computed(weights[1], body.load(weights[1], 'c', c.mask)).name})[None, :]"
        )
    body.say(f"acc = v / deviation[:, None] * ({scale})[None, :]{shift}")
    body.finish(Value("acc", False), (r, c))


def whole_rows(body: Body) -> tuple[Axis, Axis, int]:
    """Read the input's rows into ``v``; their axis, that of the columns, and how many there are."""
    x = body.tensor(body.launch.inputs[0])
    columns = x.shape[-1]
    height, width = rows_tile(body, prod(x.shape[:-1]), columns)
    body.cut(prod(x.shape[:-1]), height, 1, 1)
    r = body.axis("r", "tr", height, x.shape[:-1], "[:, None]")
    c = body.axis("c", "0", width, (columns,), "[None, :]")
    mask = both(r.spread_mask, c.spread_mask)
    read = body.load(x.name, f"r[:, None] * {columns} + c[None, :]", mask)
    body.say(f"v = {body.computed(x.name, read).name}")
    return r, c, columns


def rows_tile(body: Body, rows: int, columns: int) -> tuple[int, int]:
    """Whole rows in a tile, as many as make it worth while."""
    width = power_of_two(columns)
    height = max(1, body.machine.vector_elements // width)
    height = min(height, power_of_two(rows))
    body.warps = vector_warps((height, width), body.item_bytes)
    return height, width
