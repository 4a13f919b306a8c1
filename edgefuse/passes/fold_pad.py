"""Let a convolution or a pooling do the padding in front of it.

Problem: exporters write asymmetric padding as an operator of its own, which copies the whole
tensor; convolution and pooling pad for nothing while they read.

Rewrite, with zeros padded along spatial axes, p at the near and far sides:
Conv<pads = q>(Pad<p>(x)) = Conv<pads = p + q>(x);
AveragePool<pads = q>(Pad<p>(x)) = AveragePool<pads = p + q, count_include_pad = 1>(x);
MaxPool<pads = q>(Pad<p>(x)) = MaxPool<pads = p + q>(x), x >= 0 or the padding below every number.

Scope: mode constant, no negative amount, static amounts, auto_pad NOTSET or VALID, the Pad read by
that operator alone. A pooling that averages must count its own padding or have none; one that takes
the maximum ignores its padding, which is exact behind Relu, Clip(0, ..), Sigmoid and their like. A
pooling cannot pad by a whole window. Left alone: reflect, edge and wrap; other values than zero;
padded batches and channels; ceil_mode, whose last window depends on who pads; pooling with
dilations. A Pad of nothing at all is removed by `remove_identity`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.activation import Bounds, read_bounds
from edgefuse.graph.padding import Padding, read_padding
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import attribute, describe, reads_alone, set_origin, why_shared

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

READERS = ("Conv", "AveragePool", "MaxPool")
NOT_NEGATIVE = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt")
KEEPS_SIGN = ("AveragePool", "Dropout", "Identity", "MaxPool")
LOWEST = {"FLOAT16": -65504.0}
LOWEST_OTHERWISE = -3.38e38


def match(node: ir.Node, context: Context) -> Verdict:
    value = node.outputs[0]
    readers = [u.node for u in value.uses() if u.idx == 0 and u.node.op_type in READERS]
    readers = [n for n in readers if n.domain == ""]
    if not readers:
        return None
    reader = readers[0]
    if not reads_alone(reader, value):
        return _refuse(node, reader, f"the output of {describe(node)} {why_shared(value, reader)}")
    padding = read_padding(node)
    if isinstance(padding, Refusal):
        return padding
    if not any((*padding.near, *padding.far)):
        return None
    if any((*padding.near[:2], *padding.far[:2])):
        return _refuse(node, reader, f"{describe(node)} pads the batch or the channels")
    if min((*padding.near, *padding.far)) < 0:
        return _refuse(node, reader, f"{describe(node)} crops (a pad is negative)")
    automatic = attribute(reader, "auto_pad", "NOTSET")
    if automatic not in ("NOTSET", "VALID", ""):
        return _refuse(
            node, reader, f"{describe(reader)} chooses its own padding (auto_pad {automatic})"
        )
    pads = _sum(padding, reader, automatic)
    problem = {"Conv": _conv, "AveragePool": _average, "MaxPool": _maximum}[reader.op_type](
        node, reader, padding, context
    )
    if not problem and reader.op_type != "Conv":
        problem = _window(reader, pads)
    if problem:
        return _refuse(node, reader, problem)
    return Match((node, reader), {"pads": pads})


def _sum(padding: Padding, reader: ir.Node, automatic: str) -> list[int]:
    own = [0] * 2 * (len(padding.near) - 2)
    if automatic != "VALID":
        own = list(attribute(reader, "pads", own))
    return [a + b for a, b in zip((*padding.near[2:], *padding.far[2:]), own)]


def _conv(node: ir.Node, reader: ir.Node, padding: Padding, context: Context) -> str:
    return "" if padding.value == 0 else f"{describe(node)} pads with {padding.value:g}, not zero"


def _average(node: ir.Node, reader: ir.Node, padding: Padding, context: Context) -> str:
    if padding.value != 0:
        return f"{describe(node)} pads with {padding.value:g}, not zero"
    counts = attribute(reader, "count_include_pad", 0)
    if any(attribute(reader, "pads", [])) and not counts:
        return f"{describe(reader)} does not count its own padding, that of {describe(node)} counts"
    return ""


def _maximum(node: ir.Node, reader: ir.Node, padding: Padding, context: Context) -> str:
    if any(list(o.uses()) or o.is_graph_output() for o in reader.outputs[1:]):
        return f"{describe(reader)} returns places in the padded tensor"
    dtype = "" if node.outputs[0].dtype is None else node.outputs[0].dtype.name
    if padding.value <= LOWEST.get(dtype, LOWEST_OTHERWISE):
        return ""
    if padding.value != 0:
        return f"{describe(node)} pads with {padding.value:g}, neither zero nor minus infinity"
    if not _never_negative(node.inputs[0], context.opset):
        ignores = f"{describe(reader)} ignores its padding"
        return f"{ignores}, and {describe(node)} pads with zero what may be negative"
    return ""


def _window(reader: ir.Node, pads: list[int]) -> str:
    """Why a pooling cannot take these pads; empty when it can."""
    kernel = list(attribute(reader, "kernel_shape", []))
    if attribute(reader, "ceil_mode", 0):
        return f"{describe(reader)} rounds its size up (ceil_mode)"
    if any(d != 1 for d in attribute(reader, "dilations", [])):
        return f"{describe(reader)} has dilations"
    if any(pad >= extent for pad, extent in zip(pads, kernel * 2)):
        return f"{describe(reader)} cannot pad by {pads}, as much as its window {kernel}"
    return ""


def _never_negative(value: ir.Value | None, opset: int, depth: int = 4) -> bool:
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or depth == 0:
        return False
    if node.op_type in NOT_NEGATIVE:
        return True
    if node.op_type in KEEPS_SIGN:
        return _never_negative(node.inputs[0], opset, depth - 1)
    bounds = read_bounds(node, opset)
    return isinstance(bounds, Bounds) and bounds.low is not None and bounds.low >= 0


def _refuse(node: ir.Node, reader: ir.Node, reason: str) -> Refusal:
    return Refusal(reason, (str(node.name), str(reader.name)))


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import onnx_ir as ir

    node, reader = found.nodes
    reader.attributes.pop("auto_pad", None)
    reader.attributes.add(ir.AttrInt64s("pads", found.data["pads"]))
    if reader.op_type == "AveragePool":
        reader.attributes.add(ir.AttrInt64("count_include_pad", 1))
    set_origin(reader, (node, reader))
    builder.bypass(node, node.inputs[0])


PASS = PASSES.add(
    Pass(
        name="fold_pad",
        summary="A Pad of zeros becomes the padding of the Conv or the pooling behind it.",
        phase="fold",
        anchors=("Pad",),
        match=match,
        rewrite=rewrite,
        tolerance=1e-6,
        example="""(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,8,8] y) {
            pads = Constant<value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}>()
            a = Pad(x, pads)
            y = Conv(a, w) }""",
    ),
    __name__,
)
