"""Int8 and int16 in one file: how values cross, and whether the runtime runs the pair.

Problem: the quantiser joins an int8 operator to an int16 one by QUANTIZE int8 -> int16, which the
runtimes tried (LiteRT 2.1.0, tflite-runtime 2.14.0) refuse to load. They have

    int8 -> DEQUANTIZE -> float32 -> QUANTIZE -> int16,  the same value but for one rounding.

Each crossing is tried as it is, then through float; every pair of neighbours of which one computes
in int16 is tried as well. What does not run is refused, naming the operators. Left alone: float
islands, which run everywhere.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from edgefuse.errors import StageError

if TYPE_CHECKING:
    from edgefuse.tflite.read import Operator, TfliteModel
    from edgefuse.tflite.runtime import Runtime

_CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")


def bridged(data: bytes, source: TfliteModel, int16: Collection[int], runtime: Runtime) -> bytes:
    """The file with crossings that the runtime runs.

    Args:
        data: the quantised file; tensors of ``source``, the float file, have their indices.
        int16: operators of ``source`` that were to compute in int16.

    Raises:
        StageError: an operator has no int16 kernel, or the runtime does not run a pair.
    """
    from edgefuse.quant.writing.probe import refusals
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import parse_model

    model = parse_model(data)
    _require_int16(model, source, int16)
    edit = Edit(data)
    crossings = [op.index for op in model.operators if _crosses(model, op)]
    chains = [chain for index in crossings for chain in _around(model, index)]
    failed = {
        index
        for chain, reason in zip(chains, refusals(model, edit, chains, runtime))
        if reason
        for index in chain
        if index in crossings
    }
    if failed:
        for index in sorted(failed, reverse=True):
            before, behind = model.operators[index].inputs[0], model.operators[index].outputs[0]
            between = edit.like(before, "_between", "float32")
            edit.graph.operators[index : index + 1] = [
                edit.operator("DEQUANTIZE", [before], [between]),
                edit.operator("QUANTIZE", [between], [behind]),
            ]
        data = edit.packed()
        model, edit = parse_model(data), Edit(data)
    chains = list(_pairs(model))
    for chain, reason in zip(chains, refusals(model, edit, chains, runtime)):
        if reason:
            ends = [model.operators[i] for i in (chain[0], chain[-1])]
            names = " before ".join(dict.fromkeys(_told(model, op) for op in ends))
            raise StageError(
                f"the runtime does not run {names}: {reason}",
                hint="keep the operator float instead (quantize.keep_float): float islands run "
                "everywhere",
            )
    return data


def _require_int16(model: TfliteModel, source: TfliteModel, int16: Collection[int]) -> None:
    for index in sorted(int16):
        operator = source.operators[index]
        found = model.tensors[operator.outputs[0]].dtype
        if found != "int16":
            raise StageError(
                f"{operator.label} cannot have int16 activations: it came out as {found}",
                hint="keep it float instead (quantize.keep_float)",
            )


def _crosses(model: TfliteModel, operator: Operator) -> bool:
    ends = model.tensors[operator.inputs[0]].dtype, model.tensors[operator.outputs[0]].dtype
    return operator.code == "QUANTIZE" and ends in (("int8", "int16"), ("int16", "int8"))


def _around(model: TfliteModel, index: int) -> list[tuple[int, ...]]:
    """A conversion with the operator before it and each operator behind it."""
    operator = model.operators[index]
    before = [op.index for op in model.operators if operator.inputs[0] in op.outputs]
    readers = [op.index for op in model.operators if operator.outputs[0] in op.inputs]
    return [(*before, index, reader) for reader in readers] or [(*before, index)]


def _pairs(model: TfliteModel) -> list[tuple[int, ...]]:
    """Every two neighbours of which one computes in int16, with the conversions between them."""
    makers = {i: op for op in model.operators for i in op.outputs}
    found: dict[tuple[int, ...], None] = {}
    for operator in model.operators:
        if operator.code in _CONVERSIONS:
            continue
        for index in operator.inputs:
            chain = [operator.index]
            while (maker := makers.get(index)) is not None:
                chain.insert(0, maker.index)
                if maker.code not in _CONVERSIONS:
                    break
                index = maker.inputs[0]
            ends = [model.operators[i] for i in (chain[0], chain[-1])]
            if any(_is_int16(model, op) for op in ends):
                found[tuple(chain)] = None
    return list(found)


def _is_int16(model: TfliteModel, operator: Operator) -> bool:
    return operator.code not in _CONVERSIONS and any(
        t.dtype == "int16" for t in model.activations_of(operator)
    )


def _told(model: TfliteModel, operator: Operator) -> str:
    """``CONV_2D#3 (int16)``."""
    types = dict.fromkeys(t.dtype for t in model.activations_of(operator))
    return f"{operator.label} ({', '.join(types)})"
