"""Inputs side by side along one axis, each seen through a strided view."""

from __future__ import annotations

from math import ceil
from typing import Any

from edgefuse.cuda.codegen.body import INTEGERS, Body, Value
from edgefuse.cuda.codegen.machine import power_of_two, vector_warps


def write(body: Body) -> None:
    attributes: Any = body.launch.attributes
    outer, inner = attributes["sizes"]
    extents: tuple[int, ...] = attributes["extents"]
    whole = sum(extents)
    elements = outer * whole * inner
    size = min(power_of_two(elements), body.machine.vector_elements)
    body.programs = ceil(elements / size)
    body.warps = vector_warps((size,), body.item_bytes)
    body.say("tr = tl.program_id(0)")
    y = body.axis("y", "tr", size, body.output.shape, "")
    body.say(f"yo = y // {whole * inner}", f"ym = (y // {inner}) % {whole}", f"yi = y % {inner}")
    integer = body.tensor(body.launch.inputs[0]).dtype in INTEGERS
    start = 0
    for place, (name, extent) in enumerate(zip(body.launch.inputs, extents, strict=True)):
        offset, strides = attributes["views"][place]
        terms = [
            f"{index} * {stride}"
            for index, stride in zip(("yo", f"(ym - {start})", "yi"), strides, strict=True)
            if stride
        ]
        text = " + ".join([*terms, str(offset)] if offset or not terms else terms)
        inside = f"(ym >= {start}) & (ym < {start + extent})" + (f" & ({y.mask})" if y.mask else "")
        value = body.computed(name, body.load(name, text, inside)).name
        body.say(f"acc = {value}" if place == 0 else f"acc = tl.where(ym < {start}, acc, {value})")
        start += extent
    body.finish(Value("acc", integer), (y,))
