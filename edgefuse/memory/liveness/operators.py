"""Whether the operators of a .tflite file have what is read of them here.

Problem: a file that no converter wrote may hold a convolution without a kernel, or an operator that
reads what a later one makes. No runtime runs it, and no plan of its memory means anything.

Scope: numbers of inputs and outputs, ranks, the order. Left alone: types, whether shapes fit each
other, which a runtime checks when it opens the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.errors import StageError

if TYPE_CHECKING:
    from edgefuse.tflite.read import Operator, TfliteModel

# Ranks of the first inputs, which have to be there; None: any rank.
_WINDOW = (4,)
_CONVOLUTION = (4, 4)
_TWO: tuple[int | None, ...] = (None, None)
_FIRST: dict[str, tuple[int | None, ...]] = {
    "CONV_2D": _CONVOLUTION,
    "DEPTHWISE_CONV_2D": _CONVOLUTION,
    "TRANSPOSE_CONV": (None, 4, 4),
    "FULLY_CONNECTED": (None, 2),
    "AVERAGE_POOL_2D": _WINDOW,
    "MAX_POOL_2D": _WINDOW,
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), _TWO),
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), _TWO),
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST", "CONCATENATION"), (None,)),
}


def check_operators(model: TfliteModel) -> None:
    """Refuse a file whose operators cannot run.

    Raises:
        StageError: an operator lacks an input or its output, an input has another rank, or what an
            operator reads is made by nothing before it.
    """
    made = {*model.inputs}
    for operator in model.operators:
        if operator.code in _FIRST and (problem := _problem(model, operator)):
            raise StageError(
                f"{operator.label} {problem}: no runtime runs it",
                hint="convert the model again",
                where=model.where,
            )
        for index in operator.inputs:
            if index < 0 or index in made:
                continue
            tensor = model.tensors[index]
            if not tensor.is_constant and not tensor.is_variable:
                raise StageError(
                    f"{operator.label} reads {tensor.name!r}, which nothing before it makes",
                    hint="a .tflite file lists its operators in the order they run: convert again",
                    where=model.where,
                )
        made.update(operator.outputs)


def _problem(model: TfliteModel, operator: Operator) -> str:
    ranks = _FIRST[operator.code]
    if len(operator.outputs) != 1 or operator.outputs[0] < 0:
        return f"has {len(operator.outputs)} outputs, not one"
    for place, rank in enumerate(ranks):
        if place >= len(operator.inputs) or operator.inputs[place] < 0:
            return f"has no input {place}"
        shape = model.tensors[operator.inputs[place]].shape
        if rank is not None and len(shape) != rank:
            return f"has an input {place} of shape {list(shape)}, not of rank {rank}"
    return ""
