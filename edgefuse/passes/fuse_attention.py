"""Scaled dot-product attention as one group.

Problem: softmax(c q k^T + mask) v as single operators writes and reads the scores, one number for
each pair of tokens, up to five times; a kernel that keeps rows of scores to itself writes none.

Rewrite: MatMul(softmax(MatMul(q, k^T) c + mask), v) = edgefuse.Attention(q, k, v, ...), with c and
mask optional; the body keeps every operator, so the numbers stay bit for bit.

Scope: two MatMuls with a Softmax over the last axis between them; constant scalar scales before or
behind the first MatMul, on q and on k; masks that are added or chosen by Where, constant or
computed; Casts; the exporter's guard against rows of NaN; the transposition of k, also as Reshape,
Transpose, Reshape, where nothing else reads it. Left alone: a softmax over another axis,
probabilities that something else reads (returned attention weights), a scale that is computed.
The splitting into heads stays outside: it moves data or only views it. So do the projections of q,
k and v: as one product they would be exact, but their results would share one range, which costs
int8 accuracy, and be split again by a copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgefuse.graph.group import fuse_nodes
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    attribute,
    constant,
    describe,
    is_constant,
    reads_alone,
    same_shape,
    why_not_constant,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

SOFTMAX_FLATTENS_BEFORE = 13
MAX_STEPS = 8


def match(node: ir.Node, context: Context) -> Verdict:
    after = _weighted_sum(node)
    if after is None or node.inputs[0] is None:
        return None
    before = _scores(node, 0)
    if isinstance(before, Refusal):
        return replace(before, nodes=(str(node.name), *before.nodes))
    if before is None:
        return None
    if isinstance(after, Refusal):
        return after
    product = before[-1]
    if (refusal := _other_axis(node, context)) is not None:
        return refusal
    inside = {node, *before, *after, *_queries(product), *_keys(product)}
    return Match(tuple(n for n in node.graph if n in inside))


def _weighted_sum(softmax: ir.Node) -> list[ir.Node] | Refusal | None:
    """What leads from the probabilities to the product with v; None when nothing does."""
    nodes: list[ir.Node] = []
    value = softmax.outputs[0]
    for _ in range(MAX_STEPS):
        readers = {use.node for use in value.uses() if use.node.domain == ""}
        guard = _nan_guard(value, readers)
        if guard is not None:
            nodes += guard
            value = guard[-1].outputs[0]
            continue
        casts = [n for n in readers if n.op_type == "Cast"]
        if len(casts) == 1 and reads_alone(casts[0], value):
            nodes.append(casts[0])
            value = casts[0].outputs[0]
            continue
        products = [n for n in readers if n.op_type == "MatMul" and n.inputs[0] is value]
        if not products:
            return None
        if not reads_alone(products[0], value):
            return _refuse(
                softmax,
                f"the output of {describe(value.producer())} {why_shared(value, products[0])}",
                "do not return the attention weights (need_weights=False)",
            )
        return [*nodes, products[0]]
    return None


def _nan_guard(value: ir.Value, readers: set[ir.Node]) -> list[ir.Node] | None:
    """IsNaN and Where, which put 0 for rows without any key."""
    kinds = {n.op_type: n for n in readers}
    if len(readers) != 2 or set(kinds) != {"IsNaN", "Where"} or value.is_graph_output():
        return None
    test, choice = kinds["IsNaN"], kinds["Where"]
    alone = reads_alone(choice, test.outputs[0]) and len(list(value.uses())) == 2
    given = choice.inputs[0] is test.outputs[0] and choice.inputs[2] is value
    return [test, choice] if alone and given and test.graph is choice.graph else None


def _scores(reader: ir.Node, index: int, depth: int = 0) -> list[ir.Node] | Refusal | None:
    """What leads from the product of q and k to an input, last one first; None: no such product."""
    value = reader.inputs[index]
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.graph is not reader.graph or depth > MAX_STEPS:
        return None
    behind: list[ir.Node] = []
    if node.op_type == "MatMul" and is_constant(node.inputs[1]):
        return None  # a linear layer, not queries against keys
    if node.op_type != "MatMul":
        places = {"Add": (0, 1), "Cast": (0,), "Div": (0,), "Mul": (0, 1), "Where": (1, 2)}
        sides = places.get(str(node.op_type), (0,) if node.inputs else ())
        ways = [(k, way) for k in sides if (way := _scores(node, k, depth + 1)) is not None]
        if not ways:
            return None
        place, found = ways[0]
        if isinstance(found, Refusal):
            return found
        behind = found
        if (refusal := _not_between(node, place)) is not None:
            return refusal
    if not reads_alone(reader, value):
        return _refuse(node, f"the output of {describe(node)} {why_shared(value, reader)}")
    return [node, *behind]


def _not_between(node: ir.Node, place: int) -> Refusal | None:
    """Why the node is neither scale nor mask nor a change of view."""
    if node.op_type in ("Add", "Cast", "Where"):
        return None
    if node.op_type in ("Div", "Mul"):
        scale = node.inputs[1 - place]
        array = constant(scale)
        if array is None:
            what, remedy = why_not_constant(scale)
            return _refuse(node, f"the scale of {describe(node)} {what}", remedy)
        if array.size != 1:
            return _refuse(node, f"the scale ({scale.name}) of {describe(node)} is no scalar")
        return None
    if node.op_type == "Reshape" and _keeps_last_axis(node):
        return None
    return _refuse(
        node, f"{describe(node)} between the scores and the Softmax is neither scale nor mask"
    )


def _keeps_last_axis(node: ir.Node) -> bool:
    before, after = node.inputs[0].shape, node.outputs[0].shape
    if not before or not after:
        return False
    known = isinstance(after[-1], int) or getattr(after[-1], "value", None) is not None
    return known and bool(before[-1] == after[-1])


def _other_axis(softmax: ir.Node, context: Context) -> Refusal | None:
    axis = attribute(softmax, "axis", 1 if context.opset < SOFTMAX_FLATTENS_BEFORE else -1)
    shape = softmax.inputs[0].shape
    if axis == -1 or (shape is not None and axis == len(shape) - 1):
        return None
    return _refuse(
        softmax, f"{describe(softmax)} is over axis {axis}, and not over the last one, the keys"
    )


def _queries(product: ir.Node) -> list[ir.Node]:
    """Constant scalar scales on q."""
    nodes: list[ir.Node] = []
    reader, value = product, product.inputs[0]
    while (scale := _scaling(value, reader)) is not None:
        nodes.append(scale)
        reader, value = scale, _scaled(scale)
    return nodes


def _keys(product: ir.Node) -> list[ir.Node]:
    """Constant scalar scales on k, and its transposition."""
    nodes: list[ir.Node] = []
    reader, value = product, product.inputs[1]
    while True:
        if (scale := _scaling(value, reader)) is not None:
            nodes.append(scale)
            reader, value = scale, _scaled(scale)
        elif turned := _transposition(value, reader):
            nodes += turned
            reader, value = turned[-1], turned[-1].inputs[0]
        else:
            return nodes


def _scaling(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The Mul or Div by one constant number that made the value, for the reader alone."""
    node = _own_producer(value, reader)
    if node is None or node.op_type not in ("Mul", "Div"):
        return None
    scale = node.inputs[1] if node.op_type == "Div" or is_constant(node.inputs[1]) else (
        node.inputs[0]
    )  # fmt: skip
    if not is_constant(scale) or scale.const_value.size != 1 or is_constant(_scaled(node)):
        return None
    return node if same_shape(_scaled(node), node.outputs[0]) else None


def _scaled(node: ir.Node) -> ir.Value:
    constant_first = node.op_type == "Mul" and is_constant(node.inputs[0])
    value: ir.Value = node.inputs[1 if constant_first else 0]
    return value


def _transposition(value: ir.Value | None, reader: ir.Node) -> list[ir.Node]:
    """What swaps the last two axes, last one first; empty when nothing does."""
    last = _own_producer(value, reader)
    if last is None:
        return []
    if last.op_type == "Transpose":
        return [last] if _swaps(last) else []
    turn = _own_producer(last.inputs[0], last) if last.op_type == "Reshape" else None
    first = _own_producer(turn.inputs[0], turn) if turn is not None else None
    if turn is None or first is None or turn.op_type != "Transpose" or first.op_type != "Reshape":
        return []
    old, new = first.inputs[0].shape, last.outputs[0].shape
    middle = first.outputs[0].shape
    if old is None or new is None or middle is None or not _swaps(turn) or len(old) != len(new):
        return []
    kept = [*zip(old[:-2], new[:-2]), (old[-1], new[-2]), (old[-2], new[-1])]
    kept += [(old[-1], middle[-1]), (old[-2], middle[-2])]
    same = len(old) > 1 and all(_equal(a, b) for a, b in kept)
    return [last, turn, first] if same else []


def _swaps(transpose: ir.Node) -> bool:
    """Whether only the last two axes change places."""
    perm = list(attribute(transpose, "perm", []))
    if not perm:
        shape = transpose.inputs[0].shape
        return shape is not None and len(shape) == 2
    rank = len(perm)
    return rank >= 2 and perm == [*range(rank - 2), rank - 1, rank - 2]


def _equal(left: object, right: object) -> bool:
    known = isinstance(left, int) or getattr(left, "value", None) is not None
    return known and left == right


def _own_producer(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.graph is not reader.graph:
        return None
    return node if reads_alone(reader, value) else None


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    fuse_nodes(builder, found.nodes, name="Attention")


PASS = PASSES.add(
    Pass(
        name="fuse_attention",
        summary="Scaled dot-product attention with scale and mask becomes one group.",
        phase="fuse",
        anchors=("Softmax",),
        match=match,
        rewrite=rewrite,
        example="""(float[1,2,6,4] xq, float[1,2,6,4] xk, float[1,2,6,4] xv) =>
            (float[1,2,6,4] y) {
            scale = Constant<value_float = 0.5>()
            t = Transpose<perm = [0, 1, 3, 2]>(xk)
            s = MatMul(xq, t)
            m = Mul(s, scale)
            p = Softmax(m)
            y = MatMul(p, xv) }""",
    ),
    __name__,
)
