"""The softmax over the last axis: whole rows in registers, read once."""

from __future__ import annotations

from math import prod

from edgefuse.cuda.codegen.body import Body, Value
from edgefuse.cuda.codegen.norm import rows_tile
from edgefuse.cuda.codegen.window import both


def write(body: Body) -> None:
    x = body.tensor(body.launch.inputs[0])
    columns = x.shape[-1]
    height, width = rows_tile(body, prod(x.shape[:-1]), columns)
    body.cut(prod(x.shape[:-1]), height, 1, 1)
    r = body.axis("r", "tr", height, x.shape[:-1], "[:, None]")
    c = body.axis("c", "0", width, (columns,), "[None, :]")
    mask = both(r.spread_mask, c.spread_mask)
    read = body.load(x.name, f"r[:, None] * {columns} + c[None, :]", mask)
    body.say(f"v = {body.computed(x.name, read).name}")
    if c.mask:
        body.say(f'v = tl.where({c.spread_mask}, v, float("-inf"))')
    body.say("v = tl.exp(v - tl.max(v, axis=1)[:, None])")
    body.say("acc = v / tl.sum(v, axis=1)[:, None]")
    body.finish(Value("acc", False), (r, c))
