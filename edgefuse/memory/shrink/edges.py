"""Stride-2 depthwise convolutions whose far edge reaches past the picture: the edge computed apart.

Problem: SAME pads a picture of even sides at the far side alone. The built-in kernels for 3 x 3 on
aarch64 know no padding, or one on all sides; for one row and one column too many the whole layer
runs in the general kernel, two to three times as slow (tests/benchmarks/shrink.md).

Transformation, for y of m x n places made from x of 2m x 2n:

    y[:m-1, :n-1] = VALID(x)               reads only what lies inside, and gives all but the edge
    y[:, n-1]     = SAME(x[:, 2n-2:])      the last column
    y[m-1, :]     = SAME(x[2m-2:, :])      the last row

joined along columns, then along rows. Every place is the same sum as before, by the same kernel and
bias: in int8 bit by bit the same. The strips are computed before the inside: the three are together
as large as y, so that the arena stays as it is, but for rounding each of them up.

Scope: DEPTHWISE_CONV_2D in int8, 3 x 3 with stride 2, one output a channel, channels in eights,
even rows and columns: what the faster kernel takes. Left alone: everything else; results of less
than 4,096 values, where the seven operators more cost what is saved (LiteRT 2.1 loses at 1,568 and
gains at 3,200); what would raise the arena.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from edgefuse.memory.shrink.judge import Runtime, judged
from edgefuse.memory.shrink.opened import opened
from edgefuse.memory.shrink.pieces import joined, piece, sliced
from edgefuse.memory.shrink.windowed import is_dilated, kernel_of
from edgefuse.memory.shrink.windows import PADDINGS

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit

LEAST_VALUES = 4096
_CHANNELS = 8
_PIECES = 3  # Of a result, alive at once.
_ALIGNMENT: dict[Runtime, int] = {"tflite_micro": 16, "litert": 64}


@dataclass(frozen=True)
class Apart:
    """What was done, by labels in the file as it was.

    Attributes:
        left: depthwise convolutions under SAME with stride 2 that stay, with the reason.
    """

    apart: tuple[str, ...]
    left: tuple[tuple[str, str], ...]


def edges_apart(
    data: bytes, runtime: Runtime = "tflite_micro", arena_bytes: int | None = None
) -> tuple[bytes, Apart]:
    """The same model with the far edges of such layers computed apart.

    The bytes come back unchanged when there are none.

    Args:
        arena_bytes: what the arena must not exceed even by rounding.

    Raises:
        SourceError: the file is damaged.
        StageError: it has several subgraphs, an operator that no runtime runs, or its memory cannot
            be planned.
    """
    from edgefuse.tflite.read import parse_model

    model, edit = opened(data)
    places = [k for k, operator in enumerate(edit.graph.operators) if _padded(edit, operator)]
    if not places:
        return data, Apart((), ())
    most = judged(model, runtime).arena_bytes + _PIECES * (_ALIGNMENT[runtime] - 1)
    most = most if arena_bytes is None else min(most, arena_bytes)
    apart: list[str] = []
    left: list[tuple[str, str]] = []
    for place in reversed(places):  # The places before it stay.
        name = model.operators[place].label
        _, edit = opened(data)
        reason = _refused(edit, edit.graph.operators[place])
        if not reason:
            _take_apart(edit, place)
            made = edit.packed()
            if judged(parse_model(made), runtime).arena_bytes > most:
                reason = "the arena grows"
        if reason:
            left.insert(0, (name, reason))
        else:
            apart.insert(0, name)
            data = made
    return data, Apart(tuple(apart), tuple(left))


def _padded(edit: Edit, operator: Any) -> bool:
    """Whether it strides over a picture under SAME."""
    options = operator.builtinOptions
    return (
        edit.code(operator) == "DEPTHWISE_CONV_2D"
        and PADDINGS[options.padding] == "SAME"
        and max(options.strideH, options.strideW) == 2
    )


def _refused(edit: Edit, operator: Any) -> str:
    """Why an operator stays as it is, else an empty string."""
    source, result = int(operator.inputs[0]), int(operator.outputs[0])
    shapes = [[int(n) for n in edit.graph.tensors[index].shape] for index in (source, result)]
    options = operator.builtinOptions
    if {edit.dtype(source), edit.dtype(result)} != {"int8"}:
        return f"it computes in {edit.dtype(source)}"
    if kernel_of(edit, operator) != (3, 3) or is_dilated(edit, operator):
        return "its kernel is not 3 x 3"
    if (options.strideH, options.strideW) != (2, 2):
        return "its strides differ"
    if shapes[0][3] != shapes[1][3] or shapes[0][3] % _CHANNELS:
        return f"not one output a channel, or channels not in {_CHANNELS}s"
    if any(n % 2 for n in shapes[0][1:3]):
        return "a side of its input is odd: SAME pads it on both sides"
    if min(shapes[0][1:3]) < 4:
        return "all of it is edge"
    if prod(shapes[1]) < LEAST_VALUES:
        return f"its result has less than {LEAST_VALUES} values"
    return ""


def _take_apart(edit: Edit, place: int) -> None:
    held = edit.graph.operators[place]
    source, result = int(held.inputs[0]), int(held.outputs[0])
    rows, columns = (int(n) for n in edit.graph.tensors[source].shape[1:3])
    m, n = rows // 2, columns // 2
    last_columns = piece(edit, source, "_last_columns", (rows, 2))
    last_rows = piece(edit, source, "_last_rows", (2, columns))
    column = piece(edit, result, "_last_column", (m, 1))
    above = piece(edit, result, "_last_column_above", (m - 1, 1))
    row = piece(edit, result, "_last_row", (1, n))
    inside = piece(edit, result, "_inside", (m - 1, n - 1))
    wide = piece(edit, result, "_above", (m - 1, n))
    edit.graph.operators[place : place + 1] = [
        sliced(edit, source, last_columns, (0, rows), (columns - 2, columns)),
        _convolution(held, last_columns, column, "SAME"),
        sliced(edit, column, above, (0, m - 1), (0, 1)),
        sliced(edit, source, last_rows, (rows - 2, rows), (0, columns)),
        _convolution(held, last_rows, row, "SAME"),
        _convolution(held, source, inside, "VALID"),
        joined(edit, [inside, above], wide, 2),
        joined(edit, [wide, row], result, 1),
    ]


def _convolution(held: Any, source: int, result: int, padding: str) -> Any:
    """The same convolution, with the same constants, of a piece."""
    made = copy.copy(held)
    made.inputs = [source, *(int(i) for i in held.inputs[1:])]
    made.outputs = [result]
    made.builtinOptions = copy.copy(held.builtinOptions)
    made.builtinOptions.padding = PADDINGS.index(padding)
    return made
