"""Write a tiled segment into an unpacked .tflite file."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from edgefuse.memory.shrink.pieces import ALL_SAMPLES
from edgefuse.memory.shrink.tile_draft import CODES, Draft, Planned, piece_name
from edgefuse.memory.shrink.windowed import is_constant
from edgefuse.memory.shrink.windows import PADDINGS

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit

_OPTIONS = {
    "STRIDED_SLICE": "StridedSliceOptions",
    "PAD": "PadOptions",
    "CONCATENATION": "ConcatenationOptions",
}
_INTEGER_VERSION = 2  # Of all three, since they know int8.


def write(edit: Edit, made: Draft) -> None:
    """Put the draft in its segment's place; tensors that nothing reads any more go."""
    tensors = edit.graph.tensors
    for piece in made.pieces:
        origin = tensors[piece.origin]
        tensor = copy.copy(origin)
        tensor.name = piece_name(origin.name.decode("utf-8", "replace"), piece).encode()
        tensor.shape = [1, *piece.extent, int(origin.shape[3])]
        tensor.shapeSignature, tensor.buffer = None, 0
        tensors.append(tensor)
    numbers = _Numbers(edit)
    held = edit.graph.operators
    inner = [_operator(edit, held, planned, numbers) for planned in made.operators]
    segment = made.segment
    edit.graph.operators = [*held[: segment.begin], *inner, *held[segment.end :]]
    edit.drop_unread()


class _Numbers:
    """Constants of int32, each held once."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._known: dict[tuple[Any, ...], int] = {}

    def constant(self, values: Any) -> int:
        import numpy as np

        value = np.array(values, np.int32)
        key = (value.shape, value.tobytes())
        if key not in self._known:
            self._known[key] = self._edit.numbers(value)
        return self._known[key]


def _operator(edit: Edit, held: list[Any], planned: Planned, numbers: _Numbers) -> Any:
    if planned.kind == "same":
        operator = copy.copy(held[planned.place])
        moving = iter(planned.inputs)
        operator.inputs = [
            int(i) if i < 0 or is_constant(edit, int(i)) else next(moving) for i in operator.inputs
        ]
        operator.outputs = [planned.output]
        if planned.padding:
            operator.builtinOptions = copy.copy(operator.builtinOptions)
            operator.builtinOptions.padding = PADDINGS.index(planned.padding)
        return operator
    code = CODES[planned.kind]
    rows, columns = planned.numbers
    inputs = list(planned.inputs)
    if planned.kind == "slice":
        channels = int(edit.graph.tensors[planned.output].shape[3])
        inputs.append(numbers.constant([0, rows[0], columns[0], 0]))
        inputs.append(numbers.constant([1, rows[1], columns[1], channels]))
        inputs.append(numbers.constant([1, 1, 1, 1]))
    elif planned.kind == "pad":
        inputs.append(numbers.constant([(0, 0), rows, columns, (0, 0)]))
    operator = edit.operator(code, inputs, [planned.output])
    operator.builtinOptionsType = getattr(edit.schema.BuiltinOptions, _OPTIONS[code])
    operator.builtinOptions = getattr(edit.schema, f"{_OPTIONS[code]}T")()
    if planned.kind == "join":
        operator.builtinOptions.axis = rows[0]
    elif planned.kind == "slice":
        operator.builtinOptions.beginMask = operator.builtinOptions.endMask = ALL_SAMPLES
    if edit.dtype(planned.output) == "int8":
        entry = edit.model.operatorCodes[operator.opcodeIndex]
        entry.version = max(entry.version, _INTEGER_VERSION)
    return operator
