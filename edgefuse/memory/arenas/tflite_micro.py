"""What tflite-micro will report as the head of its arena, without running it.

Problem: whether a model fits a microcontroller is known only after a build; a search over rewrites
needs the figure a thousand times.

tflite-micro's planner takes buffers by falling size (of equal ones the later tensor first, scratch
before all) and puts each at the lowest address at which it overlaps nothing that lives at the same
time. Every buffer is rounded up to 16 bytes. Scratch of the reference kernels: the sums of MEAN and
SUM, the places of REDUCE_MAX and REDUCE_MIN, the accumulators of an integer TRANSPOSE_CONV.

Scope: the reference kernels; one subgraph. Not in it: the tail (the interpreter's structures), and
scratch of other operators or of vendors' kernels.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

from edgefuse.memory.arena import Arena, Live, aligned, peak
from edgefuse.memory.liveness.tflite import TFLITE_MICRO, live_buffers

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel


OWNER = "tflite-micro"


def predicted_head(model: TfliteModel) -> Arena:
    """The head of the arena of tflite-micro's interpreter.

    Raises:
        StageError: what :func:`~edgefuse.memory.liveness.tflite.live_buffers` refuses.
    """
    buffers = (*live_buffers(model, TFLITE_MICRO), *_scratch(model))
    offsets = greedy_offsets(buffers)
    bound = peak(buffers)[0]
    used = max((o + b.size_bytes for o, b in zip(offsets, buffers, strict=True)), default=0)
    steps = tuple(operator.label for operator in model.operators)
    return Arena(OWNER, buffers, offsets, steps, bound, proven=used == bound)


def greedy_offsets(buffers: Sequence[Live]) -> tuple[int, ...]:
    """The offset of each buffer, as tflite-micro's greedy planner chooses it."""
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, int]] = []  # Offset, when it was placed, which buffer.
    order = sorted(range(len(buffers)), key=lambda k: (-buffers[k].size_bytes, -k))
    for turn, place in enumerate(order):
        wanted, begin = buffers[place], 0
        for offset, _, other in placed:
            held = buffers[other]
            if held.first > wanted.last or wanted.first > held.last:
                continue
            if offset - begin >= wanted.size_bytes:
                break
            begin = max(begin, offset + held.size_bytes)
        offsets[place] = begin
        insort(placed, (begin, turn, place))
    return tuple(offsets)


def _scratch(model: TfliteModel) -> Iterator[Live]:
    for step, operator in enumerate(model.operators):
        for place, size in enumerate(_scratch_bytes(model, step)):
            name = f"scratch{place + 1 if place else ''} of {operator.label}"
            yield Live(name, aligned(size, TFLITE_MICRO.alignment), step, step)


def _scratch_bytes(model: TfliteModel, step: int) -> list[int]:
    operator = model.operators[step]
    if operator.code not in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "TRANSPOSE_CONV"):
        return []
    source = model.tensors[operator.inputs[2 if operator.code == "TRANSPOSE_CONV" else 0]]
    result = model.tensors[operator.outputs[0]]
    elements = prod(result.shape)
    if operator.code == "TRANSPOSE_CONV":
        return [elements * (8 if source.dtype == "int16" else 4)] if not source.is_float else []
    if operator.code in ("MEAN", "SUM"):
        return [] if source.is_float else [elements * 4]
    axes = model.tensors[operator.inputs[1]]
    return [4 * len(source.shape), 4 * max(prod(axes.shape), 1)]
