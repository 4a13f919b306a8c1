"""Which bytes of a .tflite file are alive when: what an arena has to hold.

Problem: the arena is decided by the tensors that are alive at once, not by their sum. What is
alive, and what may share its place with what, differs between runtimes:
:class:`~edgefuse.memory.liveness.sharing.Sharing` states it.

Time is the place of an operator in the file; a buffer lives from ``first`` to ``last``, both
included. Model inputs are there at 0, model outputs to the last operator.

Sharing: RESHAPE and its kin give the same bytes another shape, so that input and output are one
buffer; an element-wise operator may write over an input of its own size that nobody reads later.

Scope: one subgraph, constant shapes. Not in it: weights, variables, scratch (which depends on the
kernels), the interpreter's own structures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.errors import StageError
from edgefuse.memory.arena import Live, aligned, unique_names
from edgefuse.memory.liveness.operators import check_operators
from edgefuse.memory.liveness.sharing import Sharing

if TYPE_CHECKING:
    from edgefuse.tflite.read import Tensor, TfliteModel

RESHAPES = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST"})
_ELEMENTWISE = frozenset({"ADD", "SUB", "MUL", "DIV"})
_MOST_BYTES = 2**63 - 1


TFLITE_MICRO = Sharing(alignment=16, keeps_inputs=False, reshapes=False, elementwise=False)
LITERT = Sharing(alignment=64, keeps_inputs=True, reshapes=True, elementwise=True)


def live_buffers(model: TfliteModel, sharing: Sharing) -> tuple[Live, ...]:
    """Every buffer of the arena, by the index of its first tensor; sizes rounded up.

    Names that occur twice in the file are numbered.

    Raises:
        StageError: a shape that is known only at run time, no elements, or more bytes than an
            address can tell; an operator that no runtime runs.
    """
    check_operators(model)
    held = {tensor.index: tensor for tensor in _activations(model)}
    for tensor in held.values():
        _check(tensor, model.where)
    spans = _spans(model, held, sharing)
    owner = _owners(model, held, spans, sharing)
    names = dict(zip(held, unique_names(tensor.name for tensor in held.values()), strict=True))
    groups: dict[int, list[int]] = {}
    for index in held:
        groups.setdefault(owner[index], []).append(index)
    return tuple(
        Live(
            name=names[root],
            size_bytes=aligned(max(held[i].nbytes for i in group), sharing.alignment),
            first=min(spans[i][0] for i in group),
            last=max(spans[i][1] for i in group),
            tensors=tuple(names[i] for i in sorted(group, key=lambda i: (spans[i][0], i))),
        )
        for root, group in sorted(groups.items())
    )


def _activations(model: TfliteModel) -> tuple[Tensor, ...]:
    touched = {i for op in model.operators for i in (*op.inputs, *op.outputs)}
    touched |= {*model.inputs, *model.outputs}
    return tuple(
        tensor
        for tensor in model.tensors
        if tensor.index in touched and not tensor.is_constant and not tensor.is_variable
    )


def _check(tensor: Tensor, where: str) -> None:
    # Of open axes the first, a batch, counts as stored: so it runs.
    if any(tensor.dynamic_axes) or min(tensor.shape, default=0) < 0:
        problem, hint = "has a shape known only at run time", "convert with a fixed input shape"
    elif tensor.nbytes > _MOST_BYTES:
        problem, hint = "is larger than an address can tell", "make the input smaller"
    elif tensor.nbytes <= 0:
        problem, hint = "has no elements, or values without a fixed size", "leave the tensor out"
    else:
        return
    raise StageError(
        f"tensor {tensor.name!r} {list(tensor.shape)} {problem}: its memory cannot be planned",
        hint=hint,
        where=where,
    )


def _spans(
    model: TfliteModel, held: dict[int, Tensor], sharing: Sharing
) -> dict[int, tuple[int, int]]:
    """First and last operator of each tensor."""
    end = max(len(model.operators) - 1, 0)
    first: dict[int, int] = dict.fromkeys(model.inputs, 0)
    last: dict[int, int] = {}
    for step, operator in enumerate(model.operators):
        for index in (*operator.inputs, *operator.outputs):
            first.setdefault(index, step)
            last[index] = step
    last |= dict.fromkeys(model.outputs, end)
    if sharing.keeps_inputs:
        last |= dict.fromkeys(model.inputs, end)
    return {index: (first.get(index, 0), last.get(index, first.get(index, 0))) for index in held}


def _owners(
    model: TfliteModel,
    held: dict[int, Tensor],
    spans: dict[int, tuple[int, int]],
    sharing: Sharing,
) -> dict[int, int]:
    """For each tensor the first tensor of its buffer."""
    owner = {index: index for index in held}
    until = {index: last for index, (_, last) in spans.items()}
    fixed = {*model.inputs, *model.outputs}
    for step, operator in enumerate(model.operators):
        result = operator.outputs[0] if len(operator.outputs) == 1 else -1
        if result not in held or owner[result] != result:
            continue
        if operator.code in RESHAPES and sharing.reshapes:
            givers, early = list(operator.inputs[:1]), True
        elif operator.code in _ELEMENTWISE and sharing.elementwise:
            givers, early = list(operator.inputs), False
        else:
            continue
        for giver in givers:
            if giver not in held or giver in fixed or result in fixed:
                continue
            root = owner[giver]
            if held[giver].nbytes == held[result].nbytes and (early or until[root] == step):
                owner[result] = root
                until[root] = max(until[root], spans[result][1])
                break
    return owner
