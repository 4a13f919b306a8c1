"""REVERSE_V2 at the inputs and outputs of a turned network, so that its pictures are upright.

Problem: runtimes turn an axis by one ``memcpy`` for each of its places. By pixels of three bytes
that is 1.5% of an int8 MobileNetV2; of the last axis they copy whole runs in reverse, 17 times as
fast (tests/benchmarks/shrink.md).

Transformation: a picture that only convolutions read is turned as one row of values,

    [N, H, W, C] -> [N, H W C]  reversed  -> [N, H, W, C]

which reverses its channels too; the convolutions' kernels take them in that order. Every other
picture is turned by rows, then by columns: older runtimes turn one axis at a time. So is every
picture where ``one_row`` is false: tflite-runtime 2.14 copies a row value by value, which is three
times as dear as by pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgefuse.memory.shrink.windowed import constant, is_constant, replace_constant

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit


def reverse_input(edit: Edit, index: int, *, one_row: bool = True) -> None:
    """Let the operators that read an input read it turned, as one row of values if that may be."""
    readers = [o for o in edit.graph.operators if index in {int(i) for i in o.inputs}]
    if not readers:
        return
    result = edit.twin(index, "_turned")
    for operator in readers:
        operator.inputs = [result if int(i) == index else int(i) for i in operator.inputs]
    if one_row and all(_takes_channels(edit, operator, result) for operator in readers):
        for operator in readers:
            kernel = constant(edit, int(operator.inputs[1]))
            if kernel.shape[3] > 1:
                replace_constant(edit, operator, 1, kernel[..., ::-1])
        edit.graph.operators[:0] = _as_one_row(edit, index, result)
    else:
        edit.graph.operators[:0] = _by_axes(edit, index, result, "_turned")


def reverse_output(edit: Edit, index: int) -> None:
    """Turn an output back."""
    inner = edit.twin(index, "_turned")
    for operator in edit.graph.operators:
        operator.inputs = [inner if int(i) == index else int(i) for i in operator.inputs]
        operator.outputs = [inner if int(i) == index else int(i) for i in operator.outputs]
    edit.graph.operators += _by_axes(edit, inner, index, "_back")


def _takes_channels(edit: Edit, operator: Any, index: int) -> bool:
    """Whether a kernel can take the channels of a tensor in another order."""
    kernel = int(operator.inputs[1]) if len(operator.inputs) > 1 else index
    return (
        edit.code(operator) == "CONV_2D"
        and [int(i) for i in operator.inputs].count(index) == 1
        and is_constant(edit, kernel)
        and int(edit.graph.tensors[kernel].shape[3]) == int(edit.graph.tensors[index].shape[3])
    )


def _as_one_row(edit: Edit, source: int, result: int) -> list[Any]:
    shape = [int(n) for n in edit.graph.tensors[source].shape]
    row, reversed_row = (edit.twin(source, suffix) for suffix in ("_row", "_row_turned"))
    for index in (row, reversed_row):
        edit.graph.tensors[index].shape = [shape[0], shape[1] * shape[2] * shape[3]]
        edit.graph.tensors[index].shapeSignature = None
    return [
        _reshape(edit, source, row),
        _reverse(edit, row, reversed_row, 1),
        _reshape(edit, reversed_row, result),
    ]


def _by_axes(edit: Edit, source: int, result: int, stem: str) -> list[Any]:
    middle = edit.twin(source, f"{stem}_rows")
    return [_reverse(edit, source, middle, 1), _reverse(edit, middle, result, 2)]


def _reverse(edit: Edit, source: int, result: int, axis: int) -> Any:
    operator = edit.operator("REVERSE_V2", [source, edit.numbers([axis])], [result])
    operator.builtinOptionsType = edit.schema.BuiltinOptions.ReverseV2Options
    operator.builtinOptions = edit.schema.ReverseV2OptionsT()
    return operator


def _reshape(edit: Edit, source: int, result: int) -> Any:
    shape = [-1, *(int(n) for n in edit.graph.tensors[result].shape[1:])]
    operator = edit.operator("RESHAPE", [source, edit.numbers(shape)], [result])
    operator.builtinOptionsType = edit.schema.BuiltinOptions.ReshapeOptions
    operator.builtinOptions = edit.schema.ReshapeOptionsT()
    operator.builtinOptions.newShape = shape
    return operator
