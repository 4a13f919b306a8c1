"""Put the operators of a .tflite file in the order that needs the smallest arena.

Problem: a graph with branches can run in many orders, and the interpreter runs the file's. A
converter writes whatever order its walk gave; how much is alive at once differs much between them.

Search: states are sets of operators that have run; each is extended by every operator that is
ready. Of two ways to the same set only the one with the lower peak is kept. An operator that
lowers what is alive without a new peak runs at once: in no order is it better later. Where all
sets fit in the effort the result is the best there is; else the states with the lowest peaks go on.
How much is searched is counted, not timed: the same file gives the same order everywhere.

Scope: one subgraph. What touches variables or random numbers keeps its order. Left alone: what a
runtime shares between input and output of an element-wise operator, which its planner decides; the
caller judges the result by the whole arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from edgefuse.memory.arena import aligned
from edgefuse.memory.liveness.operators import check_operators
from edgefuse.memory.liveness.tflite import RESHAPES
from edgefuse.memory.shrink.judge import Runtime, judged, sharing_of

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

_EFFORT = 100_000  # Extensions of states in all.
_LEAST_EFFORT = 64  # Of each length of an order.
_STATEFUL = frozenset(
    {
        *("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "CALL", "CUSTOM"),
        *("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "IF", "WHILE", "DELEGATE"),
        *("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"),
        *("STABLEHLO_RNG_BIT_GENERATOR", "STABLEHLO_CUSTOM_CALL", "STABLEHLO_COMPOSITE"),
    }
)


@dataclass(frozen=True)
class Ordered:
    """``moved`` operators run at another place than before."""

    moved: int
    arena_bytes_before: int
    arena_bytes: int


def order(data: bytes, runtime: Runtime = "tflite_micro") -> tuple[bytes, Ordered]:
    """The same operators in the order with the smallest arena that was found.

    The bytes come back unchanged when none is smaller.

    Raises:
        SourceError: the file is damaged.
        StageError: it has several subgraphs, an operator reads what a later one makes, or its
            memory cannot be planned.
    """
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import parse_model

    model = parse_model(data)
    before = judged(model, runtime).arena_bytes
    found = best_order(model, runtime)
    if found != tuple(range(len(found))):
        edit = Edit(data)
        edit.graph.operators = [edit.graph.operators[place] for place in found]
        made = edit.packed()
        after = judged(parse_model(made), runtime).arena_bytes
        if after < before:
            moved = sum(place != turn for turn, place in enumerate(found))
            return made, Ordered(moved, before, after)
    return data, Ordered(0, before, before)


def best_order(model: TfliteModel, runtime: Runtime) -> tuple[int, ...]:
    """Places of operators in the order found; that of the file where none has a lower peak."""
    check_operators(model)
    graph = _graph(model, runtime)
    limit = max(_peak(graph, range(len(graph.before))), 0)
    floor = max(
        (sum(graph.sizes[b] for b in {*r, *m}) for r, m in zip(graph.reads, graph.makes)), default=0
    )
    found = _search(graph, limit) if limit > floor else None
    return tuple(range(len(graph.before))) if found is None else found


@dataclass(frozen=True)
class _Graph:
    """Operators by place, buffers by number; sets of operators as the bits of a number.

    Attributes:
        before: of each operator, those that have to run first.
        after: of each operator, those that wait for it.
        reads, makes: buffers of each operator.
        readers: of each buffer, the operators that touch it; with a bit above all operators when
            it has to stay to the end.
        given: buffers that are there at the beginning.
    """

    before: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    reads: tuple[frozenset[int], ...]
    makes: tuple[frozenset[int], ...]
    sizes: tuple[int, ...]
    readers: tuple[int, ...]
    given: frozenset[int]


def _graph(model: TfliteModel, runtime: Runtime) -> _Graph:
    sharing = sharing_of(runtime)
    held = {
        t.index for t in model.tensors if not t.is_constant and not t.is_variable and t.nbytes > 0
    }
    owner = {index: index for index in held}
    maker: dict[int, int] = {}
    before: list[int] = []
    last_stateful = -1
    for place, operator in enumerate(model.operators):
        needed = 0
        for index in operator.inputs:
            if index in maker:
                needed |= 1 << maker[index]
        touched = [*operator.inputs, *operator.outputs]
        if operator.code in _STATEFUL or any(
            i >= 0 and model.tensors[i].is_variable for i in touched
        ):
            if last_stateful >= 0:
                needed |= 1 << last_stateful
            last_stateful = place
        before.append(needed)
        maker |= dict.fromkeys(operator.outputs, place)
        if sharing.reshapes and operator.code in RESHAPES and operator.inputs[0] in held:
            source, result = operator.inputs[0], operator.outputs[0]
            ends = {*model.inputs, *model.outputs}
            if result in held and not {source, result} & ends:
                owner[result] = owner[source]
    roots = sorted(set(owner.values()))
    number = {root: k for k, root in enumerate(roots)}
    buffer = {index: number[owner[index]] for index in held}
    readers = [0] * len(roots)
    for place, operator in enumerate(model.operators):
        for index in (*operator.inputs, *operator.outputs):
            if index in buffer:
                readers[buffer[index]] |= 1 << place
    forever = 1 << len(before)
    kept = {*model.outputs, *(model.inputs if sharing.keeps_inputs else ())}
    for index in kept & held:
        readers[buffer[index]] |= forever
    after: list[list[int]] = [[] for _ in before]
    for place, needed in enumerate(before):
        for other in _bits(needed):
            after[other].append(place)
    return _Graph(
        before=tuple(before),
        after=tuple(map(tuple, after)),
        reads=tuple(frozenset(buffer[i] for i in o.inputs if i in buffer) for o in model.operators),
        makes=tuple(
            frozenset(buffer[i] for i in o.outputs if i in buffer) for o in model.operators
        ),
        sizes=tuple(aligned(model.tensors[root].nbytes, sharing.alignment) for root in roots),
        readers=tuple(readers),
        given=frozenset(buffer[i] for i in model.inputs if i in buffer),
    )


def _bits(number: int) -> list[int]:
    found = []
    while number:
        low = number & -number
        found.append(low.bit_length() - 1)
        number ^= low
    return found


class _State(NamedTuple):
    """A set of operators that have run; ``path`` is the last of them and the state before it."""

    peak: int
    alive: int
    done: int
    ready: tuple[int, ...]
    path: tuple[int, _State] | None


def _start(graph: _Graph) -> _State:
    alive = sum(graph.sizes[b] for b in graph.given)
    ready = tuple(place for place, needed in enumerate(graph.before) if not needed)
    return _State(alive, alive, 0, ready, None)


def _run(graph: _Graph, state: _State, place: int) -> _State:
    """The state behind one operator more."""
    done = state.done | 1 << place
    born = [
        b for b in graph.makes[place] if b not in graph.given and not graph.readers[b] & state.done
    ]
    during = state.alive + sum(graph.sizes[b] for b in born)
    alive = during
    for b in graph.reads[place] | graph.makes[place]:
        if not graph.readers[b] & ~done:
            alive -= graph.sizes[b]
    return _State(max(state.peak, during), alive, done, state.ready, (place, state))


def _ready(graph: _Graph, state: _State) -> _State:
    """With the operators that became ready by the last one."""
    assert state.path is not None
    place = state.path[0]
    fresh = [p for p in graph.after[place] if not graph.before[p] & ~state.done]
    return state._replace(ready=tuple(sorted([*(p for p in state.ready if p != place), *fresh])))


def _peak(graph: _Graph, places: range) -> int:
    state = _start(graph)
    for place in places:
        state = _run(graph, state, place)
    return state.peak


def _search(graph: _Graph, limit: int) -> tuple[int, ...] | None:
    """An order with a peak below ``limit``, the lowest found; None without one."""
    total = len(graph.before)
    effort = max(_EFFORT // max(total, 1), _LEAST_EFFORT)
    states = [_start(graph)]
    for _ in range(total):
        known: dict[int, _State] = {}
        spent = 0
        for state in states:
            if spent >= effort and known:
                break
            nexts = [_run(graph, state, place) for place in state.ready]
            spent += len(nexts)
            free = [s for s in nexts if s.alive <= state.alive and s.peak == state.peak]
            for made in free[:1] or nexts:
                if made.peak < limit and (
                    made.done not in known or made.peak < known[made.done].peak
                ):
                    known[made.done] = made
        if not known:
            return None
        states = [_ready(graph, s) for s in sorted(known.values(), key=lambda s: s[:2])]
    path, found = states[0].path, list[int]()
    while path is not None:
        found.append(path[0])
        path = path[1].path
    return tuple(reversed(found))
