"""What running operators as one kernel does to the peak of live bytes.

Problem: a fused kernel runs where its last operator stands, so that all it reads lives until then.
That can cost more than the intermediate tensors it saves: what would have died early stays.

``kernel_steps`` is the order of execution of a plan of kernels; ``rising_groups`` names the fused
groups without which the peak would be lower, each weighed alone. Without a group its operators run
one by one, where the group stands or as early as their operands allow, whichever is lower.

Scope: models whose groups are spelt out (:func:`edgefuse.graph.shapes.spelt_out`). Left alone:
other orders of execution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.cost import kernel_of, load_time
from edgefuse.graph.dynamic import Kernels
from edgefuse.memory.arena import peak
from edgefuse.memory.liveness.onnx import ONNX, Step, live_buffers, step_of, steps_of
from edgefuse.memory.liveness.sharing import Sharing

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class GroupPeak:
    """A fused group that raises the peak of its model.

    Attributes:
        name: of the group.
        bytes_with, bytes_without: the model's peak.
    """

    name: str
    bytes_with: int
    bytes_without: int

    @property
    def reason(self) -> str:
        """Why it is refused, in words."""
        return (
            f"raises the peak of live bytes from {self.bytes_without} to {self.bytes_with}: what "
            "it reads lives until its last operator runs"
        )


def kernel_steps(
    model: ir.Model, kernels: Sequence[Sequence[str]] | None = None
) -> tuple[Step, ...]:
    """The steps of a plan of kernels, each at the place of its last operator.

    Args:
        kernels: names of the groups of each kernel, the one that it ends with last; a group may be
            in several, and is then handed out by none but the kernel that ends with it. Without
            it every group is a kernel. Views are steps of their own.

    Raises:
        StageError: what :func:`~edgefuse.memory.liveness.onnx.steps_of` refuses.
    """
    single = steps_of(model)
    early = load_time(model)
    place = {step.nodes[0]: index for index, step in enumerate(single)}
    groups: dict[str, list[ir.Node]] = {}
    for node in place:
        groups.setdefault(kernel_of(node), []).append(node)
    if kernels is None:
        kernels = [(name,) for name in groups]
    named = {name for names in kernels for name in names}
    kernels = [*kernels, *((name,) for name in groups if name not in named)]
    parts = []
    for names in kernels:
        nodes = sorted((n for name in names for n in groups[name]), key=place.__getitem__)
        inner = {n for name in names[:-1] for n in groups[name]}
        parts.append((max(place[n] for n in groups[names[-1]]), nodes, inner))
    parts.sort(key=lambda part: part[0])
    return tuple(
        step_of(model, nodes, early, index, inner) for index, (_, nodes, inner) in enumerate(parts)
    )


def peak_of_kernels(
    model: ir.Model, kernels: Sequence[Sequence[str]] | None = None, sharing: Sharing = ONNX
) -> int:
    """The most bytes alive at once when the model runs as these kernels; see ``kernel_steps``."""
    return peak(live_buffers(model, sharing, kernel_steps(model, kernels)))[0]


def refuse_rising(model: ir.Model, sharing: Sharing = ONNX) -> Callable[[Kernels], str]:
    """For :func:`edgefuse.graph.dynamic.plan_kernels`: refuses kernels that raise the peak.

    Returns:
        Why these kernels must not be: their peak is above that of one group a kernel; or nothing.
    """
    least = peak_of_kernels(model, None, sharing)

    def reason(kernels: Kernels) -> str:
        found = peak_of_kernels(model, kernels, sharing)
        if found <= least:
            return ""
        return f"raises the peak of live bytes from {least} to {found}"

    return reason


def rising_groups(model: ir.Model, sharing: Sharing = ONNX) -> tuple[GroupPeak, ...]:
    """The fused groups without which the peak would be lower, in graph order.

    Raises:
        StageError: what :func:`~edgefuse.memory.liveness.onnx.live_buffers` refuses.
    """
    steps = kernel_steps(model)
    whole = peak(live_buffers(model, sharing, steps))[0]
    early = load_time(model)
    found = []
    for place, step in enumerate(steps):
        if len(step.nodes) == 1:
            continue
        apart = [step_of(model, (node,), early, place) for node in step.nodes]
        ways = (
            [*steps[:place], *apart, *steps[place + 1 :]],
            _hoisted([*steps[:place], *steps[place + 1 :]], apart),
        )
        least = min(peak(live_buffers(model, sharing, way))[0] for way in ways)
        if least < whole:
            found.append(GroupPeak(kernel_of(step.nodes[0]), whole, least))
    return tuple(found)


def _hoisted(steps: list[Step], moved: Sequence[Step]) -> list[Step]:
    """``moved`` put among the steps, each right after the last one whose result it reads."""
    for step in moved:
        needs = set(step.reads)
        after = [place for place, one in enumerate(steps) if not needs.isdisjoint(one.makes)]
        steps.insert(max(after, default=-1) + 1, step)
    return steps
