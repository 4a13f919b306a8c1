"""Compute what is computed twice once.

Problem: exporters write a mean, a scale or a transposed weight anew wherever it is used; each copy
is a launch and a tensor, and a spelling with a copy in the middle matches no pattern.

Rewrite: for two nodes of one operator with the same inputs and attributes, f(x) and f(x):
the users of the second read the first.

Scope: deterministic operators without subgraphs, in one graph; small constants are the same when
their type, shape and bytes are. Left alone: two outputs of the graph (each needs a value of its
own), readers of a value that has more than 200 of them, quantisation operators (they are repeated
on purpose), and a layer, a normalisation or a Pad whose readers differ: shared, it could take none
of them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.fold import LAYERS
from edgefuse.graph.rule import ANY, PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, is_constant

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike",
          "RandomUniform", "RandomUniformLike")  # fmt: skip
QUANTISATION = ("DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear")
TAKEN_IN = (*LAYERS, "BatchNormalization", "Pad")
SMALL_BYTES = 4096
MOST_READERS = 200  # each is compared with each


def match(node: ir.Node, context: Context) -> Verdict:
    if node.op_type in RANDOM + QUANTISATION or not _is_plain(node):
        return None
    twin = _twin(node)
    if twin is None:
        return None
    if any(o.is_graph_output() and t.is_graph_output() for o, t in zip(node.outputs, twin.outputs)):
        return _refuse(node, twin, f"{describe(node)} and {describe(twin)} are both outputs")
    if node.op_type in TAKEN_IN and not _same_readers(node, twin):
        return _refuse(
            node,
            twin,
            f"{describe(node)} computes the same as {describe(twin)}, but their readers differ: "
            "shared, it could join neither",
        )
    return Match((twin, node))


def _is_plain(node: ir.Node) -> bool:
    return bool(node.inputs) and not any(
        a.is_ref() or a.type.name in ("GRAPH", "GRAPHS") for a in node.attributes.values()
    )


def _twin(node: ir.Node) -> ir.Node | None:
    """The first node before this one in its graph that computes the same."""
    computed = [v for v in node.inputs if v is not None and not is_constant(v)]
    if not computed:
        return None
    key = min(computed, key=lambda v: len(v.uses()))
    if len(key.uses()) > MOST_READERS:
        return None
    same = [
        use.node
        for use in key.uses()
        if use.node.op_type == node.op_type
        and use.node is not node
        and use.node.graph is node.graph
        and _equal(use.node, node)
    ]
    if not same:
        return None
    wanted = {*same, node}
    first = next(n for n in node.graph if n in wanted)
    return None if first is node else first


def _equal(left: ir.Node, right: ir.Node, beside: int = -1) -> bool:
    """Same operator, attributes and inputs, the input at place ``beside`` not counted."""
    if (left.op_type, left.domain, left.overload) != (right.op_type, right.domain, right.overload):
        return False
    if len(left.inputs) != len(right.inputs) or len(left.outputs) != len(right.outputs):
        return False
    if any(bool(a.name) != bool(b.name) for a, b in zip(left.outputs, right.outputs)):
        return False
    return _same_attributes(left, right) and all(
        _same_value(a, b)
        for place, (a, b) in enumerate(zip(left.inputs, right.inputs))
        if place != beside
    )


def _same_value(left: ir.Value | None, right: ir.Value | None) -> bool:
    if left is right:
        return True
    if left is None or right is None or not (is_constant(left) and is_constant(right)):
        return False
    a, b = left.const_value, right.const_value
    if a.dtype != b.dtype or list(a.shape) != list(b.shape) or a.nbytes > SMALL_BYTES:
        return False
    return bool(a.dtype.name != "STRING" and a.tobytes() == b.tobytes())


def _same_attributes(left: ir.Node, right: ir.Node) -> bool:
    if set(left.attributes) != set(right.attributes):
        return False
    return all(_same_attribute(a, right.attributes[name]) for name, a in left.attributes.items())


def _same_attribute(left: ir.Attr, right: ir.Attr) -> bool:
    if left.type != right.type or left.is_ref() or right.is_ref():
        return False
    simple = ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS")
    if left.type.name not in simple:
        return False
    a, b = left.value, right.value
    return bool(list(a) == list(b) if left.type.name.endswith("S") else a == b)


def _same_readers(node: ir.Node, twin: ir.Node) -> bool:
    """Whether for every reader of one there is one of the other that would be merged with it."""
    if any(o.is_graph_output() for o in (*node.outputs, *twin.outputs)):
        return False
    here = [u for o in node.outputs for u in o.uses()]
    there = [u for o in twin.outputs for u in o.uses()]
    if any(u.node.graph is not node.graph for u in (*here, *there)):
        return False
    return all(any(_would_merge(a, b) for b in there) for a in here) and all(
        any(_would_merge(a, b) for a in here) for b in there
    )


def _would_merge(left: ir.Usage, right: ir.Usage) -> bool:
    """Whether two readers would be one if what they read were one."""
    a, b = left.node, right.node
    if a is b or left.idx != right.idx or not _equal(a, b, beside=left.idx):
        return False
    if a.op_type in RANDOM + QUANTISATION or not _is_plain(a):
        return False
    if any(o.is_graph_output() and t.is_graph_output() for o, t in zip(a.outputs, b.outputs)):
        return False
    return a.op_type not in TAKEN_IN or _same_readers(a, b)


def _refuse(node: ir.Node, twin: ir.Node, reason: str) -> Refusal:
    return Refusal(reason, (str(node.name), str(twin.name)))


def rewrite(found: Match, builder: GraphBuilder) -> None:
    twin, node = found.nodes
    builder.merge(node, twin)


PASS = PASSES.add(
    Pass(
        name="remove_duplicate",
        summary="What is computed twice from the same values is computed once.",
        phase="normalise",
        anchors=(ANY,),
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants", "remove_cast"),
        example="""(float[1,4] x) => (float[1,4] y) {
            a = Sigmoid(x)
            b = Sigmoid(x)
            c = Mul(x, a)
            y = Add(c, b) }""",
    ),
    __name__,
)
