"""A training step beside others: eager, plain checkpointing, torch.compile at its budgets, plans.

Every row runs the same step on the same module and example. Peaks are those of :mod:`~.meter`,
without gradients of a step before. Times are taken in rounds, one step of each row a round, begun
with another each time, so that what slows the machine down slows all rows down alike; given are the
median and the range, and the processor's time. Gradients accumulate meanwhile.
torch.compile partitions with AOTAutograd (``aot_eager_decomp_partition``): its knob bounds the
bytes that are saved, in shares of eager's, not the peak. Its kernels would come from Inductor,
which is not asked: the times of these rows are the graph's, operator by operator.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from edgefuse.errors import GateFailed
from edgefuse.memory.remat.chain import Item, Keep, Segment
from edgefuse.memory.remat.plan import Planned

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgefuse.memory.remat.wrap import Study

    Progress = Callable[[int, int, str], None]

COMPILE_BUDGETS = (1.0, 0.5, 0.1, 0.0)


@dataclass(frozen=True)
class Row:
    """A way to run a training step.

    Attributes:
        name: ``eager``, ``checkpoint each block``, ``torch.compile 0.5``, ``edgefuse 40%``.
        budget_bytes: of the peak; None where none was asked for.
        predicted_peak_bytes: by the planner; None for others.
        peak_bytes: measured; None when refused.
        time_ms: median of the rounds; None without.
        spread_ms: least and most of the rounds.
        cpu_ms: median of the processor's time, which other programs hardly change; None without.
        recomputed: blocks that run twice, with the part in brackets where it is not all.
        refused: why the row has no figures.
    """

    name: str
    budget_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    peak_bytes: int | None = None
    time_ms: float | None = None
    spread_ms: tuple[float, float] | None = None
    cpu_ms: float | None = None
    recomputed: tuple[str, ...] = ()
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        spread = None if self.spread_ms is None else [round(x, 2) for x in self.spread_ms]
        return {
            "name": self.name,
            "budget_bytes": self.budget_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "peak_bytes": self.peak_bytes,
            "time_ms": None if self.time_ms is None else round(self.time_ms, 2),
            "spread_ms": spread,
            "cpu_ms": None if self.cpu_ms is None else round(self.cpu_ms, 2),
            "recomputed": list(self.recomputed),
            "refused": self.refused,
        }


@dataclass(frozen=True)
class _Way:
    """How a row is entered, and its step."""

    row: Row
    enter: Callable[[], AbstractContextManager[object]]
    step: Callable[[], None]


def compare_step(
    module: nn.Module,
    inputs: Tensor | tuple[Tensor, ...],
    *,
    budgets: Sequence[int | float],
    loss: Callable[[Any], Tensor] | None = None,
    rounds: int = 5,
    compiled: bool = True,
    progress: Progress = lambda done, total, what: None,
) -> tuple[Row, ...]:
    """Measure one training step of a module in several ways.

    Args:
        inputs: an example; the module is left as it was.
        budgets: of the peak: bytes, or shares of eager's as floats in (0, 1].
        loss: of the module's output; without it the mean square.
        rounds: of timing; 0: no times.
        compiled: whether torch.compile has rows; compiling takes seconds each.
        progress: told how many ways are ready, then how many steps are timed, of how many.

    Raises:
        UsageError: the module holds no chain of blocks, a budget is no budget, or module or
            inputs do not lie on the CPU.
    """
    from edgefuse.memory.remat.frozen import undisturbed
    from edgefuse.memory.remat.wrap import Study

    makers: list[Callable[[Study], _Way]] = [_eager, _checkpointed]
    if compiled:
        makers += [partial(_compiled, share=share) for share in COMPILE_BUDGETS]
    makers += [partial(_planned, budget=budget) for budget in budgets]
    progress(0, len(makers), "measuring the blocks, ways")
    study = Study(module, inputs, loss)
    ways: list[_Way] = []
    for make in makers:
        ways.append(make(study))
        progress(len(ways), len(makers), "ways")
    running = [way for way in ways if not way.row.refused]
    times: dict[str, list[tuple[float, float]]] = {way.row.name: [] for way in running}
    with undisturbed(module):
        for turn in range(rounds):
            first = turn % len(running)
            for place, way in enumerate((*running[first:], *running[:first])):
                done = turn * len(running) + place
                progress(done, rounds * len(running), "timed steps")
                with way.enter():
                    begin, used = time.perf_counter(), time.process_time()
                    way.step()
                    used, taken = time.process_time() - used, time.perf_counter() - begin
                    times[way.row.name].append((taken * 1e3, used * 1e3))
    return tuple(_timed(way.row, times.get(way.row.name, [])) for way in ways)


def _timed(row: Row, times: Sequence[tuple[float, float]]) -> Row:
    if not times:
        return row
    taken, used = zip(*times)
    return replace(
        row,
        time_ms=statistics.median(taken),
        spread_ms=(min(taken), max(taken)),
        cpu_ms=statistics.median(used),
    )


def _eager(study: Study) -> _Way:
    row = Row("eager", peak_bytes=study.eager_peak_bytes)
    return _Way(row, nullcontext, study.step)


def _checkpointed(study: Study) -> _Way:
    """Every block that may run twice does, as users of torch's checkpoint write it."""
    items: list[Item] = []
    names = []
    for place, block in enumerate(study.blocks):
        again = not block.kept_because
        items.append(Segment(place, place + 1, (Keep(place, 0),)) if again else Keep(place, 0))
        names += [block.name] if again else []
    planned = Planned(tuple(items), 0, 0)
    with study.running(planned):
        peak = study.peak_bytes()
    row = Row("checkpoint each block", peak_bytes=peak, recomputed=tuple(names))
    return _Way(row, lambda: study.running(planned), study.step)


def _planned(study: Study, budget: int | float) -> _Way:
    wanted = study.bytes_of(budget)
    said = f"{100 * budget:g}%" if isinstance(budget, float) else f"{budget} bytes"
    try:
        found = study.rematerialise(budget)
    except GateFailed as error:
        row = Row(f"edgefuse {said}", wanted, refused=error.message)
        return _Way(row, nullcontext, study.step)
    found.remove()
    parts = tuple(f"{name} ({mode})" for name, mode in found.lightened)
    row = Row(
        f"edgefuse {said}",
        wanted,
        found.predicted_peak_bytes,
        found.peak_bytes,
        recomputed=(*found.recomputed, *parts),
    )
    return _Way(row, found.running, study.step)


def _compiled(study: Study, share: float) -> _Way:
    import torch
    from torch._functorch import config

    from edgefuse.memory.remat.frozen import undisturbed
    from edgefuse.memory.remat.meter import peak_bytes

    name = f"torch.compile {share:g}"
    torch._dynamo.reset()
    compiled = torch.compile(study.module, backend="aot_eager_decomp_partition", dynamic=False)

    def step() -> None:
        study.loss(compiled(*study.inputs)).backward()

    try:
        with config.patch(activation_memory_budget=share), undisturbed(study.module):
            step()
        with undisturbed(study.module):
            peak = peak_bytes(step)
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        return _Way(Row(name, refused=f"torch.compile failed: {said[0]}"), nullcontext, step)
    return _Way(Row(name, peak_bytes=peak), nullcontext, step)
