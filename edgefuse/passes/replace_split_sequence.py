"""A part of a tensor that is split into a sequence becomes a slice.

Problem: exporters write torch.chunk and torch.split as SplitToSequence, which makes a list of
tensors; no converter to TFLite knows lists, and no fusion sees through them.

Rewrite: SequenceAt(SplitToSequence(x, sizes, axis), i) = Slice(x, start_i, end_i, axis).

Scope: constant sizes (one number, or one a part), a constant index, a static extent of x along the
axis, opset 10 on. Left alone: parts whose axis is dropped (keepdims 0 without sizes), an index that
is computed, sequences that something else reads: they stay for those readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import attribute, constant, describe, read, why_not_constant

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    import numpy as np

    sequence, index = node.inputs
    split = None if sequence is None else sequence.producer()
    if split is None or split.domain != "" or split.op_type != "SplitToSequence":
        return None
    place = constant(index)
    if place is None:
        what, remedy = why_not_constant(index)
        return _refuse(node, f"the index of {describe(node)} {what}", remedy)
    source = split.inputs[0]
    axis = attribute(split, "axis", 0)
    if source.shape is None or not isinstance(extent := source.shape[axis], int):
        return _refuse(node, f"the extent of axis {axis} of {source.name} is not static")
    given = read(split, 1)
    if given is None:
        if not attribute(split, "keepdims", 1):
            return _refuse(node, f"{describe(split)} drops axis {axis}")
        sizes = np.ones(extent, np.int64)
    elif (array := constant(given)) is None:
        what, remedy = why_not_constant(given)
        return _refuse(node, f"the sizes of {describe(split)} {what}", remedy)
    elif array.ndim == 0:
        ends = np.minimum(np.arange(0, extent, int(array)) + int(array), extent)
        sizes = np.diff(ends, prepend=0)
    else:
        sizes = array.astype(np.int64)
    number = int(place) + (len(sizes) if int(place) < 0 else 0)
    if not 0 <= number < len(sizes):
        return _refuse(node, f"{describe(node)} asks for part {int(place)} of {len(sizes)}")
    start = int(sizes[:number].sum())
    span = (start, start + int(sizes[number]))
    return Match((node,), {"source": source, "axis": axis % len(source.shape), "span": span})


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import numpy as np

    node, (start, end) = found.nodes[0], found.data["span"]
    name = node.outputs[0].name
    bounds = [
        builder.constant(np.array([number], np.int64), f"{name}_{what}", node.graph)
        for what, number in (("start", start), ("end", end), ("axis", found.data["axis"]))
    ]
    builder.node("Slice", [found.data["source"], *bounds], replaces=(node,))


PASS = PASSES.add(
    Pass(
        name="replace_split_sequence",
        summary="A part of a tensor that is split into a sequence becomes a Slice.",
        phase="normalise",
        anchors=("SequenceAt",),
        match=match,
        rewrite=rewrite,
        after=("fold_constants",),
        example="""(float[1,4,6] x) => (float[1,2,6] y) {
            two = Constant<value_int = 2>()
            one = Constant<value_int = 1>()
            parts = SplitToSequence<axis = 1>(x, two)
            y = SequenceAt(parts, one) }""",
    ),
    __name__,
)
