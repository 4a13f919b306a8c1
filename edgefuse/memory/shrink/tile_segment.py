"""Which operators of a .tflite file can run tile by tile, and which region each tile needs.

Problem: a tile of a result needs more than itself of every input before it: the halo that windows
reach over. Going back from the result through the operators, the region of each tensor follows.

LiteRT's built-in element-wise kernels on x86 round ties in the remainder of their vector loop
otherwise than in the loop (an ADD of MobileNetV2: one step, in 6 pictures of 100). So an
element-wise operator gets whole vectors: its region grows to even sides where its channels alone do
not fill them.

Scope: convolutions and max pooling, operators that work on one place at a time, channels joined;
PADs in front of convolutions count as the convolution's own padding. Left alone: everything behind
the first operator that is none of these; poolings that pad.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from edgefuse.memory.shrink.windowed import (
    CONVOLUTIONS,
    PLACEWISE,
    absorbable_pads,
    axes,
    is_constant,
    is_spread,
    is_windowed,
    pads_of,
)

if TYPE_CHECKING:
    from edgefuse.memory.shrink.windows import Axis
    from edgefuse.tflite.edit import Edit

Interval = tuple[int, int]
_VECTOR = 32  # Elements that the widest of the vector loops takes at once.


@dataclass(frozen=True)
class Step:
    """One operator that runs tile by tile.

    Attributes:
        place: the operator's place in the file.
        inputs: the activations it reads, a PAD in front already left out.
        windows: rows and columns; None for an operator that works on one place at a time.
        size: rows and columns of the output.
        multiple: of which the sides of a region of the output have to be.
    """

    place: int
    inputs: tuple[int, ...]
    output: int
    windows: tuple[Axis, Axis] | None
    size: tuple[int, int]
    multiple: int = 1


@dataclass(frozen=True)
class Segment:
    """Operators from ``begin`` up to, not including, ``end``: from one tensor to one tensor."""

    begin: int
    end: int
    source: int
    result: int
    steps: tuple[Step, ...]


def segments(edit: Edit) -> tuple[Segment, ...]:
    """The first stretch of operators that can be tiled, cut wherever one tensor alone leads on;
    shortest first. Empty where there is none."""
    operators = edit.graph.operators
    pads = {id(operator): operator for _, operator in absorbable_pads(edit)[0]}
    begin = 0
    while begin < len(operators) and _step(edit, begin, {}, pads) is None:
        begin += 1
    if begin == len(operators):
        return ()
    source = next(int(i) for i in operators[begin].inputs if not is_constant(edit, int(i)))
    padded: dict[int, Any] = {}
    steps: list[Step] = []
    until = _until(edit)
    known, found = {source}, []
    for place in range(begin, len(operators)):
        operator = operators[place]
        if id(operator) in pads and int(operator.inputs[0]) in known:
            padded[int(operator.outputs[0])] = operator
            continue
        step = _step(edit, place, padded, pads)
        if step is None or not {*step.inputs} <= known:
            break
        steps.append(step)
        known.add(step.output)
        crossing = {i for i in known if i != source and until.get(i, -1) > place}
        if crossing == {step.output} and all(until.get(i, -1) <= place for i in padded):
            led = _leading(steps, step.output)
            found.append(Segment(begin, place + 1, source, step.output, led))
    return tuple(found)


def _leading(steps: list[Step], result: int) -> tuple[Step, ...]:
    """The steps that the result is made of; what nobody reads is not made in tiles."""
    wanted, kept = {result}, []
    for step in reversed(steps):
        if step.output in wanted:
            kept.append(step)
            wanted.update(step.inputs)
    return tuple(reversed(kept))


def _until(edit: Edit) -> dict[int, int]:
    """The place of the last operator that reads each tensor; behind all for the model's outputs."""
    found = {int(i): place for place, held in enumerate(edit.graph.operators) for i in held.inputs}
    return found | dict.fromkeys(map(int, edit.graph.outputs), len(edit.graph.operators))


def _step(edit: Edit, place: int, padded: dict[int, Any], pads: dict[int, Any]) -> Step | None:
    operator = edit.graph.operators[place]
    code = edit.code(operator)
    if id(operator) in pads:
        return Step(place, (int(operator.inputs[0]),), int(operator.outputs[0]), None, (0, 0))
    given = [int(i) for i in operator.inputs if i >= 0]
    moving = [i for i in given if not is_constant(edit, i)]
    if len(operator.outputs) != 1 or not moving:
        return None
    result = int(operator.outputs[0])
    if any(not _is_map(edit, i) for i in (*moving, result)):
        return None
    if is_windowed(edit, operator):
        if code not in (*CONVOLUTIONS, "MAX_POOL_2D") or len(moving) > 1:
            return None
        pad = padded.get(moving[0])
        source = int(pad.inputs[0]) if pad is not None else moving[0]
        around = pads_of(edit, pad) if pad is not None else None
        assert not isinstance(around, str)
        windows = axes(edit, operator, source, around)
        outside = any(axis.before > 0 or axis.after > 0 for axis in windows)
        if outside and code not in CONVOLUTIONS:
            return None
        return Step(place, (source,), result, windows, _extent(edit, result))
    if code == "CONCATENATION":
        if operator.builtinOptions.axis not in (3, -1) or len(moving) != len(given):
            return None
    elif code not in PLACEWISE or any(is_spread(edit, i) for i in given if i not in moving):
        return None
    sizes = {_extent(edit, i) for i in (*moving, result)}
    if len(sizes) != 1:
        return None
    channels, multiple = int(edit.graph.tensors[result].shape[3]), 1
    while code != "CONCATENATION" and multiple * multiple * channels % _VECTOR:
        multiple *= 2
    return Step(place, tuple(moving), result, None, _extent(edit, result), multiple)


def _is_map(edit: Edit, index: int) -> bool:
    tensor = edit.graph.tensors[index]
    return len(tensor.shape) == 4 and int(tensor.shape[0]) == 1 and not tensor.isVariable


def _extent(edit: Edit, index: int) -> tuple[int, int]:
    shape = edit.graph.tensors[index].shape
    return int(shape[1]), int(shape[2])


def cut(size: int, parts: int) -> tuple[Interval, ...]:
    """``size`` in ``parts`` intervals that differ by one at most."""
    edges = [size * k // parts for k in range(parts + 1)]
    return tuple(pairwise(edges))


def read_by(step: Step, axis: int, wanted: Interval) -> tuple[Interval, Interval]:
    """What a step reads to make ``wanted``, inside the input; and how much of it lies outside, in
    front and behind."""
    if step.windows is None:
        return wanted, (0, 0)
    window = step.windows[axis]
    low = wanted[0] * window.stride - window.before
    high = (wanted[1] - 1) * window.stride - window.before + window.kernel
    inside = (max(low, 0), min(high, window.size))
    return inside, (max(-low, 0), max(high - window.size, 0))


def needed(segment: Segment, axis: int, wanted: Interval) -> dict[int, Interval]:
    """Of each tensor of the segment, what a tile needs along one axis."""
    regions = {segment.result: wanted}
    for step in reversed(segment.steps):
        regions[step.output] = _grown(regions[step.output], step.size[axis], step.multiple)
        low, high = read_by(step, axis, regions[step.output])[0]
        for index in step.inputs:
            held = regions.get(index, (low, high))
            regions[index] = (min(held[0], low), max(held[1], high))
    return regions


def _grown(region: Interval, size: int, multiple: int) -> Interval:
    """The region with a length of a multiple, or all there is."""
    length = min(-(-(region[1] - region[0]) // multiple) * multiple, size)
    high = min(region[0] + length, size)
    return high - length, high


def made_along(segment: Segment, axis: int, parts: int, size: int) -> tuple[int, ...]:
    """How many rows (or columns) of its output each step makes, over all tiles of one axis."""
    total = dict.fromkeys((step.output for step in segment.steps), 0)
    for interval in cut(size, parts):
        regions = needed(segment, axis, interval)
        for index in total:
            total[index] += regions[index][1] - regions[index][0]
    return tuple(total[step.output] for step in segment.steps)
