"""A reduction that keeps its axes, and the Reshape that drops them, in one.

Problem: classifiers end in a mean over the picture that keeps its axes as [N, C, 1, 1], and a
Reshape to [N, C]. Where the order of axes differs, as in TFLite, it costs a transposition.

Rewrite: Reshape(Reduce(x, axes, keepdims = 1), [N, C]) = Reduce(x, axes, keepdims = 0);
GlobalAveragePool(x) = ReduceMean(x, axes 2, 3, ...). Axes are written from the front.

Scope: Reshape, Flatten or Squeeze behind a reduction or GlobalAveragePool that it alone reads,
where just the reduced axes go. Left alone: axes that are computed, shapes that are not known, a
Reshape that drops or joins other axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Verdict
from edgefuse.graph.values import attribute, constant, read, reads_alone

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
              "ReduceSum")  # fmt: skip
POOL = "GlobalAveragePool"
AXES_ARE_AN_INPUT_SINCE = {"ReduceSum": 13}


def match(node: ir.Node, context: Context) -> Verdict:
    value = read(node, 0)
    reduction = None if value is None else value.producer()
    if value is None or reduction is None or reduction.domain != "":
        return None
    if reduction.op_type not in (*REDUCTIONS, POOL) or not reads_alone(node, value):
        return None
    source, result = reduction.inputs[0], node.outputs[0]
    if source is None or value.shape is None or result.shape is None:
        return None
    axes = _axes(reduction, len(value.shape))
    if axes is None:
        return None
    rest = [extent for axis, extent in enumerate(value.shape) if axis not in axes]
    if len(rest) != len(result.shape) or any(a != b for a, b in zip(rest, result.shape)):
        return None
    if any(not isinstance(e, int) and e.value is None for e in rest):
        return None
    return Match((reduction, node), {"axes": axes, "opset": context.opset})


def _axes(reduction: ir.Node, rank: int) -> list[int] | None:
    """The axes that a reduction keeps as 1; None when it keeps none, or they are not known."""
    if reduction.op_type == POOL:
        return list(range(2, rank))
    if not attribute(reduction, "keepdims", 1):
        return None
    given = attribute(reduction, "axes", None)
    if (value := read(reduction, 1)) is not None:
        array = constant(value)
        given = None if array is None else array.reshape(-1).tolist()
        if given is None:
            return None
    if not given:
        return None if attribute(reduction, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in given)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import numpy as np

    reduction, node = found.nodes
    axes: list[int] = found.data["axes"]
    kept = [a for n, a in reduction.attributes.items() if n not in ("keepdims", "axes")]
    operator = "ReduceMean" if reduction.op_type == POOL else reduction.op_type
    inputs: list[ir.Value | None] = [reduction.inputs[0]]
    given: dict[str, object] = {"keepdims": 0}
    if found.data["opset"] < AXES_ARE_AN_INPUT_SINCE.get(operator, 18):
        given["axes"] = axes
    else:
        name = f"{node.outputs[0].name}_axes"
        inputs.append(builder.constant(np.array(axes, np.int64), name, node.graph))
    builder.node(operator, inputs, [*kept, *_attributes(given)], replaces=found.nodes)


def _attributes(given: dict[str, object]) -> list[ir.Attr]:
    import onnx_ir as ir

    return list(ir.convenience.convert_attributes(given))


PASS = PASSES.add(
    Pass(
        name="remove_kept_axes",
        summary="A reduction drops its axes by itself; the Reshape behind it goes.",
        phase="normalise",
        anchors=("Reshape", "Flatten", "Squeeze"),
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants", "remove_reshape"),
        tolerance=1e-6,
        example="""(float[1,8,6,6] x) => (float[1,8] y) {
            a = GlobalAveragePool(x)
            y = Flatten(a) }""",
    ),
    __name__,
)
