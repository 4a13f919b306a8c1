"""Pointwise operators that feed one another, as one kernel.

Problem: each pointwise operator on its own reads whole tensors and writes one; a chain of n of them
moves every element n times and is n launches, for a handful of arithmetic.

Rewrite: f_n(... f_2(f_1(x, ...), ...), ...) = edgefuse.<F1F2...Fn>(x, ...), element by element; the
largest region of such operators, one result, called Pointwise beyond six of them.

Scope: unary and binary operators, comparisons, Where, Clip and PRelu, of floating types (masks may
be boolean inside), with broadcast inputs from outside; inner values that are read inside alone.
Left alone: an operator whose result is smaller than the region's (it would be computed again for
each element: the scale of squeeze-and-excitation), operators on integers, unknown shapes; nothing
grows beyond 32 operators or 8 inputs. What stands between other operators is no candidate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.pointwise import POINTWISE, running_order
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    FLOATS,
    at_run_time,
    describe,
    is_constant,
    is_float,
    origin,
    same_shape,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

MAX_NODES = 32
MAX_INPUTS = 8
LONGEST_NAME = 6
DATA = (*FLOATS, "BOOL")


def match(node: ir.Node, context: Context) -> Verdict:
    best: tuple[ir.Node, ...] = ()
    for last in _followers(node):
        if not is_float(last.outputs[0]):
            continue
        region = _region(last)
        fits = len(region) <= MAX_NODES and _inputs(region) <= MAX_INPUTS
        if fits and node in region and len(region) > len(best):
            best = region
    if not best:
        return _why_not(node)
    ordered = running_order(best[0].outputs[0], best)
    short = len(ordered) <= LONGEST_NAME
    return Match(ordered, {"name": "".join(n.op_type for n in ordered) if short else "Pointwise"})


def _followers(node: ir.Node) -> list[ir.Node]:
    """What a region with the node may end in, nearest first."""
    if _unfit(node):
        return []
    found: dict[ir.Node, None] = {}
    pending = [node]
    while pending and len(found) < 2 * MAX_NODES:
        value = pending.pop(0).outputs[0]
        if _open(value):
            continue
        for use in value.uses():
            if use.node not in found:
                found[use.node] = None
                pending.append(use.node)
    return list(found)


def _region(last: ir.Node) -> tuple[ir.Node, ...]:
    """The largest region that ends in a node, that one first; at most one more than may be."""
    result = last.outputs[0]
    members = {last: None}
    pending = [v for v in last.inputs if v is not None]
    while pending and len(members) <= MAX_NODES:
        value = pending.pop()
        node = value.producer()
        if node is None or node in members or node.graph is not last.graph or _unfit(node):
            continue
        inside = not value.is_graph_output() and all(u.node in members for u in value.uses())
        if inside and same_shape(value, result):
            members[node] = None
            pending += [v for v in node.inputs if v is not None]
    return tuple(members)


def _inputs(region: tuple[ir.Node, ...]) -> int:
    """Tensors that the region reads from outside; constants of one value are no tensors."""
    made = {node.outputs[0] for node in region}
    read = {v for node in region for v in node.inputs if v is not None and v not in made}
    return sum(not is_constant(v) or v.const_value.size > 1 for v in read)


def _is_pointwise(node: ir.Node | None) -> bool:
    return node is not None and node.domain == "" and node.op_type in POINTWISE


def _unfit(node: ir.Node) -> Refusal | None:
    """Why the node can be in no region; None when it can."""
    name = str(node.name)
    if not _is_pointwise(node) or not at_run_time(node):
        return Refusal(f"{describe(node)} is not pointwise", (name,))
    for value in (*node.outputs, *node.inputs):
        if value is None or is_constant(value):
            continue
        if value.dtype is None or value.dtype.name not in DATA:
            kind = "an unknown type" if value.dtype is None else value.dtype.name.lower()
            return Refusal(f"{describe(node)} works on {kind} ({value.name})", (name,))
    value = node.outputs[0]
    if value.shape is None:
        return Refusal(
            f"the shape of the output of {describe(node)} ({value.name}) is not known", (name,)
        )
    return None


def _open(value: ir.Value) -> Refusal | None:
    """Why the value cannot be inside a region; None when all that reads it may be in it too."""
    maker = value.producer()
    readers = sorted({use.node for use in value.uses()}, key=lambda n: str(n.name))
    if maker is None or not readers:
        return Refusal(f"{value.name} is no result of an operator", ())
    name, source = str(maker.name), f"the output of {describe(maker)}"
    chained = [n for n in readers if _is_pointwise(n) or _is_chain(n)]
    outside = value.is_graph_output() or any(n.graph is not maker.graph for n in readers)
    if outside or len(chained) < len(readers):
        return Refusal(f"{source} {why_shared(value, (chained or readers)[0])}", (name,))
    for reader in readers:
        made = reader.outputs[0]
        if not same_shape(value, made):
            return Refusal(
                f"{source} ({value.name}) has the shape {_shape(value)} and {describe(reader)} "
                f"makes {_shape(made)} of it: it would be computed again for each element",
                (name,),
            )
        if _is_chain(reader):
            return Refusal(
                f"{source} ({value.name}) feeds {describe(reader)}, a group that takes no more",
                (name,),
            )
        if (found := _unfit(reader)) is not None:
            return Refusal(
                f"{source} ({value.name}) feeds {describe(reader)}, and {found.reason}", (name,)
            )
    return None


def _is_chain(node: ir.Node) -> bool:
    """Whether the node is a group of pointwise operators alone."""
    return node.domain != "" and all(op in POINTWISE for op in origin(node)[1])


def _shape(value: ir.Value) -> str:
    return "unknown" if value.shape is None else str(list(value.shape))


def _why_not(node: ir.Node) -> Refusal | None:
    """Why the node stays apart from the pointwise operators that read it."""
    uses = {use.node for use in node.outputs[0].uses()}
    readers = sorted(
        (n for n in uses if _is_pointwise(n) or _is_chain(n)), key=lambda n: str(n.name)
    )
    if not readers or not at_run_time(node):
        return None
    nodes = (str(node.name), *(str(n.name) for n in readers))
    if (found := _unfit(node) or _open(node.outputs[0])) is not None:
        return replace(found, nodes=nodes)
    if len(readers) > 1:
        both = " and ".join(describe(n) for n in readers)
        return Refusal(
            f"{both} read the output of {describe(node)} ({node.outputs[0].name}) and have no "
            f"common result within {MAX_NODES} operators and {MAX_INPUTS} inputs",
            nodes,
        )
    reader = readers[0]
    return Refusal(
        f"{describe(node)} and {describe(reader)} would be a region of more than {MAX_NODES} "
        f"operators or {MAX_INPUTS} inputs, or one without a result of a floating type",
        nodes,
    )


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, name=found.data["name"])


PASS = PASSES.add(
    Pass(
        name="fuse_pointwise_chain",
        summary="Pointwise operators that feed one another become one group.",
        phase="fuse",
        anchors=POINTWISE,
        match=match,
        rewrite=rewrite,
        after=(
            "fuse_add_activation",
            "fuse_attention",
            "fuse_conv_activation",
            "fuse_linear",
            "fuse_norm_activation",
            "fuse_norm_spelling",
            "fuse_residual_add",
        ),
        instead_of=("fuse_norm_spelling", "replace_norm_spelling"),
        example="""(float[1,4,8,8] x, float[1,4,1,1] x2) => (float[1,4,8,8] y) {
            a = Exp(x)
            b = Mul(a, x2)
            y = Tanh(b) }""",
    ),
    __name__,
)
