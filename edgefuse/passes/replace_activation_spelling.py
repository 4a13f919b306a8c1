"""One spelling for every bounded activation.

Problem: ReLU6 is exported as Clip(0, 6), as Relu then Min(6), as Max(0) then Min(6), as Relu then
Clip without a bound; a converter or a fusion knows only some of them.

Rewrite: Max(x, c) = clip(x, c, inf); Min(x, c) = clip(x, -inf, c); Relu = clip(0, inf);
clip(clip(x, a, b), c, d) = clip(x, min(max(a, c), d), min(max(b, c), d));
clip(x, 0, inf) = Relu(x).

Scope: floating types, constant scalar bounds, the inner operator read by the outer one alone.
Left alone: bounds that are computed, overridable or not scalar; bounds that cross (low > high).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import CLIP_INPUTS_SINCE, Bounds, read_bounds
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, is_float, read, reads_alone, sole_user, why_shared

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

CLIP_OF_DOUBLE_SINCE = 12
ANCHORS = ("Clip", "Max", "Min", "Relu")


def match(node: ir.Node, context: Context) -> Verdict:
    if not is_float(node.outputs[0]):
        return None
    bounds = read_bounds(node, context.opset)
    if not isinstance(bounds, Bounds):
        return bounds
    if _crossed(bounds.low, bounds.high):
        return Refusal(f"the bounds of {describe(node)} cross", (str(node.name),))
    producer = bounds.source.producer()
    inner = None if producer is None else read_bounds(producer, context.opset)
    if isinstance(inner, Bounds) and not _crossed(inner.low, inner.high):
        assert producer is not None
        if reads_alone(node, bounds.source):
            low, high = _compose(inner, bounds)
            return _found((producer, node), inner.source, low, high, context)
        if _canonical(node, bounds, context):
            return Refusal(
                f"the output of {describe(producer)} {why_shared(bounds.source, node)}",
                (str(node.name), str(producer.name)),
            )
    if _canonical(node, bounds, context):
        return None
    outer_node = sole_user(node.outputs[0])
    if outer_node is not None and isinstance(read_bounds(outer_node, context.opset), Bounds):
        return None
    return _found((node,), bounds.source, bounds.low, bounds.high, context)


def _found(
    nodes: tuple[ir.Node, ...],
    source: ir.Value,
    low: float | None,
    high: float | None,
    context: Context,
) -> Verdict:
    data = {"source": source, "low": low, "high": high, "opset": context.opset}
    if low is None and high is None:
        producer, outer = source.producer(), nodes[-1].graph
        if producer is None or producer.graph is not outer or source.is_graph_output():
            return None
    becomes_relu = low == 0.0 and high is None
    clips = any(node.op_type == "Clip" for node in nodes)
    if context.opset < CLIP_OF_DOUBLE_SINCE and not clips and not becomes_relu:
        dtype = nodes[-1].outputs[0].dtype
        if dtype is not None and dtype.name == "DOUBLE" and (low, high) != (None, None):
            return Refusal(
                f"onnxruntime has no Clip of float64 in opset {context.opset}",
                tuple(str(node.name) for node in reversed(nodes)),
                f"export with opset {CLIP_OF_DOUBLE_SINCE} or later",
            )
    return Match(nodes, data)


def _crossed(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low > high


def _compose(inner: Bounds, outer: Bounds) -> tuple[float | None, float | None]:
    def clip(value: float | None, absent: float) -> float:
        number = absent if value is None else value
        number = number if outer.low is None else max(number, outer.low)
        return number if outer.high is None else min(number, outer.high)

    low, high = clip(inner.low, float("-inf")), clip(inner.high, float("inf"))
    return (None if low == float("-inf") else low), (None if high == float("inf") else high)


def _canonical(node: ir.Node, bounds: Bounds, context: Context) -> bool:
    if node.op_type == "Relu":
        return True
    if node.op_type != "Clip" or (bounds.low is None and bounds.high is None):
        return False
    if bounds.low == 0.0 and bounds.high is None:
        return False
    if context.opset < CLIP_INPUTS_SINCE:
        return True
    for position, bound in ((1, bounds.low), (2, bounds.high)):
        value = read(node, position)
        if value is not None and (bound is None or len(value.shape) != 0):
            return False
    return True


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import numpy as np

    low, high = found.data["low"], found.data["high"]
    source, last = found.data["source"], found.nodes[-1]
    if low is None and high is None:
        builder.bypass(last, source)
        return
    if low == 0.0 and high is None:
        builder.node("Relu", [source], replaces=found.nodes)
        return
    if found.data["opset"] < CLIP_INPUTS_SINCE:
        given = {"min": low, "max": high}
        attributes = {k: float(v) for k, v in given.items() if v is not None}
        builder.node("Clip", [source], attributes, replaces=found.nodes)
        return
    dtype = last.outputs[0].dtype.numpy()
    inputs: list[ir.Value | None] = [source, None, None]
    for index, (name, bound) in enumerate((("min", low), ("max", high)), start=1):
        if bound is not None:
            array = np.array(bound, dtype)
            inputs[index] = builder.constant(array, f"{last.outputs[0].name}_{name}", last.graph)
    builder.node("Clip", inputs if high is not None else inputs[:2], replaces=found.nodes)


PASS = PASSES.add(
    Pass(
        name="replace_activation_spelling",
        summary="Max, Min, Relu and Clip with constant bounds become one Clip or one Relu.",
        phase="normalise",
        anchors=ANCHORS,
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants"),
        example="""(float[1,4] x) => (float[1,4] y) {
            six = Constant<value_float = 6.0>()
            a = Relu(x)
            y = Min(a, six) }""",
    ),
    __name__,
)
