"""What every kernel computes: its tensors, its attributes, its accumulator.

``x`` is the first input, ``y`` the output; sums are over what is not on the left. All sizes follow
from the tensors' shapes. Tensors are contiguous but where ``views`` are given. Accumulators are
float32 over operands read as float32; in int8 programs they are int32 over the stored integers as
they are, zero points not subtracted (lowering puts them in the bias), ``pad_value`` standing where
a window leaves the picture (0 outside int8 programs). ``pads`` are (top, left, bottom, right),
``strides`` and ``dilations`` (rows, columns).

conv1x1, gemm
    x [..., K], weight [K, N], y [..., N]: ``acc[r, n] = sum_k inner(x)[r, k] * weight[k, n]``, a
    row r for each element of the leading axes. ``inner`` sees the elements of x, its operands
    broadcast to x's shape. conv1x1 rows are pixels, gemm rows are samples or tokens; they compute
    the same.
depthwise
    x [N, H, W, C], weight [KH, KW, C], y [N, P, Q, C]:
    ``acc[n, p, q, c] = sum_ij x[n, p sh + i dh - top, q sw + j dw - left, c] * weight[i, j, c]``
conv
    x [N, H, W, C], or [N, C, H, W] where ``layout`` is ``NCHW``; weight [KH, KW, C, M],
    y [N, P, Q, M]: as depthwise, summed over c.
depthwise_project
    x [N, H, W, C], weights [KH, KW, C] and [C, M], y [N, P, Q, M]: depthwise, then ``inner`` on its
    accumulator, rounded to the activations' dtype, then conv1x1 of that. ``strides``, ``pads``,
    ``dilations`` and ``pad_value`` are the depthwise part's.
pool
    x [N, H, W, C], y [N, P, Q, C]; ``kind`` max or average over ``window`` (rows, columns). An
    average divides by the number of elements in the picture, or by the window's size where
    ``count_padding`` is 1; padding is never a maximum. In int8 programs an average is a sum of
    ``x - pad_value``, its divisor in the multiplier, which needs ``count_padding`` or no pads.
reduce
    x as [outer, axis, inner], y as [outer, inner], the three sizes being ``sizes``; ``kind`` mean,
    sum, max, min or sum_square. In int8 programs a mean is the sum, its divisor in the multiplier.
norm
    x [..., C], y of the same shape, over the last axis; ``kind`` layer:
    ``(x - mean) / sqrt(variance + epsilon) * scale + shift``; rms:
    ``x / sqrt(mean of x^2 + epsilon) * scale``. Weights: scale [C], and shift [C] for layer,
    float32.
softmax
    x [..., C], y of the same shape: ``exp(x - max) / sum exp(x - max)`` over the last axis.
pointwise
    ``y[i] = steps`` where i runs over ``shape``, an index space with as many elements as y, in y's
    memory order. ``views``: for each input (offset, (stride, ...)) in elements, a stride for each
    axis of ``shape``, 0 where it repeats. ``acc`` and ``$0`` are the first input, ``$1`` ... the
    others. Named operands broadcast to ``shape``. Without steps it is a copy.
concat
    y [outer, a + b + ..., inner]: input k gives the part of ``extents[k]`` along the middle axis;
    ``sizes`` (outer, inner). ``views``: for each input (offset, (stride of outer, of middle, of
    inner)); ``acc`` is the joined tensor.
attention
    inputs q, k, v; y [N, T, H, D]: for sample n and head h ``softmax_s(scale * q[t] . k[s]) v[s]``,
    ``sizes`` (N, H, T, S, D, E): T rows of q, S of k and v, D columns of q and k, E of v and y.
    ``views``: for each input (offset, (stride of n, of h, of row, of column)) in elements. Scores
    and sums are float32; the softmax's result is not rounded in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from edgefuse.cuda.steps import KINDS

if TYPE_CHECKING:
    from edgefuse.cuda.program import Launch, Program, Tensor

Shape = tuple[int, ...]
_WINDOW = ("strides", "pads", "dilations", "pad_value")


@dataclass(frozen=True)
class Contract:
    """What a launch of one kernel has to hold.

    Attributes:
        inputs, weights: how many tensors, at least and at most.
        attributes: all of them are given, no others.
        shape: the output's shape from those of inputs, weights and the attributes; None where
            ``attributes`` say it.
        matrix: whether it is a matrix product.
        inner: whether it may have inner steps.
    """

    inputs: tuple[int, int]
    weights: tuple[int, int]
    attributes: tuple[str, ...]
    shape: Callable[[list[Shape], list[Shape], Mapping[str, Any]], Shape | None]
    matrix: bool = False
    inner: bool = False


def window_shape(height: int, width: int, window: Shape, attributes: Mapping[str, Any]) -> Shape:
    """Rows and columns of what a window makes of a picture, rounded down."""
    top, left, bottom, right = attributes["pads"]
    sizes = ((height, top + bottom), (width, left + right))
    dilations = attributes.get("dilations", (1, 1))
    return tuple(
        (size + pads - dilation * (extent - 1) - 1) // stride + 1
        for (size, pads), extent, stride, dilation in zip(
            sizes, window, attributes["strides"], dilations, strict=True
        )
    )


def _rows(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    return (*x[0][:-1], w[0][1]) if x[0][-1] == w[0][0] else None


def _depthwise(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    n, h, width, c = x[0]
    return (n, *window_shape(h, width, w[0][:2], a), c) if c == w[0][2] else None


def _conv(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    n, h, width, c = x[0] if a["layout"] == "NHWC" else tuple(x[0][i] for i in (0, 2, 3, 1))
    return (n, *window_shape(h, width, w[0][:2], a), w[0][3]) if c == w[0][2] else None


def _project(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    made = _depthwise(x, w, a)
    return (*made[:3], w[1][1]) if made is not None and made[3] == w[1][0] else None


def _pool(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    n, h, width, c = x[0]
    return (n, *window_shape(h, width, a["window"], a), c)


def _reduce(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    outer, axis, inner = a["sizes"]
    return (outer * inner,) if prod(x[0]) == outer * axis * inner else None


def _same(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    return x[0] if all(weight == x[0][-1:] for weight in w) else None


def _pointwise(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    fits = all(len(strides) == len(a["shape"]) for _, strides in a["views"])
    return (prod(a["shape"]),) if fits and len(a["views"]) == len(x) else None


def _concat(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    outer, inner = a["sizes"]
    fits = len(a["views"]) == len(a["extents"]) == len(x)
    return (outer * sum(a["extents"]) * inner,) if fits else None


def _attention(x: list[Shape], w: list[Shape], a: Mapping[str, Any]) -> Shape | None:
    n, h, t, _, _, e = a["sizes"]
    return (n, t, h, e) if len(a["views"]) == 3 else None


#: Every kernel.
KERNELS: Mapping[str, Contract] = {
    "conv1x1": Contract((1, 1), (1, 1), (), _rows, matrix=True, inner=True),
    "gemm": Contract((1, 1), (1, 1), (), _rows, matrix=True, inner=True),
    "depthwise": Contract((1, 1), (1, 1), _WINDOW, _depthwise),
    "conv": Contract((1, 1), (1, 1), (*_WINDOW, "layout"), _conv, matrix=True),
    "depthwise_project": Contract((1, 1), (2, 2), _WINDOW, _project, matrix=True, inner=True),
    "pool": Contract(
        (1, 1), (0, 0), ("kind", "window", "strides", "pads", "count_padding", "pad_value"), _pool
    ),
    "reduce": Contract((1, 1), (0, 0), ("kind", "sizes"), _reduce),
    "norm": Contract((1, 1), (1, 2), ("kind", "epsilon"), _same),
    "softmax": Contract((1, 1), (0, 0), (), _same),
    "pointwise": Contract((1, 16), (0, 0), ("shape", "views"), _pointwise),
    "concat": Contract((1, 64), (0, 0), ("sizes", "extents", "views"), _concat),
    "attention": Contract((3, 3), (0, 0), ("sizes", "views", "scale"), _attention, matrix=True),
}
#: What ``kind`` may be.
_WAYS: Mapping[str, tuple[str, ...]] = {
    "pool": ("max", "average"),
    "reduce": ("mean", "sum", "max", "min", "sum_square"),
    "norm": ("layer", "rms"),
}
# Kernels whose output may have any shape of as many elements.
_COUNTED = ("reduce", "pointwise", "concat")


def breaches(program: Program, launch: Launch) -> Iterator[str]:
    """What a launch breaks of its kernel's contract, in words."""
    contract = KERNELS.get(launch.kernel)
    if contract is None:
        yield f"there is no kernel {launch.kernel!r}; there are {', '.join(KERNELS)}"
        return
    for kind, (least, most) in (("inputs", contract.inputs), ("weights", contract.weights)):
        count = len(getattr(launch, kind))
        if not least <= count <= most:
            yield f"{launch.kernel} takes {least} to {most} {kind}, not {count}"
            return
    if set(launch.attributes) != set(contract.attributes):
        given = sorted(launch.attributes)
        yield f"{launch.kernel} takes the attributes {sorted(contract.attributes)}, not {given}"
        return
    if launch.kernel in _WAYS and launch.attributes["kind"] not in _WAYS[launch.kernel]:
        yield f"{launch.kernel} has no kind {launch.attributes['kind']!r}"
    if launch.inner and not contract.inner:
        yield f"{launch.kernel} takes no inner steps"
    shapes = [[program.tensor(n).shape for n in names] for names in (launch.inputs, launch.weights)]
    output = program.tensor(launch.output)
    try:
        made = contract.shape(shapes[0], shapes[1], launch.attributes)
    except (ValueError, IndexError):
        made = None
    fits = made is not None and (
        prod(made) == output.elements if launch.kernel in _COUNTED else made == output.shape
    )
    if not fits:
        yield f"{launch.kernel} cannot make {list(output.shape)} of {shapes[0]} and {shapes[1]}"
    yield from _view_breaches(program, launch)
    yield from _step_breaches(program, launch)


def _view_breaches(program: Program, launch: Launch) -> Iterator[str]:
    views: Any = launch.attributes.get("views", ())
    for name, (offset, strides), space in zip(launch.inputs, views, view_spaces(launch)):
        last = offset + sum((n - 1) * stride for n, stride in zip(space, strides, strict=False))
        if offset < 0 or min(strides, default=0) < 0 or last >= program.tensor(name).elements:
            yield f"a view reaches element {last} of tensor {name!r}"


def view_spaces(launch: Launch) -> list[Shape]:
    """The index space of each input's view."""
    a: Mapping[str, Any] = launch.attributes
    if launch.kernel == "pointwise":
        return [a["shape"]] * len(launch.inputs)
    if launch.kernel == "concat":
        return [(a["sizes"][0], extent, a["sizes"][1]) for extent in a["extents"]]
    if launch.kernel == "attention":
        n, h, t, s, d, e = a["sizes"]
        return [(n, h, t, d), (n, h, s, d), (n, h, s, e)]
    return []


def _step_breaches(program: Program, launch: Launch) -> Iterator[str]:
    sees = {
        "inner": _inner_shape(program, launch),
        "epilogue": launch.attributes.get("shape", program.tensor(launch.output).shape),
    }
    for which, space in sees.items():
        for place, step in enumerate(getattr(launch, which)):
            kind = KINDS.get(step.kind)
            if kind is None:
                yield f"there is no step {step.kind!r}"
                continue
            if (len(step.operands), len(step.constants)) != (kind.operands, kind.constants):
                yield f"step {step.kind} takes {kind.operands} operands, {kind.constants} constants"
            for name in step.operands:
                if name == "acc":
                    continue
                if name[0] == "%" and not 0 <= int(name[1:]) < place:
                    yield f"step {place} of {which} reads {name} before it is made"
                elif name[0] == "$" and (
                    launch.kernel != "pointwise" or int(name[1:]) >= len(launch.inputs)
                ):
                    yield f"{launch.kernel} has no input {name}"
                elif name[0] not in "%$" and not _broadcasts(program.tensor(name).shape, space):
                    shape = program.tensor(name).shape
                    yield f"operand {name!r} {list(shape)} does not broadcast to {space}"


def _inner_shape(program: Program, launch: Launch) -> Shape:
    """What inner steps see: the input's elements, or the depthwise part's result."""
    x = program.tensor(launch.inputs[0]).shape
    if launch.kernel != "depthwise_project":
        return x
    return (*program.tensor(launch.output).shape[:3], x[-1])


def _broadcasts(shape: Shape, space: Any) -> bool:
    if len(shape) > len(space):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(space)))


def read_by_element(tensors: Mapping[str, Tensor], launch: Launch) -> list[str]:
    """What a launch reads only for the same element of its output, by name.

    The output may take such a tensor's place: each element is read before it is written.
    """
    output = tensors[launch.output]
    epilogue = {name for step in launch.epilogue for name in step.operands}
    inner = {name for step in launch.inner for name in step.operands}
    roots = [tensors[n].alias_of or n for n in launch.inputs]
    found = [
        name
        for name in launch.operands
        if name in epilogue - inner
        and tensors[name].shape == output.shape
        and (tensors[name].alias_of or name) not in roots
    ]
    if launch.kernel == "pointwise":
        space: Any = launch.attributes["shape"]
        views: Any = launch.attributes["views"]
        whole = tuple(prod(space[a + 1 :]) for a in range(len(space)))
        for name, (offset, strides) in zip(launch.inputs, views, strict=True):
            same = all(n == 1 or s == w for n, s, w in zip(space, strides, whole, strict=True))
            if same and offset == 0 and roots.count(tensors[name].alias_of or name) == 1:
                found.append(name)
    return [n for n in found if tensors[n].dtype == output.dtype]
