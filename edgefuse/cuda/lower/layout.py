"""Operators that move values and compute nothing, as views; a copy only where strides cannot say
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from edgefuse.cuda.lower.build import Build, refuse
from edgefuse.cuda.lower.view import View
from edgefuse.graph.flops import extents
from edgefuse.graph.values import attribute, constant, read

if TYPE_CHECKING:
    import onnx_ir as ir


def _transpose(build: Build, node: ir.Node) -> None:
    view = build.view(node.inputs[0])
    order = attribute(node, "perm", None) or tuple(reversed(range(len(view.shape))))
    build.views[node.outputs[0]] = view.transposed(order)


def _reshape(build: Build, node: ir.Node) -> None:
    view, shape = build.view(node.inputs[0]), extents(node.outputs[0])
    made = view.reshaped(shape)
    if made is None:
        made = build.copy(view, _copied_order(view, shape), [node]).reshaped(shape)
    assert made is not None
    build.views[node.outputs[0]] = made


def _copied_order(view: View, shape: Sequence[int]) -> list[int]:
    """Axes in memory for a copy that is then reshaped: channels last where they were and will be.

    Shuffled channels, [N, G, C / G, H, W] turned and joined to [N, C, H, W], stay [N, H, W, C].
    """
    axes = list(range(len(view.shape)))
    if len(shape) == 4 and view.memory_order() != tuple(axes):
        for end in axes[2:]:
            if prod(view.shape[1:end]) == shape[1] and view.shape[0] == shape[0]:
                return [0, *axes[end:], *axes[1:end]]
    return axes


def _slice(build: Build, node: ir.Node) -> None:
    view = build.view(node.inputs[0])
    given = [constant(read(node, place)) for place in range(1, 5)]
    if given[0] is None or any(
        array is None and read(node, place) is not None for place, array in enumerate(given, 1)
    ):
        refuse(node, "what it cuts out is computed at run time")
    starts = given[0].reshape(-1).tolist()
    axes = list(range(len(starts))) if given[2] is None else given[2].reshape(-1).tolist()
    steps = [1] * len(starts) if given[3] is None else given[3].reshape(-1).tolist()
    shape = extents(node.outputs[0])
    for axis, start, step in zip(axes, starts, steps, strict=True):
        axis %= len(view.shape)
        if step < 1:
            refuse(node, f"its step is {step}")
        size = view.shape[axis]
        begin = min(max(start + size if start < 0 else start, 0), size)
        view = view.sliced(axis, begin, shape[axis], step)
    build.views[node.outputs[0]] = view


def _split(build: Build, node: ir.Node) -> None:
    view = build.view(node.inputs[0])
    axis = int(attribute(node, "axis", 0)) % len(view.shape)
    begin = 0
    for value in node.outputs:
        extent = extents(value)[axis]
        build.views[value] = view.sliced(axis, begin, extent)
        begin += extent


def _gather(build: Build, node: ir.Node) -> None:
    """With one constant index: a slice, its axis removed where the index is a scalar."""
    view, index = build.view(node.inputs[0]), constant(read(node, 1))
    if index is None or index.size != 1:
        refuse(node, "its indices are several, or computed at run time")
    axis = int(attribute(node, "axis", 0)) % len(view.shape)
    place = int(index.reshape(-1)[0]) % view.shape[axis]
    made: View | None = view.sliced(axis, place, 1)
    if index.ndim == 0:
        made = view.sliced(axis, place, 1).without(axis)
    assert made is not None and made.shape == extents(node.outputs[0])
    build.views[node.outputs[0]] = made


def _expand(build: Build, node: ir.Node) -> None:
    build.views[node.outputs[0]] = build.view(node.inputs[0]).broadcast(extents(node.outputs[0]))


_Lowering = Callable[[Build, "ir.Node"], None]
#: Operators that are views.
LAYOUTS: Mapping[str, _Lowering] = {
    "Transpose": _transpose,
    **dict.fromkeys(
        ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"), _reshape
    ),
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Expand": _expand,
}
