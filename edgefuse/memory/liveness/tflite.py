"""Which bytes of a .tflite file are alive when: what an arena has to hold.

Problem: the arena is decided by the tensors that are alive at once, not by their sum. What is
alive, and what may share its place with what, differs between runtimes:
:class:`~edgefuse.memory.liveness.sharing.Sharing` states it.

Time is the place of an operator in the file; a buffer lives from ``first`` to ``last``, both
included. Model inputs are there at 0, model outputs to the last operator.

Sharing, as LiteRT does it: RESHAPE and its kin give the same bytes another shape, so that input and
output are one buffer; an element-wise operator, SOFTMAX or DYNAMIC_UPDATE_SLICE writes over an
input of its own size, above 4 bytes, that is read once in the whole file. An input that is read
twice is never written over, though it may die there. Model inputs are never shared, nor is
anything written into a model output that way.

Scope: one subgraph, constant shapes. Not in it: weights, variables, scratch (which depends on the
kernels), the interpreter's own structures.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from edgefuse.errors import StageError
from edgefuse.memory.arena import Live, aligned, unique_names
from edgefuse.memory.liveness.operators import check_operators
from edgefuse.memory.liveness.sharing import Sharing

if TYPE_CHECKING:
    from edgefuse.tflite.read import Tensor, TfliteModel

RESHAPES = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST"})
# How many of its inputs an operator may write over.
_WRITES_OVER = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), 2),
    **dict.fromkeys(("SOFTMAX", "DYNAMIC_UPDATE_SLICE"), 1),
}
_SCALAR_BYTES = 4  # What is no larger is not written over.
_MOST_BYTES = 2**63 - 1


TFLITE_MICRO = Sharing(alignment=16, keeps_inputs=False, reshapes=False, elementwise=False)
LITERT = Sharing(
    alignment=64, keeps_inputs=True, reshapes=True, elementwise=True, keeps_unread=True
)


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
    owner = _owners(model, held, sharing)
    spans = _spans(model, owner, sharing)
    names = {tensor.index: name for name, tensor in named_tensors(model).items()}
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


def named_tensors(model: TfliteModel) -> dict[str, Tensor]:
    """What is planned, by the names that buffers give it."""
    held = _activations(model)
    return dict(zip(unique_names(tensor.name for tensor in held), held, strict=True))


def kept_tensors(model: TfliteModel, sharing: Sharing) -> frozenset[int]:
    """What keeps its place to the end of the run, whoever reads it last."""
    kept = {*model.outputs}
    if sharing.keeps_inputs:
        kept |= {*model.inputs}
    if sharing.keeps_unread:
        read = {index for operator in model.operators for index in operator.inputs}
        kept |= {i for operator in model.operators for i in operator.outputs} - read
    return frozenset(kept)


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
    model: TfliteModel, owner: dict[int, int], sharing: Sharing
) -> dict[int, tuple[int, int]]:
    """First and last operator of each tensor."""
    end = max(len(model.operators) - 1, 0)
    first: dict[int, int] = dict.fromkeys(model.inputs, 0)
    last: dict[int, int] = {}
    for step, operator in enumerate(model.operators):
        for index in (*operator.inputs, *operator.outputs):
            first.setdefault(index, step)
            last[index] = step
    # What is unread in a buffer of others goes with them: the runtime counts their readers.
    kept = {i for i in kept_tensors(model, sharing) if owner.get(i, i) == i}
    last |= dict.fromkeys(kept, end)
    return {index: (first.get(index, 0), last.get(index, first.get(index, 0))) for index in owner}


def _owners(model: TfliteModel, held: dict[int, Tensor], sharing: Sharing) -> dict[int, int]:
    """For each tensor the first tensor of its buffer."""
    owner = {index: index for index in held}
    references = Counter(i for operator in model.operators for i in operator.inputs)
    references.update((*model.inputs, *model.outputs))
    for operator in model.operators:
        result = operator.outputs[0] if len(operator.outputs) == 1 else -1
        if result not in held or owner[result] != result or result in model.outputs:
            continue
        if operator.code in RESHAPES and sharing.reshapes:
            places, writes = 1, False
        elif operator.code in _WRITES_OVER and sharing.elementwise:
            places, writes = _WRITES_OVER[operator.code], True
        else:
            continue
        for giver in operator.inputs[:places]:
            if giver not in held or giver in model.inputs:
                continue
            size, root = held[giver].nbytes, owner[giver]
            if size != held[result].nbytes:
                continue
            if writes and (references[giver] > 1 or size <= _SCALAR_BYTES):
                continue
            # The first input that may be written over is tried alone, as LiteRT does.
            if not writes or references[root] <= 1:
                owner[result] = root
            break
    return owner
