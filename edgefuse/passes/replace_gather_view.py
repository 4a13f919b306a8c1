"""A Gather that takes every element in its place becomes a Reshape.

Problem: exporters write a view of a vector (torch.as_strided, behind a mean over places) as a
Gather with a constant list of all indices; it copies, and int8 files must hold no int64 list.

Rewrite: Gather(x [n], c) = Reshape(x, shape of c) where c, read in order, is 0, 1, ..., n - 1.

Scope: vectors of static length, constant indices; negative ones count from the end. Left alone:
every other Gather, and a list that a caller may override.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import constant, describe, is_overridable, why_not_constant

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    import numpy as np

    source, indices = node.inputs[:2]
    if source is None or source.shape is None or len(source.shape) != 1:
        return None
    length = source.shape[0]
    if is_overridable(indices):
        what, remedy = why_not_constant(indices)
        return Refusal(f"the indices of {describe(node)} {what}", (str(node.name),), remedy)
    array = constant(indices)
    if array is None or not isinstance(length, int) or array.size != length or length == 0:
        return None
    if not np.array_equal(array.reshape(-1) % length, np.arange(length)):
        return None
    return Match((node,), {"shape": np.array(array.shape, np.int64)})


def rewrite(found: Match, builder: GraphBuilder) -> None:
    node = found.nodes[0]
    shape = builder.constant(found.data["shape"], f"{node.outputs[0].name}_shape", node.graph)
    builder.node("Reshape", [node.inputs[0], shape], replaces=(node,))


PASS = PASSES.add(
    Pass(
        name="replace_gather_view",
        summary="A Gather that takes every element in its place becomes a Reshape.",
        phase="normalise",
        anchors=("Gather",),
        match=match,
        rewrite=rewrite,
        after=("fold_constants",),
        example="""(float[4] x) => (float[1,4] y) {
            places = Constant<value = int64[1,4] {0, 1, 2, 3}>()
            y = Gather(x, places) }""",
    ),
    __name__,
)
