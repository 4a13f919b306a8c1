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
# Types of kernels whose elements have bytes of their own.
_KERNELS = frozenset({"int8", "uint8", "int16", "float16", "float32", "float64"})
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
    edit: Edit, operator: Any, wanted: tuple[Axis, Axis], *, turned: bool = False
) -> tuple[str, Placed, Placed] | str:
    """How the windows are written with SAME or VALID; else why they cannot be."""
    found = best_placed(wanted, PADDINGS[operator.builtinOptions.padding])
    if found is None:
        return "no kernel with zero taps lies so under SAME or VALID"
    grown = found[1].kernel > wanted[0].kernel or found[2].kernel > wanted[1].kernel
    if edit.code(operator) not in CONVOLUTIONS:
        return "a pooling window cannot grow" if grown else found
    if grown and is_dilated(edit, operator):
        return "a dilated kernel is not grown"
    fixed = _fixed_kernel(edit, operator) if grown or turned else ""
    return fixed or found


def _fixed_kernel(edit: Edit, operator: Any) -> str:
    """Why a kernel can be neither grown nor turned, else an empty string."""
    index = int(operator.inputs[1])
    if not is_constant(edit, index):
        return "its kernel is no constant"
    tensor = edit.graph.tensors[index]
    if tensor.sparsity is not None or edit.dtype(index) not in _KERNELS:
        return f"its kernel is stored in a way that is not edited here ({edit.dtype(index)})"
    if len(set(_parameters(tensor.quantization)[1])) > 1:
        return "its kernel has several zero points"
    return ""


def place(
    edit: Edit, operator: Any, fit: tuple[str, Placed, Placed], *, turned: bool = False
) -> None:
    """Write the fit into the operator, its kernel grown and, on demand, turned by 180 degrees."""
    import numpy as np

    operator.builtinOptions = copy.copy(operator.builtinOptions)
    operator.builtinOptions.padding = PADDINGS.index(fit[0])
    if edit.code(operator) not in CONVOLUTIONS or _fixed_kernel(edit, operator):
        return
    index = int(operator.inputs[1])
    old = constant(edit, index)
    value = old[:, ::-1, ::-1, :] if turned else old
    if not is_dilated(edit, operator):
        zeros = _parameters(edit.graph.tensors[index].quantization)[1]
        value = np.pad(
            value,
            [(0, 0)]
            + [(it.zeros, it.kernel - it.zeros - n) for it, n in zip(fit[1:], old.shape[1:3])]
            + [(0, 0)],
            constant_values=zeros[0] if zeros else 0,
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
    operator.inputs = [int(i) for i in operator.inputs]
    operator.inputs[slot] = edit.twin(index, f"_{len(edit.graph.tensors)}")
    edit.fill(operator.inputs[slot], value)


def pads_of(edit: Edit, operator: Any) -> Pads | str:
    """What a PAD or PADV2 adds to each axis, or why it does not pad rows and columns alone."""
    if not is_constant(edit, int(operator.inputs[1])):
        return "its paddings are computed at run time"
    table = constant(edit, int(operator.inputs[1]))
    if len(table) != 4 or table[[0, 3]].any():
        return "it pads other axes than rows and columns"
    return {axis: (int(table[axis][0]), int(table[axis][1])) for axis in (1, 2)}


def neutral_for(edit: Edit, pad: Any, operator: Any) -> str:
    """Why what a PAD pads with changes what ``operator`` makes of it, else an empty string: a
    convolution has to meet zeros, a maximum the lowest value there is."""
    source, result = int(pad.inputs[0]), int(pad.outputs[0])
    if [int(i) for i in operator.inputs].count(result) != 1 or int(operator.inputs[0]) != result:
        return f"{edit.code(operator)} reads it as a kernel"
    if not _same_scale(edit, source, result):
        return "its input and output have different scales"
    zeros = _parameters(edit.graph.tensors[result].quantization)[1]
    value = float(zeros[0] if zeros else 0)
    if edit.code(pad) == "PADV2" and int(pad.inputs[2]) >= 0:
        if not is_constant(edit, int(pad.inputs[2])):
            return "what it pads with is computed at run time"
        given = constant(edit, int(pad.inputs[2]))
        if given.size != 1:
            return "it pads with several values"
        value = float(given.reshape(-1)[0])
    if edit.code(operator) == "MAX_POOL_2D":
        if value != _lowest(edit.dtype(result)):
            return "MAX_POOL_2D reads it, and it does not pad with the lowest value"
    elif value != (zeros[0] if zeros else 0):
        return "it pads with something else than zero"
    return ""


def _same_scale(edit: Edit, one: int, other: int) -> bool:
    held, made = (_parameters(edit.graph.tensors[i].quantization) for i in (one, other))
    return held[0] == made[0] and (held[1] or [0]) == (made[1] or [0])


def _lowest(dtype: str) -> float:
    import numpy as np

    return float("-inf") if dtype.startswith(("float", "bfloat")) else float(np.iinfo(dtype).min)


def absorbable_pads(edit: Edit) -> tuple[list[tuple[str, Any]], list[tuple[str, str]]]:
    """PADs whose readers can do without what they pad with, with their labels; the others with the
    reason."""
    fit: list[tuple[str, Any]] = []
    left: list[tuple[str, str]] = []
    for operator in edit.graph.operators:
        if edit.code(operator) not in ("PAD", "PADV2"):
            continue
        name, pads = label(edit, operator), pads_of(edit, operator)
        result = int(operator.outputs[0])
        readers = [o for o in edit.graph.operators if result in {int(i) for i in o.inputs}]
        others = sorted({edit.code(o) for o in readers} - {*CONVOLUTIONS, "MAX_POOL_2D"})
        if isinstance(pads, str):
            reason = pads
        elif result in {int(i) for i in edit.graph.outputs}:
            reason = "its result is an output of the model"
        elif others or not readers:
            reason = f"{', '.join(others) or 'nothing'} reads it"
        else:
            reasons = [neutral_for(edit, operator, reader) for reader in readers]
            reason = next((reason for reason in reasons if reason), "")
        if reason:
            left.append((name, reason))
        else:
            fit.append((name, operator))
    return fit, left


def _parameters(quantization: Any) -> tuple[list[float], list[int]]:
    if quantization is None or quantization.scale is None:
        return [], []
    zeros = quantization.zeroPoint if quantization.zeroPoint is not None else []
    return [float(s) for s in quantization.scale], [int(z) for z in zeros]
