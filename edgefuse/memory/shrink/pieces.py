"""Operators that cut a picture into pieces and join pieces to a picture, in an unpacked file.

Scope: STRIDED_SLICE and CONCATENATION of activations of rank 4. Left alone: their place among the
operators, which is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit

# The first axis as it comes: a file with an open batch may be resized.
ALL_SAMPLES = 1
# Since when they know the type; before, the first version.
_SLICE_VERSION = {"int8": 2, "int16": 4}
_JOIN_VERSION = {"int8": 2, "int16": 3}


def piece(edit: Edit, like: int, suffix: str, extent: tuple[int, int]) -> int:
    """A new tensor of ``extent`` rows and columns, otherwise like another; its index."""
    index = edit.twin(like, suffix)
    tensor = edit.graph.tensors[index]
    outer = [int(n) for n in tensor.shape]
    tensor.shape, tensor.shapeSignature = [outer[0], *extent, outer[3]], None
    return index


def sliced(
    edit: Edit,
    source: int,
    result: int,
    rows: tuple[int, int],
    columns: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
) -> Any:
    """The operator that reads these rows and columns, each from the first to before the last, of
    all samples, however many an interpreter is given."""
    outer = [int(n) for n in edit.graph.tensors[source].shape]
    numbers = (
        [0, rows[0], columns[0], 0],
        [outer[0], rows[1], columns[1], outer[3]],
        [1, *strides, 1],
    )
    given = [source, *(edit.numbers(value) for value in numbers)]
    made = edit.operator("STRIDED_SLICE", given, [result])
    made.builtinOptionsType = edit.schema.BuiltinOptions.StridedSliceOptions
    made.builtinOptions = edit.schema.StridedSliceOptionsT()
    made.builtinOptions.beginMask = made.builtinOptions.endMask = ALL_SAMPLES
    _require_version(edit, made, _SLICE_VERSION.get(edit.dtype(source), 1))
    return made


def joined(edit: Edit, parts: Sequence[int], result: int, axis: int) -> Any:
    """The operator that joins pieces along rows (1) or columns (2)."""
    made = edit.operator("CONCATENATION", parts, [result])
    made.builtinOptionsType = edit.schema.BuiltinOptions.ConcatenationOptions
    made.builtinOptions = edit.schema.ConcatenationOptionsT()
    made.builtinOptions.axis = axis
    _require_version(edit, made, _JOIN_VERSION.get(edit.dtype(result), 1))
    return made


def _require_version(edit: Edit, operator: Any, version: int) -> None:
    entry = edit.model.operatorCodes[operator.opcodeIndex]
    entry.version = max(entry.version, version)
