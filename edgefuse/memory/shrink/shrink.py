"""Make the arena of a .tflite file smaller: the one entry to all rewrites.

Problem: padding can be absorbed, operators ordered otherwise, the first of them tiled. Each has a
price, and what pays depends on the target and on the goal.

Without a goal: what costs no arithmetic worth speaking of is kept where it lowers the arena, or,
with the arena unchanged, the bytes moved. With a goal: of all combinations that keep to it one that
takes no more time on the target's kernels, if there is one, then the one with the fewest
multiply-adds, then the fewest operators; tiles only where nothing else reaches it. At the end, for
kernels that gain by it, what lets layers run in a faster kernel at an unchanged arena.

Every step is exact: in int8 the outputs are the same bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgefuse.errors import StageError, UsageError
from edgefuse.memory.shrink.absorb_pad import Absorbed, Form, absorb_padding
from edgefuse.memory.shrink.edges import edges_apart
from edgefuse.memory.shrink.judge import Judged, bytes_moved, judged
from edgefuse.memory.shrink.multiply_adds import multiply_adds
from edgefuse.memory.shrink.order import order
from edgefuse.memory.shrink.out_of_reach import OutOfReach
from edgefuse.memory.shrink.tile import GOAL_HINT, tile
from edgefuse.memory.shrink.wish import KEPT, Choice, Kernels, Shrunk, Step, Wish

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

__all__ = ["Choice", "Kernels", "Shrunk", "Step", "Wish", "shrink"]

# What auto may use, the better form first; tests/benchmarks/shrink.md has the measurements.
# Without a goal: what runs in no more time. XNNPACK and Ethos-U's compiler do the padding inside
# the convolution anyway, and wider kernels leave XNNPACK's fast path and cost reference kernels 8%.
FREE: dict[Kernels, tuple[Form, ...]] = {
    "builtin": ("turned", "wider_kernels"),
    "legacy": ("turned", "wider_kernels"),
    "xnnpack": (),
    "reference": ("turned",),
    "micro": ("turned",),
    "npu": (),
}
# For a goal also what costs time. An Ethos-U has no REVERSE_V2.
FOR_GOAL: dict[Kernels, tuple[Form, ...]] = {
    "builtin": ("turned", "wider_kernels"),
    "legacy": ("turned", "wider_kernels"),
    "xnnpack": ("turned", "wider_kernels"),
    "reference": ("turned", "wider_kernels"),
    "micro": ("turned", "wider_kernels"),
    "npu": ("wider_kernels",),
}
_DONE_THERE: dict[Kernels, str] = {
    "xnnpack": "XNNPACK pads inside its convolutions, so that absorbing saves no time there",
    "npu": "the NPU's compiler pads inside the convolutions, so that absorbing saves nothing there",
}
# Which run strided layers faster inside the picture than across its far edge: on aarch64 3 to 5% of
# MobileNetV2; without that kernel (x86-64, armv7) the copies cost half a percent at most.
_FASTER_INSIDE: frozenset[Kernels] = frozenset({"builtin", "legacy"})
_TILING = frozenset({"STRIDED_SLICE", "PAD", "CONCATENATION"})


@dataclass(frozen=True)
class _Held:
    """A file on its way, with what is known of it."""

    data: bytes
    model: TfliteModel
    arena: Judged
    multiply_adds: int
    bytes_moved: int
    steps: tuple[Step, ...] = ()
    turned_inputs: tuple[str, ...] = ()
    turned_outputs: tuple[str, ...] = ()
    choice: Choice = KEPT

    @property
    def cost(self) -> tuple[int, int, int]:
        return self.multiply_adds, len(self.model.operators), self.bytes_moved


def shrink(data: bytes, wish: Wish) -> tuple[bytes, Shrunk]:
    """The same model with a smaller arena; the bytes come back unchanged when nothing helped.

    Raises:
        SourceError, StageError: the file cannot be read, or its memory not be planned.
        UsageError: the wish contradicts itself.
        OutOfReach: of the goal; the message names the least, the bound and what blocks it.
    """
    _check(wish)
    given = _held(data, wish)
    kept, refused = _padded(given, wish)
    if wish.order:
        kept = [_ordered(held, wish) for held in kept]
    if wish.arena_bytes is None:
        best = kept[0]
        if wish.tiles is not None:
            best = _tiled(best, wish, given)
    else:
        best = _within(kept, wish, given, wish.arena_bytes)
    if wish.edges and wish.kernels in _FASTER_INSIDE:
        best = _edged(best, wish, given)
    steps = (*(s for s in refused if s not in best.steps), *best.steps)
    return best.data, Shrunk(
        steps=steps,
        arena=wish.arena,
        kernels=wish.kernels,
        goal=wish.arena_bytes,
        bound_bytes=best.arena.bound_bytes,
        arena_bytes_before=given.arena.arena_bytes,
        arena_bytes=best.arena.arena_bytes,
        multiply_adds_before=given.multiply_adds,
        multiply_adds=best.multiply_adds,
        operators_before=len(given.model.operators),
        operators=len(best.model.operators),
        bytes_moved_before=given.bytes_moved,
        bytes_moved=best.bytes_moved,
        file_bytes_before=len(given.data),
        file_bytes=len(best.data),
        turned_inputs=best.turned_inputs,
        turned_outputs=best.turned_outputs,
        choice=best.choice,
    )


def _check(wish: Wish) -> None:
    if wish.arena_bytes is not None and wish.arena_bytes <= 0:
        raise UsageError(
            f"an arena of {wish.arena_bytes} bytes holds nothing", hint="give a goal above 0"
        )
    if wish.max_extra_multiply_adds < 0:
        raise UsageError(
            f"a share of {wish.max_extra_multiply_adds} more multiply-adds is no share",
            hint="give 0 or more: 0.15 is 15%",
        )
    if wish.last is not None and wish.tiles is None:
        raise UsageError("a last operator without a grid of tiles", hint="give tiles too")
    if wish.tiles is not None and wish.last is None and wish.arena_bytes is None:
        raise UsageError(
            "tiles without the last operator and without a goal",
            hint="give the place of the last tiled operator, or a goal in bytes",
        )


def _held(data: bytes, wish: Wish) -> _Held:
    from edgefuse.tflite.read import parse_model

    model = parse_model(data)
    return _Held(data, model, judged(model, wish.arena), multiply_adds(model), bytes_moved(model))


def _stepped(before: _Held, after: _Held, name: str, did: str, why_not: str = "") -> Step:
    return Step(
        name=name,
        did=did,
        arena_bytes_before=before.arena.arena_bytes,
        arena_bytes=after.arena.arena_bytes,
        multiply_adds_before=before.multiply_adds,
        multiply_adds=after.multiply_adds,
        operators_before=len(before.model.operators),
        operators=len(after.model.operators),
        kept=not why_not,
        why_not=why_not,
        file_bytes_before=len(before.data),
        file_bytes=len(after.data),
    )


def _padded(given: _Held, wish: Wish) -> tuple[list[_Held], list[Step]]:
    """The file in each form that may be used, the best first; and the steps that were dropped."""
    if wish.padding == "keep" or not any(
        operator.code in ("PAD", "PADV2") for operator in given.model.operators
    ):
        return [given], []
    allowed = FREE if wish.arena_bytes is None else FOR_GOAL
    forms = allowed[wish.kernels] if wish.padding == "auto" else (wish.padding,)
    if not forms:
        did = "PADs left where they are"
        return [given], [_stepped(given, given, "padding", did, _DONE_THERE[wish.kernels])]
    kept: list[_Held] = []
    refused: list[Step] = []
    for form in forms:
        made, done = _absorbed(given, form, wish)
        did = _absorbed_in_words(form, len(done.absorbed), wish)
        after = _held(made, wish) if done.absorbed else given
        why_not = ""
        if not done.absorbed:
            why_not = "; ".join(f"{name}: {reason}" for name, reason in done.left[:3])
            why_not = why_not or "nothing to absorb"
        elif missing := _missing(given, after, wish):
            why_not = f"the target has no {', '.join(missing)}"
        elif _extra(after, given) > wish.max_extra_multiply_adds:
            why_not = f"it costs {_extra(after, given):.1%} more multiply-adds"
        elif wish.padding == "auto" and done.turned_outputs:
            why_not = f"output {done.turned_outputs[0]!r} would come out turned"
        elif wish.padding == "auto":
            why_not = _no_gain(given, after)
        step = _stepped(given, after, "padding", did, why_not)
        if why_not:
            refused.append(step)
        else:
            kept.append(
                replace(
                    after,
                    steps=(step,),
                    turned_inputs=done.turned_inputs,
                    turned_outputs=done.turned_outputs,
                    choice=Choice(padding=form),
                )
            )
    if wish.padding == "auto" or not kept:
        kept.append(given)
    return kept, refused


def _absorbed(given: _Held, form: Form, wish: Wish) -> tuple[bytes, Absorbed]:
    """A form of the file; of the two ways to turn a picture the one in the smaller arena, if there
    is one: planners place three intermediates worse than two where there are several pictures."""
    from edgefuse.tflite.read import parse_model

    ways = [form == "turned" and wish.reverse_input and wish.kernels != "legacy"]
    if ways[0]:
        ways.append(False)
    found = [
        absorb_padding(given.data, form, reverse=wish.reverse_input, one_row=way) for way in ways
    ]
    return min(found, key=lambda made: judged(parse_model(made[0]), wish.arena).arena_bytes)


def _absorbed_in_words(form: Form, count: int, wish: Wish) -> str:
    how = "by kernels with zero taps"
    if form == "turned":
        how = "in the network turned by 180 degrees, "
        how += "its picture turned by REVERSE_V2" if wish.reverse_input else "its picture too"
    return f"{count} PAD{'' if count == 1 else 's'} absorbed {how}"


def _missing(before: _Held, after: _Held, wish: Wish) -> list[str]:
    """Operators that the rewrite brought in and the target does not have."""
    if wish.operators is None:
        return []
    new = {o.code for o in after.model.operators} - {o.code for o in before.model.operators}
    return sorted(new - wish.operators)


def _extra(after: _Held, given: _Held) -> float:
    return after.multiply_adds / max(given.multiply_adds, 1) - 1


def _no_gain(before: _Held, after: _Held) -> str:
    """Why a step does not help, else an empty string."""
    arenas = (before.arena.arena_bytes, after.arena.arena_bytes)
    if arenas[1] > arenas[0]:
        return "the arena grows"
    if arenas[1] == arenas[0] and after.bytes_moved >= before.bytes_moved:
        return "neither the arena nor the bytes moved fall"
    return ""


def _ordered(held: _Held, wish: Wish) -> _Held:
    made, done = order(held.data, wish.arena)
    if not done.moved:
        step = _stepped(held, held, "order", "operators in another order", "none needs less memory")
        return replace(held, steps=(*held.steps, step))
    after = _held(made, wish)
    step = _stepped(held, after, "order", f"{done.moved} operators run at another place")
    return replace(
        after,
        steps=(*held.steps, step),
        turned_inputs=held.turned_inputs,
        turned_outputs=held.turned_outputs,
        choice=held.choice,
    )


def _within(kept: list[_Held], wish: Wish, given: _Held, goal: int) -> _Held:
    """The cheapest that keeps to the goal; in tiles where nothing else does."""
    fits = [held for held in kept if held.arena.arena_bytes <= goal]
    if fits and wish.tiles is None:
        free = {"keep", *FREE[wish.kernels]} if wish.padding == "auto" else {wish.padding}
        return min(fits, key=lambda held: (held.choice.padding not in free, held.cost))
    found: list[_Held] = []
    blocked: list[OutOfReach] = []
    for held in kept:
        try:
            found.append(_tiled(held, wish, given))
        except OutOfReach as error:
            blocked.append(error)
        except StageError as error:
            whole = held.arena.arena_bytes if wish.tiles is None else None
            blocked.append(OutOfReach(error.message, least_bytes=whole, exact=True))
    if found:
        return min(found, key=lambda held: held.cost)
    closest = min(
        blocked,
        key=lambda error: (error.least_bytes is None, error.least_bytes or 0),
    )
    enough = [e.sufficient_multiply_adds for e in blocked if e.sufficient_multiply_adds is not None]
    untiled = min((held.arena for held in kept), key=lambda arena: arena.arena_bytes)
    raise OutOfReach(
        f"the arena cannot keep to {goal} bytes: {closest.message}; untiled it needs "
        f"{untiled.arena_bytes} bytes (bound: {untiled.bound_bytes})",
        least_bytes=closest.least_bytes,
        exact=all(error.exact for error in blocked),
        sufficient_multiply_adds=min(enough, default=None),
        multiply_adds=given.multiply_adds,
        hint=GOAL_HINT,
        where=given.model.where,
    )


def _tiled(held: _Held, wish: Wish, given: _Held) -> _Held:
    if wish.operators is not None and (missing := sorted(_TILING - wish.operators)):
        raise StageError(
            f"tiles need {', '.join(missing)}, which the target does not have",
            hint="give a larger goal, or a target that has them",
        )
    spare = (1 + wish.max_extra_multiply_adds) * given.multiply_adds
    made, done = tile(
        held.data,
        arena_bytes=wish.arena_bytes,
        grid=wish.tiles,
        last=wish.last,
        runtime=wish.arena,
        max_extra_share=max(spare / max(held.multiply_adds, 1) - 1, 0.0),
    )
    after = _held(made, wish)
    rows, columns = done.grid
    did = f"{done.first} to {done.last} in {rows} x {columns} tiles"
    step = _stepped(held, after, "tiles", did)
    tiled = replace(held.choice, tiles=done.grid, last=int(done.last.rpartition("#")[2]))
    return replace(
        after,
        steps=(*held.steps, step),
        turned_inputs=held.turned_inputs,
        turned_outputs=held.turned_outputs,
        choice=held.choice if done.grid == (1, 1) else tiled,
    )


def _edged(held: _Held, wish: Wish, given: _Held) -> _Held:
    """Edges of strided depthwise convolutions apart, where such convolutions are."""
    made, done = edges_apart(held.data, wish.arena, wish.arena_bytes)
    if not done.apart and not done.left:
        return held
    after = _held(made, wish) if done.apart else held
    extra = after.multiply_adds - held.multiply_adds
    why_not = ""
    if not done.apart:
        why_not = "; ".join(f"{name}: {reason}" for name, reason in done.left[:3])
    elif missing := _missing(held, after, wish):
        why_not = f"the target has no {', '.join(missing)}"
    elif extra and _extra(after, given) > wish.max_extra_multiply_adds:
        why_not = f"it costs {extra} more multiply-adds"
    count = len(done.apart)
    did = f"edges of {count} depthwise convolution{'' if count == 1 else 's'} apart: "
    did += "the inside runs in the faster kernel of 3 x 3"
    step = _stepped(held, after, "edges", did, why_not)
    if why_not:
        return replace(held, steps=(*held.steps, step))
    return replace(
        after,
        steps=(*held.steps, step),
        turned_inputs=held.turned_inputs,
        turned_outputs=held.turned_outputs,
        choice=replace(held.choice, edges=True),
    )
