"""Turn a .tflite network by 180 degrees: every picture inside it upside down, kernels with it.

Problem: where SAME does not lie as a padding asks for, it may lie so when the picture is read from
its end (see :mod:`edgefuse.memory.shrink.absorb_pad`).

Transformation: x'[i] = x[n - 1 - i] for rows and columns of every activation of rank 4.
Convolutions turn their kernels; what works on one place at a time stays; a mean over rows and
columns forgets the turn; PADs that stay swap their sides.

Left alone: graphs with anything else on a picture. :func:`turn` then says which operator, and the
edit must be thrown away.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgefuse.memory.shrink.pieces import piece, sliced
from edgefuse.memory.shrink.reverse import reverse_input, reverse_output
from edgefuse.memory.shrink.windowed import (
    PLACEWISE,
    axes,
    constant,
    fitted,
    is_constant,
    is_spread,
    is_windowed,
    label,
    pads_of,
    place,
    replace_constant,
)

if TYPE_CHECKING:
    from edgefuse.memory.shrink.windows import Axis
    from edgefuse.tflite.edit import Edit

_REDUCING = frozenset({"MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"})


@dataclass
class Turned:
    """``refused`` names what is in the way; empty when the turn was done."""

    refused: str = ""
    absorbed: set[int] = field(default_factory=set)
    absorbed_not: dict[int, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def turn(edit: Edit, pads: Sequence[Any], *, reverse: bool, one_row: bool = True) -> Turned:
    """Turn the graph; the PADs given (by ``id``) go where the convolutions can do without."""
    done = Turned()
    inner = {int(p.outputs[0]): p for p in pads}
    for pad in pads:
        if reason := _turned_fits(edit, pad):
            done.absorbed_not[id(pad)] = reason
            del inner[int(pad.outputs[0])]
        else:
            done.absorbed.add(id(pad))
    turned = {int(i) for i in edit.graph.inputs if _is_picture(edit, int(i))}
    for operator in list(edit.graph.operators):
        touched = [int(i) for i in operator.inputs if int(i) in turned]
        if not touched:
            continue
        reason = _turn_operator(edit, operator, turned, inner)
        if reason:
            done.refused = f"{label(edit, operator)} is in the way of a turn: {reason}"
            return done
    for pad in pads:
        if id(pad) in done.absorbed and int(pad.inputs[0]) not in turned:
            done.absorbed.discard(id(pad))
            done.absorbed_not[id(pad)] = "no picture of the inputs reaches it"
        if id(pad) in done.absorbed:
            edit.graph.operators = [o for o in edit.graph.operators if o is not pad]
    pictures = list(dict.fromkeys(int(i) for i in edit.graph.inputs if int(i) in turned))
    results = list(dict.fromkeys(int(i) for i in edit.graph.outputs if int(i) in turned))
    if reverse:
        for index in pictures:
            reverse_input(edit, index, one_row=one_row)
        for index in results:
            if index not in pictures:  # An input handed through is upright as it is.
                reverse_output(edit, index)
        return done
    done.inputs = tuple(edit.graph.tensors[i].name.decode() for i in pictures)
    done.outputs = tuple(edit.graph.tensors[i].name.decode() for i in results)
    return done


def _is_picture(edit: Edit, index: int) -> bool:
    shape = [int(n) for n in edit.graph.tensors[index].shape]
    return len(shape) == 4 and max(shape[1:3]) > 1


def _turned_fits(edit: Edit, pad: Any) -> str:
    """Why a reader of the PAD cannot pad for itself in the turned graph, else nothing."""
    pads, result = pads_of(edit, pad), int(pad.outputs[0])
    assert not isinstance(pads, str)
    for operator in edit.graph.operators:
        if result in {int(i) for i in operator.inputs}:
            tall, wide = axes(edit, operator, int(pad.inputs[0]), pads)
            fit = fitted(edit, operator, (tall.turned(), wide.turned()), turned=True)
            if isinstance(fit, str):
                return fit
    return ""


def _turn_operator(edit: Edit, operator: Any, turned: set[int], inner: dict[int, Any]) -> str:
    """Turn one operator that reads something turned; why it cannot be, else nothing."""
    code, source = edit.code(operator), int(operator.inputs[0])
    if len(operator.outputs) != 1:
        return f"it has {len(operator.outputs)} outputs"
    others = [int(i) for i in operator.inputs[1:] if i >= 0]
    result = int(operator.outputs[0])
    if is_windowed(edit, operator):
        pad = inner.get(source)
        pads = pads_of(edit, pad) if pad is not None else None
        assert not isinstance(pads, str)
        origin = int(pad.inputs[0]) if pad is not None else None
        tall, wide = axes(edit, operator, origin, pads)
        wanted = (tall.turned(), wide.turned())
        fit = fitted(edit, operator, wanted, turned=True)
        if isinstance(fit, str):
            return fit
        if origin is not None:
            operator.inputs = [origin, *(int(i) for i in operator.inputs[1:])]
        if not _picked(edit, operator, wanted):
            place(edit, operator, fit, turned=True)
    elif code in ("PAD", "PADV2"):
        pads = pads_of(edit, operator)
        if isinstance(pads, str):
            return pads
        if result not in inner:
            table = constant(edit, others[0]).copy()
            table[1:3] = table[1:3, ::-1]
            replace_constant(edit, operator, 1, table)
    elif code == "CONCATENATION":
        if operator.builtinOptions.axis not in (3, -1):
            return "it joins pictures along rows or columns"
        if any(int(i) not in turned and _is_picture(edit, int(i)) for i in operator.inputs):
            return "it joins a picture that is not turned"
    elif code in _REDUCING:
        held = constant(edit, others[0]).reshape(-1) if is_constant(edit, others[0]) else ()
        if not {1, 2} <= {int(a) % 4 for a in held}:
            return "it reduces other axes than rows and columns"
        return ""
    elif code in PLACEWISE:
        if any(i not in turned and is_spread(edit, i) for i in (source, *others)):
            return "it meets values along rows and columns that are not turned"
    else:
        return "it does not commute with one"
    if _is_picture(edit, result):
        turned.add(result)
    return ""


def _picked(edit: Edit, operator: Any, wanted: tuple[Axis, Axis]) -> bool:
    """Whether a convolution of 1 x 1 with a stride that would have to grow got what it reads picked
    by STRIDED_SLICE: the copy is a fraction of the picture, the grown kernel a multiple of the
    multiply-adds."""
    spare = [axis.before for axis in wanted]
    if any(a.kernel != 1 or a.before > 0 or a.after > 0 for a in wanted) or not any(spare):
        return False
    options = operator.builtinOptions = copy.copy(operator.builtinOptions)
    source = int(operator.inputs[0])
    tall, wide = wanted
    extent = (tall.output, wide.output)
    picked = piece(edit, source, f"_picked{len(edit.graph.tensors)}", extent)
    rows, columns = ((-a.before, a.stride * (a.output - 1) + 1 - a.before) for a in wanted)
    slicing = sliced(edit, source, picked, rows, columns, (tall.stride, wide.stride))
    operator.inputs = [picked, *(int(i) for i in operator.inputs[1:])]
    options.strideH = options.strideW = 1
    place_of = next(k for k, held in enumerate(edit.graph.operators) if held is operator)
    edit.graph.operators.insert(place_of, slicing)
    return True
