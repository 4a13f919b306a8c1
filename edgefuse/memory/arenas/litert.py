"""LiteRT's arena for the built-in kernels without a delegate, without running it.

LiteRT's planner puts what lives from the first operator to the end and is never freed first, then
buffers by falling size (of equal ones the earlier first, of one operator's the later), each into
the tightest gap among those that live at the same time, at a multiple of 64 bytes. Sizes are not
rounded up. Model inputs, outputs and what nobody reads keep their place to the end. What shares a
buffer with what: :mod:`edgefuse.memory.liveness.tflite`.

Scratch of the optimised kernels that is known here: the unrolled windows (im2col) of a CONV_2D that
is not 1x1 with stride 1; of reductions the index, the axes and the sums; of BATCH_MATMUL both
operands transposed.

Against :mod:`edgefuse.devices.measure.arena`, which reads the arena off the interpreter's
addresses (ai-edge-litert 2.1, x86-64), to the byte: MobileNetV2 int8 2,602,368 and float
10,409,472, the files of onnx2tf and litert-torch for it and for EfficientNet-Lite0 (int8
1,655,808), a small ConvNeXt (float 105,600), and random nets (tests). A small MobileNetV3 (int8
81,984, float 96,384) is decided by scratch: without the first convolution's unrolled windows,
43,200 bytes, 38,784 and 58,240 would be foretold.

Not to the byte: the results of a SPLIT and other buffers of one size that one operator makes, which
LiteRT sorts by an unstable sort (1 of 100 random nets with SPLIT differs); a 1x1 convolution with
stride over a single pixel, whose windows are left out; scratch of other operators, as of those with
float activations and int8 weights, which quantise their input as they run.

Nor of float16 files: weights that DEQUANTIZE unpacks lie in an arena of their own for good, are
counted here as results of one operator, and may be in what is measured.

Left alone: weights; with XNNPACK its workspace replaces the arena.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from edgefuse.memory.arena import Arena, Live, aligned, peak
from edgefuse.memory.liveness.tflite import LITERT, kept_tensors, live_buffers, named_tensors

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

OWNER = "LiteRT"
_REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")


def predicted_arena(model: TfliteModel) -> Arena:
    """The arena of LiteRT's interpreter with its built-in kernels.

    Raises:
        StageError: what :func:`~edgefuse.memory.liveness.tflite.live_buffers` refuses.
    """
    buffers = (*live_buffers(model, replace(LITERT, alignment=1)), *_scratch(model))
    steps = tuple(operator.label for operator in model.operators)
    offsets = greedy_offsets(buffers, _held_throughout(model, buffers))
    bound = peak(buffers)[0]
    used = max((o + b.size_bytes for o, b in zip(offsets, buffers, strict=True)), default=0)
    return Arena(OWNER, buffers, offsets, steps, bound, proven=used == bound)


def greedy_offsets(
    buffers: Sequence[Live], throughout: Collection[int] = frozenset()
) -> tuple[int, ...]:
    """The offset of each buffer, as LiteRT's planner chooses it.

    Args:
        throughout: places in ``buffers`` of those that are put first, as nothing frees them and
            the first operator or the caller makes them.
    """
    offsets = [0] * len(buffers)

    def key(place: int) -> tuple[bool, int, int, int]:
        buffer = buffers[place]
        if place in throughout:
            return (False, 0, 0, place)
        return (True, -buffer.size_bytes, buffer.first, -place)

    placed: list[int] = []
    for place in sorted(range(len(buffers)), key=key):
        wanted, free, best, room = buffers[place], 0, -1, -1
        for other in sorted(placed, key=lambda k: offsets[k]):
            held = buffers[other]
            if held.last < wanted.first or held.first > wanted.last:
                continue
            at = aligned(free, LITERT.alignment)
            gap = offsets[other] - at
            if gap >= wanted.size_bytes and (best < 0 or gap < room):
                best, room = at, offsets[other] - free
            free = max(free, offsets[other] + held.size_bytes)
            if room == 0:
                break
        offsets[place] = aligned(free, LITERT.alignment) if best < 0 else best
        placed.append(place)
    return tuple(offsets)


def _held_throughout(model: TfliteModel, buffers: Sequence[Live]) -> frozenset[int]:
    names = {b.name: place for place, b in enumerate(buffers) if b.first == 0}
    held = named_tensors(model)
    kept = kept_tensors(model, LITERT)
    return frozenset(
        names[name] for name, tensor in held.items() if tensor.index in kept and name in names
    )


def _scratch(model: TfliteModel) -> Iterator[Live]:
    for step, operator in enumerate(model.operators):
        for what, size in _scratch_bytes(model, step):
            yield Live(f"{what} of {operator.label}", size, step, step)


def _scratch_bytes(model: TfliteModel, step: int) -> Iterator[tuple[str, int]]:
    operator = model.operators[step]
    if operator.code not in ("CONV_2D", "BATCH_MATMUL", *_REDUCTIONS):
        return
    source, other = (model.tensors[i] for i in operator.inputs[:2])
    result = model.tensors[operator.outputs[0]]
    if operator.code == "CONV_2D":
        _, high, wide, channels = other.shape
        if (high, wide) != (1, 1) or source.shape[1:3] != result.shape[1:3]:
            window = high * wide * channels * source.nbytes // prod(source.shape)
            yield "windows", prod(result.shape[:3]) * window
        return
    if operator.code == "BATCH_MATMUL":
        yield "transposed left", source.nbytes
        if not other.is_constant:
            yield "transposed right", other.nbytes
        return
    yield "index", 4 * len(source.shape)
    yield "axes", 4 * max(prod(other.shape), 1)
    if operator.code in ("MEAN", "SUM"):
        yield "sums", 4 * prod(result.shape)
