"""Fine-tuning within a budget of peak bytes: the student in pieces, some of which run twice.

The file's operators stand in order. Where one tensor alone is still to be read, the network can be
cut; between two cuts lies a piece, and pieces in a row are the chain that
:mod:`edgefuse.memory.remat` plans. A piece rounds its own weights, with the ranges of the int8
file, which fine-tuning never changes: running it again gives the same numbers, and the trained
weights are the same as without a budget.

Scope: one input, one judged output. What has more, or a skip from end to end, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from edgefuse.errors import GateFailed, UsageError
from edgefuse.quant.weights.trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgefuse.memory.remat import Rematerialised
    from edgefuse.quant.weights.lesson import Lesson

WHERE = "quantize.qat.memory_budget"
_LEAST_PIECES, _MOST_PIECES = 2, 16


@dataclass(frozen=True)
class Piecewise(Trainable):
    """An int8 file under training, run piece by piece."""

    module: nn.Module

    def outputs(self, feed: Mapping[str, Any], judged: tuple[int, ...]) -> list[Tensor]:
        (x,) = self.simulation.network.feeds(feed).values()
        return [self.module(x)]


def within_budget(
    student: Trainable, lesson: Lesson, budget: int | float
) -> tuple[Piecewise, Rematerialised]:
    """The student with a plan whose step keeps to the budget, measured on the first samples.

    Args:
        budget: bytes, or a share of the plain step's peak in (0, 1].

    Raises:
        UsageError: the network has no chain of pieces.
        GateFailed: no plan keeps to the budget.
    """
    from edgefuse.memory.remat import rematerialise

    found = Piecewise(
        student.simulation, student.parameters, student.layers, _pieces(student, lesson)
    )
    rows = lesson.order[: lesson.group]
    (x,) = student.simulation.network.feeds(lesson.feed(rows)).values()
    try:
        plan = rematerialise(
            found.module, x, budget=budget, loss=lambda y: lesson.loss_of([y], rows)
        )
    except (GateFailed, UsageError) as error:
        error.where = WHERE
        raise
    return found, plan


def _pieces(student: Trainable, lesson: Lesson) -> nn.Sequential:
    """The chain.

    Raises:
        UsageError: more than one input or output, or no place to cut.
    """
    import torch

    network = student.simulation.network
    if len(network.model.inputs) != 1 or len(lesson.outputs) != 1:
        raise UsageError(
            "a memory budget needs a model of one input and one output, and this one has "
            f"{len(network.model.inputs)} and {len(lesson.outputs)}",
            hint="leave memory_budget out",
            where=WHERE,
        )
    cuts = _cuts(student, network.model.inputs[0], lesson.outputs[0].index)
    if len(cuts) <= _LEAST_PIECES:
        raise UsageError(
            "no chain of blocks found: at no operator one tensor alone is still to be read",
            hint="leave memory_budget out",
            where=WHERE,
        )
    return torch.nn.Sequential(*(_piece(student, begin, end) for begin, end in pairwise(cuts)))


def _cuts(student: Trainable, first: int, last: int) -> list[tuple[int, int]]:
    """(operators before it, the tensor alone alive there), from the input to the judged output."""
    network = student.simulation.network
    sizes, alive = network.model.tensors, {first}
    places: list[tuple[int, int, int]] = [(0, first, 0)]
    made = 0
    for place, step in enumerate(network.steps, 1):
        alive |= set(step.operator.outputs)
        made += sum(sizes[index].nbytes for index in step.operator.outputs)
        alive -= set(step.dying) - {last}
        if len(alive) == 1 and sizes[min(alive)].is_float:
            places.append((place, min(alive), made))
        if last in step.operator.outputs:
            break
    if places[-1][1] != last:
        return []
    kept = [places[0]]
    for each in places[1:-1]:
        if each[2] - kept[-1][2] >= made / _MOST_PIECES:
            kept.append(each)
    return [(place, index) for place, index, _ in (*kept, places[-1])]


def _piece(student: Trainable, begin: tuple[int, int], end: tuple[int, int]) -> nn.Module:
    import torch

    simulation, network = student.simulation, student.simulation.network
    read = {i for step in network.steps[begin[0] : end[0]] for i in step.operator.inputs}
    own = {i: p for i, p in student.parameters.items() if i in read}

    class Piece(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for index, parameter in own.items():
                self.register_parameter(f"change_{index}", parameter.change)

        def forward(self, x: Tensor) -> Tensor:
            given = student.on_grid(begin[1], x) if begin[0] == 0 else x
            found = network.run(
                {begin[1]: given},
                begin[0],
                end[0],
                constants={**simulation.constants, **{i: p.rounded() for i, p in own.items()}},
                on_value=student.on_grid,
                keep=frozenset({end[1]}),
            )
            return found[end[1]]

    return Piece()
