"""Run the first operators of a .tflite file tile by tile, so that their large tensors never exist.

Problem: the arena of a picture network is decided by its first blocks, where pictures are large. No
plan goes below what one operator reads and writes there.

Transformation: y = f(x) for the first operators f becomes y = join(f(x[tile + halo])): each tile of
y is computed from the part of x that it depends on. What neighbouring tiles both need is computed
twice: those are the extra multiply-adds. Where a window reaches past the border of the picture, an
explicit PAD stands for it, with the zero point; inside the picture nothing is padded. Every element
is computed by the same sum as before: bit by bit the same in int8. Only STRIDED_SLICE, PAD and
CONCATENATION are added, which every TFLite runtime has.

The search takes the tiling with the fewest extra multiply-adds whose arena, as foretold for the
runtime (:mod:`edgefuse.memory.shrink.judge`), keeps to the goal. How much is searched is counted,
not timed: the same file gives the same tiles everywhere. Each tile has operators of its
own, so that the interpreter's structures grow with the tiles: they are not in that figure.

Scope: see :mod:`edgefuse.memory.shrink.tile_segment`; batch 1. Left alone: everything behind the
segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from edgefuse.errors import StageError, UsageError
from edgefuse.memory.arena import Live, peak
from edgefuse.memory.liveness.tflite import live_buffers
from edgefuse.memory.shrink.judge import Runtime, alive_at_once, judged, sharing_of
from edgefuse.memory.shrink.multiply_adds import multiply_adds, of_operator
from edgefuse.memory.shrink.opened import opened
from edgefuse.memory.shrink.out_of_reach import OutOfReach
from edgefuse.memory.shrink.tile_draft import as_model, draft
from edgefuse.memory.shrink.tile_segment import Segment, made_along, segments
from edgefuse.memory.shrink.tile_write import write

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

MOST_TILES_AN_AXIS = 8
_MOST_STEPS = 128  # Operators of a segment; by then a tile needs the whole picture.
_EFFORT = 500_000  # Operators of all files that are drafted in a search.
_EFFORT_OF_HINT = 20_000  # Of those beyond the limit of multiply-adds.
GOAL_HINT = "give a larger goal, a smaller input picture, or a narrower network"


@dataclass(frozen=True)
class Tiled:
    """What was done.

    Attributes:
        grid: rows and columns of tiles.
        first, last: labels of the segment's first and last operator, in the file as it was.
        head_bytes_before, head_bytes: of the runtime's arena (tflite-micro: its head), foretold.
        operators_before, operators: of the whole file.
    """

    grid: tuple[int, int]
    first: str
    last: str
    head_bytes_before: int
    head_bytes: int
    multiply_adds_before: int
    multiply_adds: int
    operators_before: int
    operators: int

    @property
    def extra_share(self) -> float:
        """Multiply-adds more than before, as a share of those before."""
        return self.multiply_adds / max(self.multiply_adds_before, 1) - 1


@dataclass(frozen=True)
class _Choice:
    extra: int
    segment: Segment
    grid: tuple[int, int]


def tile(
    data: bytes,
    *,
    arena_bytes: int | None = None,
    grid: tuple[int, int] | None = None,
    last: int | None = None,
    max_extra_share: float = 1.0,
    runtime: Runtime = "tflite_micro",
) -> tuple[bytes, Tiled]:
    """The same model with its first operators in tiles.

    Args:
        arena_bytes: the goal for the arena; the cheapest tiling that keeps to it is taken, of
            ``grid`` and ``last`` where they are given.
        grid: rows and columns of tiles; (1, 1) is no tiling.
        last: the place of the segment's last operator; needed with ``grid`` when there is no goal.
        max_extra_share: of multiply-adds; what costs more is not considered.

    Raises:
        SourceError, StageError: the file cannot be read, its memory not be planned, or none of its
            operators can be tiled.
        UsageError: neither a goal nor both ``grid`` and ``last``.
        OutOfReach: nothing keeps to the goal; the message names the least arena and its tensors.
    """
    from edgefuse.tflite.read import parse_model

    if arena_bytes is None and (grid is None or last is None):
        raise UsageError(
            "a tiling needs a goal in bytes, or a grid and the last operator",
            hint="give arena_bytes, or grid and last",
        )
    model, edit = opened(data)
    found = [
        segment
        for segment in segments(edit)
        if (len(segment.steps) <= _MOST_STEPS if last is None else segment.end == last + 1)
    ]
    if not found:
        raise StageError(
            "no operators of the model can be tiled"
            + ("" if last is None else f" up to {_label(model, last)}"),
            hint="tiled are convolutions and what works place by place, up to where one tensor "
            "alone leads on",
            where=model.where,
        )
    before = judged(model, runtime).arena_bytes
    choice = _chosen(model, found, arena_bytes, grid, max_extra_share, before, runtime)
    if choice is not None:
        write(edit, draft(model, choice.segment, choice.grid))
        data = edit.packed()
    after = parse_model(data)
    segment = choice.segment if choice else found[0]
    return data, Tiled(
        grid=choice.grid if choice else (1, 1),
        first=model.operators[segment.begin].label,
        last=model.operators[segment.end - 1].label,
        head_bytes_before=before,
        head_bytes=judged(after, runtime).arena_bytes,
        multiply_adds_before=multiply_adds(model),
        multiply_adds=multiply_adds(after),
        operators_before=len(model.operators),
        operators=len(after.operators),
    )


def _label(model: TfliteModel, place: int) -> str:
    return model.operators[place].label if 0 <= place < len(model.operators) else f"#{place}"


def _chosen(
    model: TfliteModel,
    found: list[Segment],
    goal: int | None,
    grid: tuple[int, int] | None,
    max_extra_share: float,
    before: int,
    runtime: Runtime,
) -> _Choice | None:
    """The cheapest choice that keeps to the goal; None when the file as it is does."""
    if goal is not None and before <= goal and grid is None:
        return None
    limit = max_extra_share * multiply_adds(model)
    rest = {segment.end: _rest_peak(model, segment, runtime) for segment in found}
    every = sorted(
        _choices(model, found, grid),
        key=lambda c: (c.extra, c.grid[0] * c.grid[1], c.segment.end),
    )
    if goal is None:
        if every:
            return every[0]
        raise UsageError(
            f"no grid of {grid} tiles in the result of {_label(model, found[0].end - 1)}",
            hint="(1, 1) is no tiling, and no tile may be empty",
            where=model.where,
        )
    choices = [choice for choice in every if choice.extra <= limit]
    bounds: dict[int, int] = {}
    reached, enough = len(choices), None
    spent, effort = 0, _EFFORT
    for turn, choice in enumerate(every):
        if turn == len(choices):  # From here on it is only for the hint.
            effort = min(effort, spent + _EFFORT_OF_HINT)
        bounds[turn] = rest[choice.segment.end]
        if bounds[turn] > goal:
            continue
        spent += _drafted(model, choice)
        if spent > effort:
            reached = min(turn, reached)
            break
        planned = as_model(model, draft(model, choice.segment, choice.grid))
        bounds[turn] = alive_at_once(planned, runtime)
        if bounds[turn] <= goal and judged(planned, runtime).arena_bytes <= goal:
            if turn < len(choices):
                return choice
            enough = choice.extra
            break
    whole = before if grid is None else None
    least, held, exact = _least(model, choices[:reached], bounds, rest, whole, runtime)
    raise OutOfReach(
        f"no tiling keeps the arena to {goal} bytes with at most "
        f"{100 * max_extra_share:.3g}% more multiply-adds: "
        f"{_blocked(held, least, exact and reached == len(choices), runtime)}",
        least_bytes=least,
        exact=exact and reached == len(choices),
        sufficient_multiply_adds=None if enough is None else multiply_adds(model) + enough,
        hint=GOAL_HINT,
        where=model.where,
    )


def _least(
    model: TfliteModel,
    choices: Sequence[_Choice],
    bounds: Mapping[int, int],
    rest: Mapping[int, int],
    whole: int | None,
    runtime: Runtime,
) -> tuple[int | None, TfliteModel, bool]:
    """The least arena of what a search for it as the goal comes to, and its model; and whether
    every choice was judged, by its arena or by a bound that is not below the least.

    Args:
        choices: in the order of the search.
        bounds: by turn, what the arena is not below.
        whole: the arena without tiles, where that is a choice.
    """
    least, held, exact = whole, model, True
    spent = 0
    turns = range(len(choices))
    for turn in sorted(turns, key=lambda t: (bounds[t], _drafted(model, choices[t]), t)):
        choice = choices[turn]
        if least is not None and bounds[turn] >= least:
            break
        spent += _drafted(model, choice)
        if spent > _EFFORT:
            exact = False
            break
        planned = as_model(model, draft(model, choice.segment, choice.grid))
        if least is not None and alive_at_once(planned, runtime) >= least:
            continue
        arena = judged(planned, runtime).arena_bytes
        if least is not None and arena >= least:
            continue
        before = (c for c in choices[: turn + 1] if rest[c.segment.end] <= arena)
        if sum(_drafted(model, c) for c in before) > _EFFORT:
            exact = False  # A search for it would end before it comes to it.
            continue
        least, held = arena, planned
    return least, held, exact


def _choices(
    model: TfliteModel, found: list[Segment], grid: tuple[int, int] | None
) -> Iterator[_Choice]:
    for segment in found:
        shape = model.tensors[segment.result].shape
        size = (shape[1], shape[2])
        costs = []
        for step in segment.steps:
            made = model.tensors[step.output].shape
            costs.append(of_operator(model, model.operators[step.place]) // (made[1] * made[2]))
        ways = [min(MOST_TILES_AN_AXIS, n) for n in size]
        grids = [(y, x) for y in range(1, ways[0] + 1) for x in range(1, ways[1] + 1)]
        if grid is not None:
            grids = [grid] if 1 <= grid[0] <= size[0] and 1 <= grid[1] <= size[1] else []
        rows, columns = (
            {
                n: made_along(segment, axis, n, size[axis])
                for n in {1, *(one[axis] for one in grids)}
            }
            for axis in (0, 1)
        )
        whole = _product(costs, rows[1], columns[1])
        for one in grids:
            if one != (1, 1):
                total = _product(costs, rows[one[0]], columns[one[1]])
                yield _Choice(total - whole, segment, one)


def _drafted(model: TfliteModel, choice: _Choice) -> int:
    """Operators of the file with a choice's draft, about."""
    return len(model.operators) + len(choice.segment.steps) * choice.grid[0] * choice.grid[1]


def _product(*factors: Sequence[int]) -> int:
    return sum(map(prod, zip(*factors, strict=True)))


def _rest_peak(model: TfliteModel, segment: Segment, runtime: Runtime) -> int:
    """The most bytes alive at once behind the segment: no tiling of it changes them."""
    return peak(
        tuple(
            Live(b.name, b.size_bytes, max(b.first, segment.end), b.last, b.tensors)
            for b in live_buffers(model, sharing_of(runtime))
            if b.last >= segment.end
        )
    )[0]


def _blocked(held: TfliteModel, least: int | None, exact: bool, runtime: Runtime) -> str:
    """The least arena and the largest tensors of its peak."""
    if least is None:
        return "no such tiling is that cheap"
    arena = judged(held, runtime)
    most, step = arena.bound_bytes, arena.peak_step
    alive = sorted(
        (b for b in arena.buffers if b.first <= step <= b.last), key=lambda b: -b.size_bytes
    )
    names = ", ".join(f"{b.name} ({b.size_bytes} bytes)" for b in alive[:3])
    return (
        f"the least {'is' if exact else 'found is'} {least} bytes, of which {most} are alive at "
        f"{held.operators[step].label}, most of them {names}"
    )
