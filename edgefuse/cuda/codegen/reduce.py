"""One axis of [outer, axis, inner] summed, or its extreme taken."""

from __future__ import annotations

from math import ceil
from typing import Any

from edgefuse.cuda.codegen.body import INTEGERS, Body, Value
from edgefuse.cuda.codegen.machine import power_of_two, vector_warps

_OUTPUTS = 64


def write(body: Body) -> None:
    x = body.tensor(body.launch.inputs[0])
    attributes: Any = body.launch.attributes
    outer, length, inner = attributes["sizes"]
    kind = attributes["kind"]
    integer = x.dtype in INTEGERS
    outputs = outer * inner
    most = body.machine.vector_elements * (1 if body.machine.interpreted else 2)
    height = min(power_of_two(outputs), 4096 if body.machine.interpreted else _OUTPUTS)
    deep = min(power_of_two(length), max(1, most // height))
    body.warps = max(2, vector_warps((height, deep), body.item_bytes))
    body.cut(outputs, height, 1, 1)
    o = body.axis("o", "tr", height, body.output.shape, "")
    largest, smallest = ("-2147483648", "2147483647") if integer else ("-inf", "inf")
    start = {"max": largest, "min": smallest}.get(kind, "0")
    if not integer and start != "0":
        start = f'float("{start}")'
    body.say(
        f"acc = tl.full(({height},), {start}, dtype={'tl.int32' if integer else 'tl.float32'})"
    )
    body.say(f"base = (o // {inner}) * {length * inner} + o % {inner}")
    body.say(f"for k0 in range({ceil(length / deep)}):")
    body.indent += 1
    body.say(f"k = k0 * {deep} + tl.arange(0, {deep})")
    masks = [f"({o.mask})[:, None]"] if o.mask else []
    ragged = bool(length % deep)
    if ragged:
        masks.append(f"(k < {length})[None, :]")
    read = body.load(x.name, f"base[:, None] + k[None, :] * {inner}", " & ".join(masks))
    body.say(f"v = {body.computed(x.name, read).name}")
    if kind in ("max", "min"):
        if ragged:
            body.say(f"v = tl.where((k < {length})[None, :], v, {start})")
        body.say(f"acc = tl.{kind}imum(acc, tl.{kind}(v, axis=1))")
    else:
        body.say(f"acc += tl.sum({'v * v' if kind == 'sum_square' else 'v'}, axis=1)")
    body.indent -= 1
    if kind == "mean" and not integer:
        body.say(f"acc = acc / {float(length)}")
    body.finish(Value("acc", integer), (o,))
