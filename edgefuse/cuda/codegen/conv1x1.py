"""``y[r, n] = epilogue(sum_k inner(x)[r, k] * weight[k, n])``: a tile an instance.

Tiles of the same rows run one after another, so that the rows are read from the cache. What inner
steps make of elements beyond the summed axis is set to zero.
"""

from __future__ import annotations

from math import ceil

from edgefuse.cuda.codegen.axes import Axis
from edgefuse.cuda.codegen.body import INTEGERS, Body, Value
from edgefuse.cuda.codegen.machine import depth, matrix_tile, matrix_warps
from edgefuse.cuda.codegen.window import both
from edgefuse.cuda.storage import ITEM_BYTES


def write(body: Body) -> None:
    x, weight = body.tensor(body.launch.inputs[0]), body.tensor(body.launch.weights[0])
    inner, columns = weight.shape
    rows = x.elements // inner
    height, width = matrix_tile(body.machine, rows, columns)
    deep = depth(body.machine, inner, ITEM_BYTES[x.dtype])
    body.warps = matrix_warps((height, width))
    body.cut(rows, height, columns, width)
    r = body.axis("r", "tr", height, x.shape[:-1], "[:, None]")
    c = body.axis("c", "tc", width, (columns,), "[None, :]")
    accumulator = body.zeros(height, width, weight.dtype in INTEGERS)
    body.say(f"for k0 in range({ceil(inner / deep)}):")
    body.indent += 1
    body.say(f"k = k0 * {deep} + tl.arange(0, {deep})")
    k = Axis("k", (inner,), "[None, :]", f"k < {inner}" if inner % deep else "")
    a = body.load(x.name, f"r[:, None] * {inner} + k[None, :]", both(r.spread_mask, k.spread_mask))
    body.say(f"a = {a}")
    if body.launch.inner:
        value = body.computed(x.name, "a")
        body.say(f"av = {value.name}")
        made = body.steps(body.launch.inner, Value("av", value.integer), (r, k), "i")
        body.say(f"a = {body.cast(made, x.dtype)}")
        if k.mask:
            body.say(f"a = tl.where({k.spread_mask}, a, 0).to(a.dtype)")
    down = f"({k.mask})[:, None]" if k.mask else ""
    offset = f"k[:, None] * {columns} + c[None, :]"
    body.say(f"b = {body.load(weight.name, offset, both(down, c.spread_mask))}")
    body.say(f"acc = {body.product('a', 'b', x.dtype)}")
    body.indent -= 1
    body.finish(accumulator, (r, c))
