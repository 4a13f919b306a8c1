"""The arena of a program: who lives when, what is written over what, and the planner's offsets.

A launch reads an operand of its epilogue, or an input of a pointwise launch without a view, element
by element, each just before it writes that element of the output. So the output may take the place
of such an operand that is of its size and that nobody reads later: the residual of a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgefuse.cuda.contract import read_by_element
from edgefuse.cuda.program import ARENA_ALIGNMENT, Launch, Tensor
from edgefuse.memory.arena import Arena, Live, aligned
from edgefuse.memory.planner.plan import plan

OWNER = "edgefuse"


def planned(
    tensors: Mapping[str, Tensor], launches: Sequence[Launch]
) -> tuple[Arena, dict[str, Tensor]]:
    """The arena, and the tensors with their offsets."""

    def root(name: str) -> Tensor:
        tensor = tensors[name]
        return tensors[tensor.alias_of] if tensor.alias_of else tensor

    end = max(len(launches) - 1, 0)
    first = {t.name: 0 for t in tensors.values() if t.role == "input"}
    last = dict(first)
    for step, launch in enumerate(launches):
        for name in launch.reads:
            if root(name).role != "weight":
                last[root(name).name] = step
        first[root(launch.output).name] = last[root(launch.output).name] = step
    for tensor in tensors.values():
        if tensor.role == "output":
            last[root(tensor.name).name] = end
    owner = {name: name for name in first}
    for step, launch in enumerate(launches):
        output = root(launch.output)
        for operand in map(root, read_by_element(tensors, launch)):
            place = owner.get(operand.name)
            if (
                place is not None
                and operand.nbytes == output.nbytes
                and last[operand.name] == step
                and all(last[n] <= step for n, o in owner.items() if o == place)
            ):
                owner[output.name] = place
                break
    shared: dict[str, list[str]] = {}
    for name in first:
        shared.setdefault(owner[name], []).append(name)
    buffers = tuple(
        Live(
            name=place,
            size_bytes=aligned(max(tensors[n].nbytes for n in names), ARENA_ALIGNMENT),
            first=min(first[n] for n in names),
            last=max(last[n] for n in names),
            tensors=tuple(names),
        )
        for place, names in shared.items()
    )
    made = plan(buffers, alignment=ARENA_ALIGNMENT)
    arena = Arena(
        owner=OWNER,
        buffers=buffers,
        offsets=tuple(made.offsets[b.name] for b in buffers),
        steps=tuple(f"{launch.kernel}#{place}" for place, launch in enumerate(launches)),
        bound_bytes=made.bound_bytes,
        proven=made.proven,
    )
    offsets = {n: made.offsets[b.name] for b in buffers for n in b.tensors}
    placed = {
        name: tensor
        if root(name).role == "weight"
        else replace(tensor, offset=offsets.get(root(name).name, 0))
        for name, tensor in tensors.items()
    }
    return arena, placed
