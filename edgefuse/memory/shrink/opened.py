"""A .tflite file unpacked for a rewrite, once all that rewrites read of its operators is there.

Problem: options of an operator may be missing, or a window move by nothing; a rewrite would fail in
the middle. Scope: windowed operators, CONCATENATION, PAD and PADV2. Left alone: what
:mod:`edgefuse.memory.liveness.operators` checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError
from edgefuse.memory.liveness.operators import check_operators
from edgefuse.memory.shrink.windows import WINDOWED

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import TfliteModel

_PADDING = {"PAD": 2, "PADV2": 3}  # Inputs.
_POSITIVE = ("strideH", "strideW", "dilationHFactor", "dilationWFactor")
_POSITIVE_OF_POOLS = ("filterHeight", "filterWidth")


def opened(data: bytes) -> tuple[TfliteModel, Edit]:
    """The file as data, and to be changed.

    Raises:
        SourceError: the file is damaged.
        StageError: it has several subgraphs, or an operator that no runtime runs.
    """
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import parse_model

    model, edit = parse_model(data), Edit(data)
    check_operators(model)
    for operator, read in zip(edit.graph.operators, model.operators, strict=True):
        problem = ""
        if read.code in WINDOWED or read.code == "CONCATENATION":
            problem = _problem(operator.builtinOptions, read.code)
        elif read.code in _PADDING and not (
            len(read.inputs) >= _PADDING[read.code] and min(read.inputs[:2]) >= 0 and read.outputs
        ):
            problem = "lacks an input or its output"
        if problem:
            raise StageError(
                f"{read.label} {problem}: no runtime runs it",
                hint="convert the model again",
                where=model.where,
            )
    return model, edit


def _problem(options: Any, code: str) -> str:
    pool = code in ("AVERAGE_POOL_2D", "MAX_POOL_2D")
    needed = "axis" if code == "CONCATENATION" else "filterHeight" if pool else "dilationHFactor"
    if not hasattr(options, needed):
        return "has no options"
    for name in (*_POSITIVE, *_POSITIVE_OF_POOLS):
        value = getattr(options, name, 1)
        if value < 1:
            return f"has {name} {value}"
    return ""
