"""The fusion contract: every fused ONNX group is one int8 TFLite operator.

Problem: a converter may drop an activation, split a fused group, leave weights per-tensor or an
operator float, and still write a file that runs. Names do not survive conversion, weights do: each
group is found in the float file *by the value* of its weights, and in the int8 file at the same
place of the operator order (QUANTIZE and DEQUANTIZE aside), where

    |weight_float - scale[c] * (weight_int8 - zero_point[c])| <= steps * scale[c]

must hold for every channel c (steps = 1/2 for plain rounding). Groups with identical weights are
told apart by operator order. A group with a residual addition is two operators in TFLite, the
layer and the ADD that reads its result; the activation belongs to the ADD where the group has it
behind the addition, to the layer where it has it before.

Scope: Conv, ConvTranspose, Gemm and MatMul with a constant weight. Grouped convolutions that a
converter splits into several operators are reported as not found. ``check_int8``, which needs no
float file, is in :mod:`edgefuse.tflite.inspect`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edgefuse.tflite.held_types import (
    Types,
    judge_activations,
    judge_types,
    real_weight,
    worst_steps,
)
from edgefuse.tflite.inspect import FUSABLE, WEIGHTED, Problem, check_int8, clips_like
from edgefuse.tflite.read import Operator, TfliteModel

__all__ = ["Group", "Row", "Problem", "check_contract", "check_int8"]

Array = np.ndarray[Any, Any]


class Group(Protocol):
    """What the contract reads of a fused group (:class:`edgefuse.graph.group.Group`).

    ``weight`` is as in ONNX: Conv [out, in/groups, k...]; ConvTranspose [in, out/groups, k...];
    Gemm and MatMul [n, k] or [k, n]. A group without one is never found.
    """

    @property
    def name(self) -> str: ...
    @property
    def ops(self) -> tuple[str, ...]: ...
    @property
    def module(self) -> str: ...
    @property
    def weight(self) -> Array | None: ...
    @property
    def activation(self) -> str: ...
    @property
    def residual(self) -> int: ...


@dataclass(frozen=True)
class Row:
    """What became of one group. ``reason`` is empty when there is nothing to say.

    ``float_operator`` and ``int8_operator`` are indices, -1 when not found; ``float_add`` and
    ``int8_add`` likewise, the ADD of a residual, -1 for groups without one. ``hop`` is the stage
    that lost it, ``convert`` or ``quantize``; empty when ``ok``.
    """

    group: str
    module: str
    float_operator: int
    float_code: str
    int8_operator: int
    int8_code: str
    activation_wanted: str
    activation_found: str
    ok: bool
    reason: str
    float_add: int = -1
    int8_add: int = -1
    hop: str = ""

    @property
    def operator(self) -> str:
        """The int8 operators in words: ``CONV_2D#3``, ``CONV_2D#3 + ADD#4``; empty if none."""
        add = f" + ADD#{self.int8_add}" if self.int8_add >= 0 else ""
        return f"{self.int8_code}#{self.int8_operator}{add}" if self.int8_code else ""


def check_contract(
    float_model: TfliteModel,
    int8_model: TfliteModel,
    groups: Iterable[Group],
    max_weight_steps: float = 0.5,
    types: Types = Types(),  # noqa: B008 (frozen)
    quantized_from: TfliteModel | None = None,
) -> tuple[Row, ...]:
    """One row a group, in the order given.

    Args:
        max_weight_steps: how far, in quantisation steps of its channel, a weight may be from the
            float one; more than 1/2 only after learned rounding.
        types: what the layers may hold; full-integer int8 unless given.
        quantized_from: the float file with the weights that were quantised, when these are others
            than ``float_model``'s; operator for operator the same.
    """
    listed = list(groups)
    found = _assign(float_model, listed)
    partner = _align(quantized_from or float_model, int8_model, max_weight_steps)
    return tuple(
        _row(group, float_op, float_model, int8_model, partner, types)
        for group, float_op in zip(listed, found)
    )


def _group_weights(group: Group) -> list[Array]:
    """Every way the group's weight may read as [out, height, width, in/groups]."""
    weight = group.weight
    if weight is None:
        return []
    if weight.ndim == 2:
        return [weight[:, None, None, :], weight.T[:, None, None, :]]
    if "ConvTranspose" in group.ops:
        weight = weight.swapaxes(0, 1)
    if weight.ndim == 3:
        rows = weight.transpose(0, 2, 1)
        return [rows[:, None, :, :], rows[:, :, None, :]]
    return [weight.transpose(0, 2, 3, 1)] if weight.ndim == 4 else []


def _assign(model: TfliteModel, groups: Sequence[Group]) -> list[Operator | None]:
    """The operator that holds each group's weights: exact before nearly equal, then by order."""
    held = [(op, w) for op in model.operators if (w := real_weight(model, op)) is not None]
    result: list[Operator | None] = [None] * len(groups)
    taken: set[int] = set()
    for tolerance in (0.0, 1e-6):
        for place, group in enumerate(groups):
            if result[place] is not None:
                continue
            for op, weight in held:
                if op.index not in taken and any(
                    _equal(weight, wanted, tolerance) for wanted in _group_weights(group)
                ):
                    result[place] = op
                    taken.add(op.index)
                    break
    return result


def _equal(found: Array, wanted: Array, relative: float) -> bool:
    if found.shape != wanted.shape or found.size == 0:
        return False
    if relative == 0.0:
        return np.array_equal(found, wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        worst = np.max(np.abs(found.astype(np.float64) - wanted))
    return bool(worst <= relative * np.max(np.abs(wanted)))


def _computing(model: TfliteModel) -> list[Operator]:
    return [op for op in model.operators if op.code not in ("QUANTIZE", "DEQUANTIZE")]


@dataclass(frozen=True)
class _Partner:
    operator: Operator | None
    reason: str = ""


def _align(float_model: TfliteModel, int8_model: TfliteModel, steps: float) -> dict[int, _Partner]:
    """The int8 operator of every weighted float operator, verified by value."""
    left, right = _computing(float_model), _computing(int8_model)
    same_order = [op.code for op in left] == [op.code for op in right]
    weighted = [op for op in right if WEIGHTED.get(op.code) is not None]
    partners: dict[int, _Partner] = {}
    taken: set[int] = set()
    for place, op in enumerate(left):
        wanted = real_weight(float_model, op)
        if wanted is None:
            continue
        if same_order:
            gap = worst_steps(int8_model, right[place], wanted)
            reason = "" if gap <= steps * 1.002 else _gap(right[place], gap, steps)
            partners[op.index] = _Partner(right[place], reason)
            continue
        for other in weighted:
            if other.index in taken or other.code != op.code:
                continue
            if worst_steps(int8_model, other, wanted) <= steps * 1.002:
                partners[op.index] = _Partner(other)
                taken.add(other.index)
                break
        else:
            partners[op.index] = _Partner(
                None, f"no int8 operator holds the weights of {op.label} within {steps:g} steps"
            )
    return partners


def _gap(op: Operator, gap: float, steps: float) -> str:
    if np.isinf(gap):
        return f"{op.label} in the int8 file holds no quantised weights of the same shape"
    return f"the int8 weights of {op.label} are up to {gap:.2f} steps off (limit {steps:g})"


def _row(
    group: Group,
    float_op: Operator | None,
    float_model: TfliteModel,
    int8_model: TfliteModel,
    partners: dict[int, _Partner],
    types: Types,
) -> Row:
    if float_op is None:
        reason = "no operator of the float file holds these weights"
        return Row(
            group.name,
            group.module,
            -1,
            "",
            -1,
            "",
            group.activation,
            "",
            False,
            reason,
            hop="convert",
        )
    partner = partners[float_op.index]
    op = partner.operator
    faults = [partner.reason] if partner.reason else []
    notes: list[str] = []
    float_add = op_add = None
    float_carrier: Operator = float_op
    carrier: Operator | None = op
    if op is not None:
        wanted, first = group.activation, _activation_first(group)
        float_carrier, carrier = float_op, op
        if "MatMul" in group.ops:
            float_carrier, carrier = _biased(float_model, float_op), _biased(int8_model, op)
        if carrier is not op:
            notes.append(f"the bias of {op.label} is {carrier.label}, an operator of its own")
            _judge_activation("NONE", float_op, op, int8_model, faults, notes)
            touched = (*carrier.inputs, *carrier.outputs)
            judge_activations(carrier, touched, int8_model, types, faults)
        before = wanted if first or not _ends_in_add(group) else "NONE"
        _judge_activation(before, float_carrier, carrier, int8_model, faults, notes)
        if _ends_in_add(group):
            float_add, op_add = _adding(float_model, float_carrier), _adding(int8_model, carrier)
            if op_add is None:
                faults.append(f"no ADD reads the result of {carrier.label} in the int8 file")
            else:
                after = "NONE" if first else wanted
                _judge_activation(after, float_add, op_add, int8_model, faults, notes)
                touched = (*op_add.inputs, *op_add.outputs)
                judge_activations(op_add, touched, int8_model, types, faults)
            if not first:
                float_carrier, carrier = float_add or float_carrier, op_add
        judge_types(op, int8_model, types, faults, notes)
    return Row(
        group=group.name,
        module=group.module,
        float_operator=float_op.index,
        float_code=float_op.code,
        int8_operator=op.index if op else -1,
        int8_code=op.code if op else "",
        activation_wanted=group.activation,
        activation_found=carrier.activation if carrier else "",
        ok=not faults,
        reason="; ".join(dict.fromkeys(faults + notes)),
        float_add=float_add.index if float_add else -1,
        int8_add=op_add.index if op_add else -1,
        hop=_hop(group.activation, float_carrier) if faults else "",
    )


def _activation_first(group: Group) -> bool:
    """Whether the activation comes before the addition of the residual: act(conv(x)) + r."""
    return group.residual == len(group.ops) - 1 and group.activation != "NONE"


def _ends_in_add(group: Group) -> bool:
    """Whether an ADD must read the layer's result: where an activation that TFLite cannot fuse
    comes first, operators of its own stand between them."""
    between = _activation_first(group) and group.activation not in FUSABLE
    return group.residual >= 0 and not between


def _biased(model: TfliteModel, op: Operator) -> Operator:
    """The ADD of a constant behind a FULLY_CONNECTED or BATCH_MATMUL without a bias, or ``op``."""
    bare = op.code == "BATCH_MATMUL" or (
        op.code == "FULLY_CONNECTED" and (len(op.inputs) < 3 or op.inputs[2] < 0)
    )
    add = _adding(model, op) if bare else None
    constant = add is not None and any(model.tensors[k].is_constant for k in add.inputs)
    return add if add is not None and constant else op


def _hop(wanted: str, carrier: Operator) -> str:
    """The stage that lost a group whose weights the float file still held."""
    return "convert" if wanted in FUSABLE and carrier.activation != wanted else "quantize"


def _adding(model: TfliteModel, op: Operator) -> Operator | None:
    """The ADD that reads the operator's result, reshaped or not."""
    readers = [other for other in model.operators if op.outputs[0] in other.inputs]
    for other in readers:
        if other.code == "ADD":
            return other
    return _adding(model, readers[0]) if [r.code for r in readers] == ["RESHAPE"] else None


def _judge_activation(
    wanted: str,
    float_op: Operator | None,
    op: Operator,
    model: TfliteModel,
    faults: list[str],
    notes: list[str],
) -> None:
    """Compare the activation that the group wants with what ``op`` of the int8 file has.

    ``float_op`` is its counterpart in the float file; None when there is none.
    """
    before, found = float_op.activation if float_op else "NONE", op.activation
    if wanted not in FUSABLE:
        notes.append(f"TFLite cannot fuse {wanted}: it is an operator of its own")
        wanted = before
    if found == wanted:
        return
    if wanted == "NONE":
        if found == before:
            notes.append(f"the converter fused {found}, which the ONNX group does not hold")
        else:
            faults.append(f"{found} appeared in the int8 file only")
    elif found == "NONE" and clips_like(model.tensors[op.outputs[0]], wanted):
        notes.append(f"{wanted} dropped: the output's range clips alike")
    elif found == "NONE" and before == wanted:
        faults.append(f"{wanted} was lost between the float and the int8 file")
    else:
        faults.append(f"{wanted} is not fused into {op.label} (found {found})")
