"""LayerNormalization over several axes becomes one over a single axis, between two reshapes.

Problem: a LayerNorm over the last two axes or more (nn.LayerNorm([H, W])) has a scale of as many
axes, which the converter to TFLite cannot take.

Rewrite: LayerNormalization(x [.., a, b], s [a, b], t [a, b]) =
Reshape(LayerNormalization(Reshape(x, [.., a b]), s [a b], t [a b]), [.., a, b]): the means are over
the same elements, in the same order.

Scope: static extents along the normalised axes, constant scale and bias. Left alone: one whose mean
or deviation is read, and scales that are computed or that a caller may override.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import Array, attribute, constant, describe, read, why_not_constant

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    rank, axis = len(source.shape), attribute(node, "axis", -1)
    kept = axis + rank if axis < 0 else axis
    extents = [source.shape[k] for k in range(kept, rank)]
    if len(extents) < 2:
        return None
    if any(list(output.uses()) or output.is_graph_output() for output in node.outputs[1:]):
        return _refuse(node, f"the mean or the deviation of {describe(node)} is read")
    if not all(isinstance(extent, int) for extent in extents):
        return _refuse(node, f"the axes from {kept} on of {source.name} are not all static")
    arrays: list[Array] = []
    for index, what in ((1, "scale"), (2, "bias")):
        if (value := read(node, index)) is None:
            continue
        if (array := constant(value)) is None:
            reason, remedy = why_not_constant(value)
            return _refuse(node, f"the {what} of {describe(node)} {reason}", remedy)
        if array.shape != tuple(extents):
            return _refuse(
                node,
                f"the {what} ({value.name}) of {describe(node)} has shape {list(array.shape)}, the "
                f"axes have {extents}",
            )
        arrays.append(array)
    return Match((node,), {"kept": kept, "extents": tuple(extents), "arrays": arrays})


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import numpy as np
    import onnx_ir as ir

    node, kept, extents = found.nodes[0], found.data["kept"], found.data["extents"]
    source, name = node.inputs[0], node.outputs[0].name
    shape = ir.Shape([*list(source.shape)[:kept], math.prod(extents)])
    flat = builder.constant(np.array([0] * kept + [math.prod(extents)]), f"{name}_flat", node.graph)
    full = builder.constant(np.array([0] * kept + list(extents)), f"{name}_full", node.graph)
    inputs = [builder.insert("Reshape", [source, flat], before=node)]
    inputs[0].shape = shape
    for array, what in zip(found.data["arrays"], ("scale", "bias")):
        inputs.append(builder.constant(array.reshape(-1), f"{name}_{what}", node.graph))
    attributes = {k: a.value for k, a in node.attributes.items() if k != "axis"} | {"axis": -1}
    normal = builder.insert("LayerNormalization", inputs, attributes, before=node)
    normal.shape = shape
    builder.node("Reshape", [normal, full], replaces=(node,))


PASS = PASSES.add(
    Pass(
        name="replace_layer_norm_axes",
        summary="LayerNormalization over several axes becomes one over a single axis.",
        phase="normalise",
        anchors=("LayerNormalization",),
        match=match,
        rewrite=rewrite,
        after=("fold_constants", "replace_norm_spelling"),
        tolerance=1e-6,
        example="""(float[2,4,6] x, float[4,6] scale, float[4,6] bias) => (float[2,4,6] y) {
            y = LayerNormalization<axis = 1>(x, scale, bias) }""",
    ),
    __name__,
)
