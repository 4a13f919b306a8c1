"""``softmax(scale * q k^T) v`` for each sample and head, scores never stored.

An instance takes some rows of q and runs through k and v; the largest score so far and the sum of
exponentials are corrected on the way (Milakov and Gimelshein, arXiv:1805.02867).
"""

from __future__ import annotations

from math import ceil
from typing import Any

from edgefuse.cuda.codegen.axes import Axis
from edgefuse.cuda.codegen.body import INTEGERS, Body, Value
from edgefuse.cuda.codegen.machine import power_of_two
from edgefuse.cuda.codegen.steps import number
from edgefuse.cuda.codegen.window import both
from edgefuse.errors import StageError


def write(body: Body) -> None:
    attributes: Any = body.launch.attributes
    n, heads, rows, keys, deep, columns = attributes["sizes"]
    q, k, v = body.launch.inputs
    dtype = body.tensor(q).dtype
    if dtype in INTEGERS:
        raise StageError(
            "attention is computed in numbers, not in integers",
            hint="dequantize q, k and v before it",
            where=body.launch.place,
        )
    least = 1 if body.machine.interpreted else 16
    height = min(power_of_two(rows, least), 256 if body.machine.interpreted else 64)
    piece = min(power_of_two(keys, least), 512 if body.machine.interpreted else 64)
    wide, across = power_of_two(deep, least), power_of_two(columns, least)
    tiles = ceil(rows / height)
    body.programs = n * heads * tiles
    body.warps = 4
    body.stages = 2
    body.say(
        "pid = tl.program_id(0)",
        f"tr = pid % {tiles}",
        f"h = (pid // {tiles}) % {heads}",
        f"n = pid // {tiles * heads}",
    )
    t = body.axis("t", "tr", height, (rows,), "[:, None]")
    d = body.axis("d", "0", wide, (deep,), "[None, :]")
    c = body.axis("c", "0", across, (columns,), "[None, :]")
    for name, place in (("qb", 0), ("kb", 1), ("vb", 2)):
        offset, strides = attributes["views"][place]
        body.say(f"{name} = {offset} + n * {strides[0]} + h * {strides[1]}")
    (_, qs), (_, ks), (_, vs) = attributes["views"]
    reads_q = body.load(
        q, f"qb + t[:, None] * {qs[2]} + d[None, :] * {qs[3]}", both(t.spread_mask, d.spread_mask)
    )
    body.say(
        f"q = {reads_q}",
        f"total = tl.zeros(({height}, {across}), dtype=tl.float32)",
        f'peak = tl.full(({height},), float("-inf"), dtype=tl.float32)',
        f"mass = tl.zeros(({height},), dtype=tl.float32)",
        f"for s0 in range({ceil(keys / piece)}):",
    )
    body.indent += 1
    body.say(f"s = s0 * {piece} + tl.arange(0, {piece})")
    s = Axis("s", (keys,), "[None, :]", f"s < {keys}" if keys % piece else "")
    down = f"({d.mask})[:, None]" if d.mask else ""
    reads_k = body.load(
        k, f"kb + s[None, :] * {ks[2]} + d[:, None] * {ks[3]}", both(s.spread_mask, down)
    )
    zeros = f"tl.zeros(({height}, {piece}), dtype=tl.float32)"
    scores = body.product("q", f"({reads_k})", dtype, zeros)
    body.say(f"p = {scores} * {number(attributes['scale'])}")
    if s.mask:
        body.say(f'p = tl.where({s.spread_mask}, p, float("-inf"))')
    body.say(
        "top = tl.maximum(peak, tl.max(p, axis=1))",
        "p = tl.exp(p - top[:, None])",
        "keep = tl.exp(peak - top)",
        "mass = mass * keep + tl.sum(p, axis=1)",
        "total = total * keep[:, None]",
        "peak = top",
    )
    own = f"({s.mask})[:, None]" if s.mask else ""
    reads_v = body.load(
        v, f"vb + s[:, None] * {vs[2]} + c[None, :] * {vs[3]}", both(own, c.spread_mask)
    )
    weights = body.cast(Value("p", False), dtype)
    body.say(f"total = {body.product(weights, f'({reads_v})', dtype, 'total')}")
    body.indent -= 1
    body.say("acc = total / mass[:, None]")
    axes = (Axis("n", (n,)), t, Axis("h", (heads,)), c)
    body.finish(Value("acc", False), axes)
