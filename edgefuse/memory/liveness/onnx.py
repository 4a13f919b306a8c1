"""Which bytes of an ONNX graph are alive when, unfused and fused.

Time is the place of an operator in the graph's order, those left out that a runtime computes once,
from constants and static shapes, when it loads the model (their results lie with the weights). A
fused group is one step: what its operators hand to each other does not exist. A buffer lives from
``first`` to ``last``, both included; model inputs are there at 0, model outputs to the last step.

Sharing: a view (Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout) is its operand under
another name: one buffer. In place, where :class:`~edgefuse.memory.liveness.sharing.Sharing` allows
it: an element-wise operator, or a group in which an operand goes through element-wise operators
alone (the residual of ConvAdd), writes over an operand of its own shape that nobody reads later.
An element of such an operand is read for the same element of the result only. Model inputs are
written over only where their place need not be kept; model outputs never.

Subgraphs (If, Loop, Scan): every tensor of a body, of both branches, counts throughout the step of
the operator that holds it. That is more than a runtime needs at once, never less.

Scope: static shapes; of lists of tensors those that a split makes. Not in it: weights
(initialisers, also those that a caller may override), scratch of kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from edgefuse.errors import StageError
from edgefuse.graph.clean import graphs_of
from edgefuse.graph.cost import load_time
from edgefuse.graph.flops import POINTWISE, is_operator
from edgefuse.graph.normalise import DOMAIN
from edgefuse.graph.summary import is_view
from edgefuse.graph.values import describe
from edgefuse.memory.arena import Live, aligned, unique_names
from edgefuse.memory.liveness.sharing import Sharing

if TYPE_CHECKING:
    import onnx_ir as ir

_MOST_BYTES = 2**63 - 1
# Views cost nothing on any runtime; the inputs are the caller's.
ONNX = Sharing(alignment=1, keeps_inputs=True, reshapes=True, elementwise=False)
ONNX_IN_PLACE = Sharing(alignment=1, keeps_inputs=True, reshapes=True, elementwise=True)


@dataclass(frozen=True, eq=False)
class Step:
    """One launch: an operator, a fused group, or several operators run as one.

    Attributes:
        label: ``Conv#5``: what it is, and its place.
        nodes: the operators.
        reads: computed values and model inputs, bodies included; weights are left out.
        makes: what it hands out.
        holds: tensors of its subgraphs.
        view_of: the value that its result is another name of.
        over: values that its only result may be written over.
    """

    label: str
    nodes: tuple[ir.Node, ...]
    reads: tuple[ir.Value, ...]
    makes: tuple[ir.Value, ...]
    holds: tuple[ir.Value, ...] = ()
    view_of: ir.Value | None = None
    over: tuple[ir.Value, ...] = ()


def live_buffers(
    model: ir.Model, sharing: Sharing = ONNX, steps: Sequence[Step] | None = None
) -> tuple[Live, ...]:
    """Every buffer of the arena, in the order of their making; sizes rounded up.

    Args:
        model: from :func:`edgefuse.graph.normalise.prepare`, its groups kept or spelt out.
        steps: another way to run it; the graph's own order by default.

    Raises:
        StageError: a shape that is known only at run time, no elements, more bytes than an address
            can tell, a value without a size, or a graph with a cycle; names the tensor.
    """
    if steps is None:
        steps = steps_of(model)
    spans = _spans(model, steps, sharing)
    nbytes = {value: _nbytes(value) for value in spans}
    owner = _owners(model, steps, spans, nbytes, sharing)
    names = dict(zip(spans, unique_names(str(value.name or "") for value in spans), strict=True))
    shared: dict[ir.Value, list[ir.Value]] = {}
    for value in spans:
        shared.setdefault(owner[value], []).append(value)
    return tuple(
        Live(
            name=names[root],
            size_bytes=aligned(max(nbytes[v] for v in values), sharing.alignment),
            first=min(spans[v][0] for v in values),
            last=max(spans[v][1] for v in values),
            tensors=tuple(names[v] for v in values),
        )
        for root, values in shared.items()
    )


def steps_of(model: ir.Model) -> tuple[Step, ...]:
    """The operators that run for every input, in the graph's order.

    Raises:
        StageError: the graph has a cycle, or its nodes are in no order in which they can run.
    """
    early = load_time(model)
    _refuse_disorder(model.graph)
    nodes = [node for node in model.graph if node not in early]
    return tuple(step_of(model, (node,), early, place) for place, node in enumerate(nodes))


def step_of(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    early: Collection[ir.Node],
    place: int,
    inner: Collection[ir.Node] = (),
) -> Step:
    """The step that runs ``nodes``, in graph order, as one.

    Args:
        early: what is computed when the model is loaded.
        inner: operators whose results are not handed out even if others read them, since those
            others compute them too.
    """
    inside = {value for node in nodes for value in node.outputs}
    held = [value for node in nodes for value in _body_values(node)]
    bodies = {*held}
    given = [v for n in nodes for v in (*n.inputs, *_captured(n)) if v is not None]
    reads = tuple(
        dict.fromkeys(
            v for v in given if v not in inside and v not in bodies and not _is_weight(v, early)
        )
    )
    members = set(nodes)
    makes = tuple(
        value
        for node in nodes
        for value in node.outputs
        if value.name
        and node not in inner
        and (
            len(nodes) == 1
            or value.is_graph_output()
            or any(use.node not in members for use in value.uses())
        )
    )
    alone = nodes[0] if len(nodes) == 1 else None
    view = alone is not None and is_view(alone) and alone.inputs[0] in reads
    return Step(
        label=f"{'+'.join(str(node.op_type) for node in nodes)}#{place}",
        nodes=tuple(nodes),
        reads=reads,
        makes=makes,
        holds=tuple(held),
        view_of=alone.inputs[0] if alone is not None and view else None,
        over=() if view or held else tuple(_written_over(model, nodes, reads, makes)),
    )


def _is_weight(value: ir.Value, early: Collection[ir.Node]) -> bool:
    return value.const_value is not None or value.producer() in early


def _refuse_disorder(graph: ir.Graph) -> None:
    """Raise unless every node comes after those whose results it reads."""
    place = {node: index for index, node in enumerate(graph)}
    needs = {
        node: [p for v in (*node.inputs, *_captured(node)) if v and (p := v.producer()) in place]
        for node in place
    }
    wrong = next((n for n, before in needs.items() if any(place[p] >= place[n] for p in before)), 0)
    if not wrong:
        return
    waiting = {node: set(before) for node, before in needs.items()}
    free = [node for node, before in waiting.items() if not before]
    readers: dict[ir.Node, list[ir.Node]] = {}
    for node, before in waiting.items():
        for producer in before:
            readers.setdefault(producer, []).append(node)
    while free:
        done = free.pop()
        del waiting[done]
        for node in readers.get(done, ()):
            waiting[node].discard(done)
            if not waiting[node]:
                free.append(node)
    if waiting:
        names = ", ".join(describe(node) for node in list(waiting)[:3])
        raise StageError(
            f"the graph has a cycle, through {names}: no operator of it can run first",
            hint="unroll the recurrence, or express it as a Loop",
            where=str(graph.name or "graph"),
        )
    raise StageError(
        f"{describe(wrong)} comes before an operator whose result it reads",
        hint="sort the graph's nodes in the order in which they run",
        where=str(graph.name or "graph"),
    )


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        for graph in graphs_of(attribute):
            yield graph
            for inner in graph:
                yield from _bodies(inner)


def _body_values(node: ir.Node) -> Iterator[ir.Value]:
    """What a node's subgraphs are given and compute, at any depth."""
    for graph in _bodies(node):
        yield from (v for v in graph.inputs if v.const_value is None)
        yield from (v for inner in graph for v in inner.outputs if v.name)


def _captured(node: ir.Node) -> Iterator[ir.Value]:
    """Values from outside that a node's subgraphs read or hand on."""
    graphs = list(_bodies(node))
    own = {v for graph in graphs for v in (*graph.inputs, *graph.initializers.values())}
    own |= {v for graph in graphs for inner in graph for v in inner.outputs}
    for graph in graphs:
        used = (*(v for inner in graph for v in inner.inputs), *graph.outputs)
        yield from (v for v in used if v is not None and v not in own)


def _written_over(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    reads: Sequence[ir.Value],
    makes: Sequence[ir.Value],
) -> Iterator[ir.Value]:
    """What the result may be written over, as far as the operators go."""
    if len(makes) != 1:
        return
    inner, names = list(nodes), {value: value for value in reads}
    goal = makes[0]
    if len(nodes) == 1 and nodes[0].domain == DOMAIN:
        function = model.functions[nodes[0].op_identifier()]
        inner = list(function)
        formals = zip(function.inputs, nodes[0].inputs, strict=False)
        names = {actual: formal for formal, actual in formals if actual is not None}
        goal = function.outputs[0]
    for value in reads:
        if _shape(value) == _shape(makes[0]) and _pointwise_only(names[value], inner, goal):
            yield value


def _pointwise_only(start: ir.Value, nodes: Sequence[ir.Node], goal: ir.Value) -> bool:
    """Whether a value reaches the result through element-wise operators alone."""
    reached = {start}
    for node in nodes:
        if reached.isdisjoint(node.inputs):
            continue
        if node.domain != "" or node.op_type not in POINTWISE:
            return False
        reached.add(node.outputs[0])
    return goal in reached


def _spans(
    model: ir.Model, steps: Sequence[Step], sharing: Sharing
) -> dict[ir.Value, tuple[int, int]]:
    """First and last step of each value, in the order of their making."""
    end = max(len(steps) - 1, 0)
    inputs = [value for value in model.graph.inputs if value.const_value is None]
    first: dict[ir.Value, int] = dict.fromkeys(inputs, 0)
    last: dict[ir.Value, int] = dict.fromkeys(inputs, end if sharing.keeps_inputs else 0)
    for place, step in enumerate(steps):
        for value in (*step.makes, *step.holds):
            first[value] = last[value] = place
        for value in step.reads:
            last[value] = max(last.get(value, place), place)
    last |= {value: end for value in model.graph.outputs if value in first}
    return {value: (begin, last[value]) for value, begin in first.items()}


def _owners(
    model: ir.Model,
    steps: Sequence[Step],
    spans: dict[ir.Value, tuple[int, int]],
    nbytes: dict[ir.Value, int],
    sharing: Sharing,
) -> dict[ir.Value, ir.Value]:
    """For each value the first value of its buffer."""
    owner = {value: value for value in spans}
    until = {value: last for value, (_, last) in spans.items()}
    outputs = set(model.graph.outputs)
    kept = outputs | (set(model.graph.inputs) if sharing.keeps_inputs else set())

    def join(result: ir.Value, root: ir.Value) -> None:
        owner[result] = root
        if result in outputs:
            kept.add(root)
        until[root] = max(until[root], spans[result][1])

    for place, step in enumerate(steps):
        if step.view_of is not None and sharing.reshapes:
            join(step.makes[0], owner[step.view_of])
        if not sharing.elementwise:
            continue
        for value in step.over:
            root = owner[value]
            # The same buffer may be read under several names.
            names = [v for v in step.reads if owner[v] is root]
            free = until[root] == place and root not in kept
            if free and nbytes[value] == nbytes[step.makes[0]] and set(names) <= set(step.over):
                join(step.makes[0], root)
                break
    return owner


def _shape(value: ir.Value) -> tuple[object, ...] | None:
    return None if value.shape is None else tuple(value.shape)


def _nbytes(value: ir.Value) -> int:
    producer = value.producer()
    if producer is not None and is_operator(producer, "SplitToSequence"):
        return _nbytes(producer.inputs[0])  # The parts have no shape together, but the bytes do.
    shape = _shape(value)
    if value.dtype is None or value.dtype.name in ("STRING", "UNDEFINED"):
        problem, hint = "holds values without a fixed size", "leave it out of the graph"
    elif shape is None or not all(isinstance(n, int) and n >= 0 for n in shape):
        problem = "has a shape known only at run time"
        hint = "export the model with fixed input shapes; loops and selections whose results vary "
        hint += "cannot be planned"
    else:
        size = -(-prod(int(str(extent)) for extent in shape) * int(value.dtype.bitwidth) // 8)
        if 0 < size <= _MOST_BYTES:
            return size
        if size:
            problem, hint = "is larger than an address can tell", "make the input smaller"
        else:
            problem, hint = "has no elements", "leave the tensor out"
    shown = "of unknown rank" if shape is None else f"[{', '.join(map(str, shape))}]"
    raise StageError(
        f"tensor {value.name!r} {shown} {problem}: its memory cannot be planned",
        hint=hint,
        where=describe(producer) if producer is not None else f"input {value.name!r}",
    )
