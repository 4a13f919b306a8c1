"""A windowed operator of an unpacked .tflite file: its windows, its kernel, and changing both.

Scope: CONV_2D, DEPTHWISE_CONV_2D and the two poolings, [N, H, W, C]. Left alone: dilated windows
that would have to grow; poolings that would have to grow.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from edgefuse.memory.shrink.windows import PADDINGS, WINDOWED, Axis, Placed, axes_of, best_placed

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.edit import Edit

Pads = dict[int, tuple[int, int]]
CONVOLUTIONS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D"})
# Each output place is made from the same place of the inputs.
PLACEWISE = frozenset(
    {
        *("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "PRELU"),
        *("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU", "ELU", "GELU"),
        *("LOGISTIC", "TANH", "HARD_SWISH", "QUANTIZE", "DEQUANTIZE", "CAST", "ABS", "NEG"),
        *("EXP", "SQRT", "RSQRT", "SQUARE", "SOFTMAX"),
    }
)


def is_windowed(edit: Edit, operator: Any) -> bool:
    return edit.code(operator) in WINDOWED


def label(edit: Edit, operator: Any) -> str:
    place = next(k for k, held in enumerate(edit.graph.operators) if held is operator)
    return f"{edit.code(operator)}#{place}"


def kernel_of(edit: Edit, operator: Any) -> tuple[int, int]:
    """Rows and columns that a window spans, gaps of dilation included."""
    options = operator.builtinOptions
    if edit.code(operator) not in CONVOLUTIONS:
        return int(options.filterHeight), int(options.filterWidth)
    shape = edit.graph.tensors[operator.inputs[1]].shape
    return (
        (int(shape[1]) - 1) * options.dilationHFactor + 1,
        (int(shape[2]) - 1) * options.dilationWFactor + 1,
    )


def is_dilated(edit: Edit, operator: Any) -> bool:
    options = operator.builtinOptions
    if edit.code(operator) not in CONVOLUTIONS:
        return False
    return bool(options.dilationHFactor > 1 or options.dilationWFactor > 1)


def axes(
    edit: Edit, operator: Any, source: int | None = None, pads: Pads | None = None
) -> tuple[Axis, Axis]:
    """Rows and columns of an operator; read through a PAD from ``source`` where that is given."""
    shapes = [
        tuple(int(n) for n in edit.graph.tensors[index].shape)
        for index in (operator.inputs[0] if source is None else source, operator.outputs[0])
    ]
    return axes_of(operator.builtinOptions, kernel_of(edit, operator), (shapes[0], shapes[1]), pads)


def fitted(
    edit: Edit, operator: Any, wanted: tuple[Axis, Axis]
) -> tuple[str, Placed, Placed] | str:
    """How the windows are written with SAME or VALID; else why they cannot be."""
    found = best_placed(wanted, PADDINGS[operator.builtinOptions.padding])
    if found is None:
        return "no kernel with zero taps lies so under SAME or VALID"
    grown = found[1].kernel > wanted[0].kernel or found[2].kernel > wanted[1].kernel
    if grown and edit.code(operator) not in CONVOLUTIONS:
        return "a pooling window cannot grow"
    if grown and is_dilated(edit, operator):
        return "a dilated kernel is not grown"
    return found


def place(
    edit: Edit, operator: Any, fit: tuple[str, Placed, Placed], *, turned: bool = False
) -> None:
    """Write the fit into the operator, its kernel grown and, on demand, turned by 180 degrees."""
    import numpy as np

    operator.builtinOptions = copy.copy(operator.builtinOptions)
    operator.builtinOptions.padding = PADDINGS.index(fit[0])
    if edit.code(operator) not in CONVOLUTIONS:
        return
    old = constant(edit, int(operator.inputs[1]))
    value = old[:, ::-1, ::-1, :] if turned else old
    if not is_dilated(edit, operator):
        value = np.pad(
            value,
            [(0, 0)]
            + [(it.zeros, it.kernel - it.zeros - n) for it, n in zip(fit[1:], old.shape[1:3])]
            + [(0, 0)],
        )
    if not np.array_equal(value, old):
        replace_constant(edit, operator, 1, value)


def constant(edit: Edit, index: int) -> np.ndarray[Any, Any]:
    """The value of a constant in its stored type."""
    import numpy as np

    tensor = edit.graph.tensors[index]
    data = edit.model.buffers[tensor.buffer].data
    flat = np.frombuffer(np.asarray(data, np.uint8).tobytes(), np.dtype(edit.dtype(index)))
    return flat.reshape([int(n) for n in tensor.shape])


def is_constant(edit: Edit, index: int) -> bool:
    data = edit.model.buffers[edit.graph.tensors[index].buffer].data
    return data is not None and len(data) > 0


def is_spread(edit: Edit, index: int) -> bool:
    """Whether a value that others are matched with differs along rows or columns."""
    shape = [1, 1, 1, *(int(n) for n in edit.graph.tensors[index].shape)]
    return shape[-2] != 1 or shape[-3] != 1


def replace_constant(edit: Edit, operator: Any, slot: int, value: np.ndarray[Any, Any]) -> None:
    """Another constant for one operator; others that read the old one keep it."""
    index = int(operator.inputs[slot])
    readers = sum([int(i) for i in held.inputs].count(index) for held in edit.graph.operators)
    if readers == 1:
        edit.release(index)
        edit.fill(index, value)
        return
    twin = copy.copy(edit.graph.tensors[index])
    twin.name = twin.name + b"_%d" % len(edit.graph.tensors)
    edit.graph.tensors.append(twin)
    operator.inputs = [int(i) for i in operator.inputs]
    operator.inputs[slot] = len(edit.graph.tensors) - 1
    edit.fill(operator.inputs[slot], value)


def pads_of(edit: Edit, operator: Any) -> Pads | str:
    """What a PAD or PADV2 adds to each axis, or why it is no padding of a convolution."""
    if edit.code(operator) not in ("PAD", "PADV2"):
        return "it is no PAD"
    source, result = int(operator.inputs[0]), int(operator.outputs[0])
    if not is_constant(edit, int(operator.inputs[1])):
        return "its paddings are computed at run time"
    table = constant(edit, int(operator.inputs[1]))
    if len(table) != 4 or table[[0, 3]].any():
        return "it pads other axes than rows and columns"
    held, made = (edit.graph.tensors[i].quantization for i in (source, result))
    if _parameters(held) != _parameters(made):
        return "its input and output have different scales"
    if edit.code(operator) == "PADV2":
        zeros = _parameters(made)[1]
        if not is_constant(edit, int(operator.inputs[2])):
            return "what it pads with is computed at run time"
        if int(operator.inputs[2]) >= 0:
            given = float(constant(edit, int(operator.inputs[2])).reshape(-1)[0])
            if given != (zeros[0] if zeros else 0):
                return "it pads with something else than zero"
    return {axis: (int(table[axis][0]), int(table[axis][1])) for axis in (1, 2)}


def pads_of_convolutions(edit: Edit) -> tuple[list[tuple[str, Any]], list[tuple[str, str]]]:
    """PADs in front of convolutions alone, with their labels; the others with the reason."""
    fit: list[tuple[str, Any]] = []
    left: list[tuple[str, str]] = []
    for operator in edit.graph.operators:
        if edit.code(operator) not in ("PAD", "PADV2"):
            continue
        name, pads = label(edit, operator), pads_of(edit, operator)
        result = int(operator.outputs[0])
        readers = [o for o in edit.graph.operators if result in {int(i) for i in o.inputs}]
        others = sorted({edit.code(o) for o in readers} - CONVOLUTIONS)
        if isinstance(pads, str):
            left.append((name, pads))
        elif result in {int(i) for i in edit.graph.outputs}:
            left.append((name, "its result is an output of the model"))
        elif others or not readers:
            left.append((name, f"{', '.join(others) or 'nothing'} reads it"))
        else:
            fit.append((name, operator))
    return fit, left


def _parameters(quantization: Any) -> tuple[list[float], list[int]]:
    if quantization is None or quantization.scale is None:
        return [], []
    zeros = quantization.zeroPoint if quantization.zeroPoint is not None else []
    return [float(s) for s in quantization.scale], [int(z) for z in zeros]
