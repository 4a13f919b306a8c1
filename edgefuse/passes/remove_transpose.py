"""Take out transpositions that undo each other.

Problem: models and converters move channels to the end and back; each transposition copies the
whole tensor.

Rewrite, with p, q permutations: Transpose<q>(Transpose<p>(x)) = Transpose<p[q]>(x), where
p[q][i] = p[q[i]]; Transpose of the identity permutation = x;
Transpose<q>(f(Transpose<p>(x))) = f(x) where p[q] is the identity and f a chain of operators that
compute each element from that element alone.

Scope: constants inside the chain are scalars. The inner one goes when nothing else reads it; where
something does, the pair is replaced only when it cancels. Left alone: chains that another operator
reads in the middle, or with a constant for each channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.pointwise import POINTWISE
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    attribute,
    describe,
    is_constant,
    reads_alone,
    replaceable_by,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    source, outer = node.inputs[0], _permutation(node)
    if source is None or outer is None:
        return None
    if outer == sorted(outer):
        return _removed((node,), node, source)
    chain = _chain(source, node)
    inner = _maker(chain[0].inputs[_place(chain[0])] if chain else source)
    if inner is None or inner.op_type != "Transpose":
        return None
    first, origin = _permutation(inner), inner.inputs[0]
    if first is None or origin is None:
        return None
    together = [first[axis] for axis in outer]
    cancels = together == sorted(together)
    if not chain and cancels:
        return _removed((node,), node, origin)
    if chain and not cancels:
        return None
    reader = chain[0] if chain else node
    if not reads_alone(reader, inner.outputs[0]):
        return _refuse(node, inner, reader)
    if not chain:
        return Match((inner, node), {"source": origin, "perm": together})
    return Match((inner, *chain, node), {"origin": origin, "perm": outer})


def _removed(nodes: tuple[ir.Node, ...], node: ir.Node, source: ir.Value) -> Verdict:
    if not replaceable_by(node.outputs[0], source):
        return None
    return Match(nodes, {"source": source, "perm": None})


def _permutation(node: ir.Node) -> list[int] | None:
    """The axes that a Transpose reads, in order; None when the rank is unknown."""
    given = attribute(node, "perm", None)
    if given is not None:
        return [int(axis) for axis in given]
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    return list(range(len(source.shape)))[::-1]


def _maker(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == "" else None


def _chain(value: ir.Value, reader: ir.Node) -> tuple[ir.Node, ...]:
    """Pointwise operators in front of ``reader`` that nothing else reads, the first one first."""
    nodes: list[ir.Node] = []
    node = _maker(value)
    while (
        node is not None
        and node.op_type in POINTWISE
        and _place(node) >= 0
        and reads_alone(reader, node.outputs[0])
    ):
        nodes.append(node)
        reader, node = node, _maker(node.inputs[_place(node)])
    return tuple(reversed(nodes))


def _place(node: ir.Node) -> int:
    """Which input is the tensor; -1 unless all others are scalar constants."""
    tensors = [i for i, v in enumerate(node.inputs) if v is not None and not _is_scalar(v)]
    return tensors[0] if len(tensors) == 1 else -1


def _is_scalar(value: ir.Value) -> bool:
    return is_constant(value) and value.const_value.size == 1 and len(value.const_value.shape) <= 1


def _refuse(node: ir.Node, inner: ir.Node, reader: ir.Node) -> Refusal:
    return Refusal(
        f"the output of {describe(inner)} {why_shared(inner.outputs[0], reader)}",
        (str(node.name), str(inner.name)),
    )


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import onnx_ir as ir

    node = found.nodes[-1]
    if "origin" not in found.data:
        source, perm = found.data["source"], found.data["perm"]
        if perm is None:
            builder.bypass(node, source)
        else:
            builder.node("Transpose", [source], {"perm": perm}, replaces=found.nodes)
        return
    inner, *chain, node = found.nodes
    for member in chain:  # values of another layout: never under the old names
        output = member.outputs[0]
        output.name = builder.fresh(f"{output.name}_moved")
        if output.shape is not None:
            output.shape = ir.Shape([output.shape[axis] for axis in found.data["perm"]])
    chain[0].replace_input_with(_place(chain[0]), found.data["origin"])
    builder.bypass(node, chain[-1].outputs[0], keep_name=True)
    builder.remove((inner,))


PASS = PASSES.add(
    Pass(
        name="remove_transpose",
        summary="Transpositions that follow each other become one, or none.",
        phase="normalise",
        anchors=("Transpose",),
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants"),
        example="""(float[1,4,6,5] x) => (float[1,4,6,5] y) {
            a = Transpose<perm = [0, 2, 3, 1]>(x)
            b = Transpose<perm = [0, 3, 1, 2]>(a)
            y = Relu(b) }""",
    ),
    __name__,
)
