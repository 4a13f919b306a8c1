"""Operators that are neither products nor pointwise: pools, reductions, norms, softmax, joins.

Each becomes one launch, pointwise operators behind it in its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from edgefuse.artifact import Quantization
from edgefuse.cuda.lower.build import NHWC, Build, refuse
from edgefuse.cuda.lower.pointwise import Chain, finished, operand_name
from edgefuse.cuda.lower.product import window
from edgefuse.cuda.lower.view import View, contiguous, merged
from edgefuse.cuda.steps import Step
from edgefuse.graph.flops import extents
from edgefuse.graph.values import attribute, constant, module_path, read

if TYPE_CHECKING:
    import onnx_ir as ir

Lowering = Callable[[Build, "ir.Node", "Sequence[ir.Node]"], None]


def _steps(
    build: Build, core: ir.Node, after: Sequence[ir.Node], order: Sequence[int]
) -> tuple[Step, ...]:
    result = core.outputs[0]
    chain = Chain(lambda v: operand_name(build, v, result, order, core), {result: "acc"})
    for node in after:
        chain.add(node)
        if extents(node.outputs[0]) != extents(result):
            refuse(node, f"it changes the shape of the result of {core.op_type}")
    last = after[-1].outputs[0] if after else result
    return finished(chain.steps, chain.known[last])


def _last(core: ir.Node, after: Sequence[ir.Node]) -> ir.Node:
    return after[-1] if after else core


def _operand(build: Build, node: ir.Node) -> View:
    return build.view(read(node, 0))


def lower_pool(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    steps = _steps(build, core, after, NHWC)
    pool(build, core, after, steps)


def pool(
    build: Build,
    core: ir.Node,
    after: Sequence[ir.Node],
    steps: Sequence[Step],
    q: Quantization | None = None,
) -> None:
    """A pool, its steps given; ``q``: of its result, in int8 programs."""
    view = _operand(build, core)
    if len(view.shape) != 4:
        refuse(core, f"it pools over {len(view.shape) - 2} axes", hint="use 2-D pools")
    settings = window(core)
    if settings.pop("dilations") != (1, 1) or attribute(core, "ceil_mode", 0):
        refuse(core, "it has dilations or rounds up", hint="pad, and round down")
    x = build.stored(view, NHWC, [core])
    last = _last(core, after)
    output = build.output(last.outputs[0], NHWC, module_path(last), q)
    if q is not None:
        settings["pad_value"] = q.zero_point
    build.launch(
        "pool", (x,), (), output, epilogue=steps, nodes=[core, *after],
        kind="max" if core.op_type == "MaxPool" else "average",
        window=tuple(attribute(core, "kernel_shape", ())),
        count_padding=int(attribute(core, "count_include_pad", 0)),
        settings=settings,
    )  # fmt: skip


_REDUCTIONS: Mapping[str, str] = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min",
    "ReduceSumSquare": "sum_square", "GlobalAveragePool": "mean", "GlobalMaxPool": "max",
}  # fmt: skip


def reduction(node: ir.Node) -> str:
    """What a reduction computes; empty for other operators."""
    return _REDUCTIONS.get(node.op_type, "")


def lower_reduce(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    x, sizes, order = _reduced(build, core)
    steps = _steps(build, core, after, order)
    last = _last(core, after)
    output = build.output(last.outputs[0], order, module_path(last))
    build.launch(
        "reduce", (x,), (), output, epilogue=steps, nodes=[core, *after],
        kind=reduction(core), sizes=sizes,
    )  # fmt: skip


def int8_mean(build: Build, core: ir.Node, steps: Sequence[Step], q: Quantization) -> None:
    """A mean in an int8 program, its steps given."""
    x, sizes, order = _reduced(build, core)
    output = build.output(core.outputs[0], order, module_path(core), q)
    build.launch("reduce", (x,), (), output, epilogue=steps, nodes=[core], kind="mean", sizes=sizes)


def _reduced(build: Build, core: ir.Node) -> tuple[str, tuple[int, int, int], list[int]]:
    """The tensor that is reduced, as [outer, axis, inner], and the result's axes in memory."""
    view = _operand(build, core)
    rank = len(view.shape)
    keeps = True
    if core.op_type.startswith("Global"):
        axes = list(range(2, rank))
    else:
        given = constant(read(core, 1))
        listed = attribute(core, "axes", ()) if given is None else given.reshape(-1).tolist()
        axes = sorted(int(a) % rank for a in listed) or list(range(rank))
        keeps = bool(attribute(core, "keepdims", 1))

    def along(order: Sequence[int]) -> list[int]:
        real = [a for a in order if view.shape[a] != 1]
        return [place for place, a in enumerate(real) if a in axes]

    order = list(view.memory_order())
    found = along(order)
    if found and found != list(range(found[0], found[-1] + 1)):
        order = [a for a in order if a not in axes] + axes
        found = along(order)
    x = build.stored(view, order, [core])
    sizes = [view.shape[a] for a in order if view.shape[a] != 1]
    first, end = (found[0], found[-1] + 1) if found else (0, 0)
    kept = [a for a in order if keeps or a not in axes]
    names = {a: place for place, a in enumerate(sorted(kept))}
    three = (prod(sizes[:first]), prod(sizes[first:end]), prod(sizes[end:]))
    return x, three, [names[a] for a in kept]


def lower_norm(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    view = _operand(build, core)
    rank = len(view.shape)
    if int(attribute(core, "axis", -1)) % rank != rank - 1:
        refuse(core, "it normalises over more than the last axis")
    order = range(rank)
    x = build.stored(view, order, [core])
    layer = core.op_type == "LayerNormalization"
    scale, shift = (constant(read(core, place)) for place in (1, 2))
    if scale is None or (read(core, 2) is not None and shift is None):
        refuse(core, "its scale or shift is computed at run time")
    columns = view.shape[-1]
    parts = [scale] + ([np.zeros(columns) if shift is None else shift] if layer else [])
    names = [str(v.name) for v in core.inputs[1:] if v is not None]
    names += [f"{core.name} zero shift"] * (len(parts) - len(names))
    weights = [
        build.weight(name, np.broadcast_to(part.astype(np.float32), (columns,)), "float32")
        for name, part in zip(names, parts, strict=False)
    ]
    steps = _steps(build, core, after, order)
    last = _last(core, after)
    output = build.output(last.outputs[0], order, module_path(last))
    build.launch(
        "norm", (x,), weights, output, epilogue=steps, nodes=[core, *after],
        kind="layer" if layer else "rms", epsilon=float(attribute(core, "epsilon", 1e-5)),
    )  # fmt: skip


def lower_softmax(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    view = _operand(build, core)
    rank = len(view.shape)
    axis = int(attribute(core, "axis", -1)) % rank
    order = [a for a in range(rank) if a != axis] + [axis]
    x = build.stored(view, order, [core])
    steps = _steps(build, core, after, order)
    last = _last(core, after)
    output = build.output(last.outputs[0], order, module_path(last))
    build.launch("softmax", (x,), (), output, epilogue=steps, nodes=[core, *after])


def lower_concat(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    result = core.outputs[0]
    shape = extents(result)
    rank = len(shape)
    axis = int(attribute(core, "axis", 0)) % rank
    views = [
        build.view(v).broadcast(extents(v)) for v in core.inputs if v is not None and elements_of(v)
    ]
    order = list(max(views, key=lambda v: v.distinct).memory_order())
    place = order.index(axis)
    parts = [(v, v.transposed(order)) for v in views]
    spaces = []
    for view, turned in parts:
        found = _three(turned, place)
        if found is None:
            made = build.copy(view, order, [core])
            found = _three(made.transposed(order), place)
        assert found is not None
        spaces.append(found)
    ordered = [shape[a] for a in order]
    steps = _steps(build, core, after, order)
    last = _last(core, after)
    output = build.output(last.outputs[0], order, module_path(last))
    build.launch(
        "concat", [v.tensor for v in spaces], (), output, epilogue=steps, nodes=[core, *after],
        sizes=(prod(ordered[:place]), prod(ordered[place + 1 :])),
        extents=tuple(v.shape[1] for v in spaces),
        views=tuple((v.offset, v.strides) for v in spaces),
    )  # fmt: skip


def elements_of(value: ir.Value) -> int:
    return prod(extents(value))


def _three(view: View, place: int) -> View | None:
    """A view as [outer, axis, inner], where its strides allow."""
    shape = view.shape
    return view.reshaped((prod(shape[:place]), shape[place], prod(shape[place + 1 :])))


def lower_resize(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    """Nearest, by whole factors: each element is read several times."""
    view, shape = _operand(build, core), extents(core.outputs[0])
    how = (
        attribute(core, "mode", "nearest"),
        attribute(core, "coordinate_transformation_mode", "half_pixel"),
        attribute(core, "nearest_mode", "round_prefer_floor"),
    )
    factors = [b // a for a, b in zip(view.shape, shape, strict=True)]
    whole = all(a * f == b for a, f, b in zip(view.shape, factors, shape, strict=True))
    same = how[1:] in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    if how[0] != "nearest" or not whole or not same:
        refuse(core, f"it is {how[0]}, or by no whole factor", hint="use nearest by whole factors")
    order = view.memory_order()
    sizes = tuple(n for a in order for n in (view.shape[a], factors[a]))
    strides = tuple(n for a in order for n in (view.strides[a], 0))
    wide = View(view.tensor, sizes, strides, view.offset)
    _copied(build, core, after, wide, order)


def _copied(
    build: Build, core: ir.Node, after: Sequence[ir.Node], wide: View, order: Sequence[int]
) -> None:
    if after:
        refuse(after[0], f"it is grouped with {core.op_type}")
    shape, strides = merged(wide.shape, [wide])
    output = build.output(core.outputs[0], order, module_path(core))
    build.launch(
        "pointwise", (wide.tensor,), (), output, nodes=[core], shape=shape,
        views=((wide.offset, tuple(strides[0])),),
    )  # fmt: skip


def lower_conv_transpose(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    """A transposed convolution whose window is its stride: a product, then pixels put in place."""
    weight, bias = constant(read(core, 1)), constant(read(core, 2))
    view = _operand(build, core)
    strides = tuple(attribute(core, "strides", (1, 1)))
    plain = not any(attribute(core, "pads", ())) and not any(attribute(core, "output_padding", ()))
    if (
        weight is None or weight.ndim != 4 or weight.shape[2:] != strides or not plain
        or int(attribute(core, "group", 1)) != 1 or (read(core, 2) is not None and bias is None)
    ):  # fmt: skip
        refuse(core, "its windows overlap, or it has pads", hint="let kernel_size equal stride")
    n, _, h, w = view.shape
    i, o, kh, kw = weight.shape
    wide = weight.transpose(0, 2, 3, 1).reshape(i, kh * kw * o)
    names = [str(v.name) for v in core.inputs[1:] if v is not None]

    def operand(value: ir.Value) -> str:
        refuse(core, f"what follows it reads {value.name!r}")

    chain = Chain(operand, {core.outputs[0]: "acc"})
    if bias is not None:
        vector = np.tile(bias.astype(np.float32), kh * kw)
        chain.steps.append(Step("add", ("acc", build.weight(names[1], vector, "float32"))))
        chain.known[core.outputs[0]] = "%0"
    for node in after:
        chain.add(node)
    steps = finished(chain.steps, chain.known[_last(core, after).outputs[0]])
    x = build.stored(view, NHWC, [core])
    middle = build.tensor(
        f"{core.outputs[0].name} pixels", (n, h, w, kh * kw * o), module=module_path(core)
    )
    build.launch(
        "conv1x1", (x,), (build.weight(names[0], wide, build.dtype),), middle, epilogue=steps,
        nodes=[core, *after],
    )  # fmt: skip
    six = contiguous(middle, (n, h, w, kh, kw, o)).transposed((0, 1, 3, 2, 4, 5))
    _copied_pixels(build, _last(core, after), six)


def _copied_pixels(build: Build, core: ir.Node, six: View) -> None:
    shape, strides = merged(six.shape, [six])
    output = build.output(core.outputs[0], NHWC, module_path(core))
    build.launch(
        "pointwise", (six.tensor,), (), output, shape=shape,
        views=((six.offset, tuple(strides[0])),),
    )  # fmt: skip


#: Lowerings by operator.
LOWERINGS: Mapping[str, Lowering] = {
    "MaxPool": lower_pool,
    "AveragePool": lower_pool,
    **dict.fromkeys(_REDUCTIONS, lower_reduce),
    "LayerNormalization": lower_norm,
    "RMSNormalization": lower_norm,
    "SimplifiedLayerNormalization": lower_norm,
    "Softmax": lower_softmax,
    "Concat": lower_concat,
    "Resize": lower_resize,
    "ConvTranspose": lower_conv_transpose,
}
