"""The softmax over the last axis: whole rows in registers, read once."""

from __future__ import annotations

from edgefuse.cuda.codegen.body import Body, Value
from edgefuse.cuda.codegen.norm import whole_rows


def write(body: Body) -> None:
    r, c, _ = whole_rows(body)
    if c.mask:
        body.say(f'v = tl.where({c.spread_mask}, v, float("-inf"))')
    body.say("v = tl.exp(v - tl.max(v, axis=1)[:, None])")
    body.say("acc = v / tl.sum(v, axis=1)[:, None]")
    body.finish(Value("acc", False), (r, c))
