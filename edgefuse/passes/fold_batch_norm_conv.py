"""Fold BatchNormalization into the layer behind it.

Problem: pre-activation networks normalise what a convolution reads, not what it computes; where
nothing stands between the two, the affine map per channel can go into the convolution.

Rewrite, with BN(x) = s x + t per input channel, s = gamma / sqrt(var + epsilon), t = beta - mean s:
W * BN(x) + b = (W s) * x + (b + sum(W t)), s and t along the input channels of W.

Scope: Conv of any rank and grouping, Gemm, and MatMul by a constant matrix, that alone read the
BatchNormalization. Padding is zero and is not normalised, so a Conv that pads is refused unless t
is zero; so is a ConvTranspose, which adds up fewer products at the border. A MatMul that needs a
bias becomes a Gemm. Computed in float64 and cast last. Left alone: what `fold_conv_batch_norm`
takes first, a Gemm that transposes its input, products of a higher rank (their channels are the
last axis, the BatchNormalization's the second).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.batch_norm import BatchNorm, read_batch_norm
from edgefuse.graph.fold import LAYERS, Layer, in_own_type, read_layer, write_weights
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import Array, attribute, describe, reads_alone, set_origin, why_shared

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    value = node.outputs[0]
    readers = [u.node for u in value.uses() if u.idx == 0 and u.node.op_type in LAYERS]
    readers = [n for n in readers if n.domain == ""]
    if not readers:
        return None
    reader = readers[0]
    if not reads_alone(reader, value):
        return _refuse(node, reader, f"the output of {describe(node)} {why_shared(value, reader)}")
    parameters = read_batch_norm(node)
    if isinstance(parameters, Refusal):
        return parameters
    layer = read_layer((reader,), node)
    if isinstance(layer, Refusal):
        return layer
    if layer.axis != 1 or attribute(reader, "transA", 0):
        return _refuse(
            node, reader, f"axis 1 of {describe(node)} is not what {describe(reader)} sums over"
        )
    if parameters.shift.any():
        if padding := _padding(reader):
            return _refuse(
                node,
                reader,
                f"{describe(reader)} pads with zeros ({padding}), which {describe(node)} does not "
                "shift",
                "put the normalisation behind the convolution",
            )
        if reader.op_type == "ConvTranspose":
            return _refuse(
                node,
                reader,
                f"{describe(reader)} adds up fewer products at its border, so the shift of "
                f"{describe(node)} is not the same everywhere",
            )
    return _fold(node, layer, parameters)


def _padding(layer: ir.Node) -> str:
    """The attribute by which a convolution pads; empty when it does not."""
    if layer.op_type != "Conv":
        return ""
    automatic = attribute(layer, "auto_pad", "NOTSET")
    if automatic not in ("NOTSET", "VALID", ""):
        return f"auto_pad {automatic}"
    pads = list(attribute(layer, "pads", []))
    return f"pads {pads}" if any(pads) and automatic != "VALID" else ""


def _fold(node: ir.Node, layer: Layer, parameters: BatchNorm) -> Verdict:
    import numpy as np

    exact = layer.weight.astype(np.float64)
    factor = _along_inputs(layer, parameters.factor)
    shift = _along_inputs(layer, parameters.shift)
    if factor is None or shift is None:
        return _refuse(
            node,
            layer.node,
            f"{describe(node)} has {parameters.channels} channels, {describe(layer.node)} reads "
            "another number",
        )
    with np.errstate(all="ignore"):
        bias = layer.bias.copy()
        if parameters.shift.any():
            bias = bias + attribute(layer.node, "alpha", 1.0) * _summed(layer, exact * shift)
        folded = in_own_type(layer, node, exact * factor, bias)
    if isinstance(folded, Refusal):
        return folded
    return Match((node, layer.node), {"layer": layer, "folded": folded})


def _along_inputs(layer: Layer, numbers: Array) -> Array | None:
    """Numbers for each input channel in a shape that scales the weight; None if they do not fit."""
    import numpy as np

    node, weight = layer.node, layer.weight
    ones = (1,) * (weight.ndim - 2)
    if node.op_type == "Conv":
        groups = int(attribute(node, "group", 1))
        if len(numbers) != groups * weight.shape[1]:
            return None
        rows = np.repeat(numbers.reshape(groups, -1), weight.shape[0] // groups, axis=0)
        return rows.reshape(*weight.shape[:2], *ones)
    transposed = node.op_type == "Gemm" and attribute(node, "transB", 0)
    if len(numbers) != weight.shape[1 if transposed else 0]:
        return None
    return numbers[None, :] if transposed else numbers.reshape(-1, 1, *ones)


def _summed(layer: Layer, products: Array) -> Array:
    """The sum over everything but the output channels."""
    outputs = 0
    if layer.node.op_type in ("Gemm", "MatMul"):
        outputs = 0 if attribute(layer.node, "transB", 0) else 1
    summed: Array = products.sum(axis=tuple(a for a in range(products.ndim) if a != outputs))
    return summed


def _refuse(node: ir.Node, layer: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name), str(layer.name)), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    node = found.nodes[0]
    written = write_weights(builder, found.data["layer"], found.data["folded"])
    set_origin(written, (node, written))
    builder.bypass(node, node.inputs[0])


PASS = PASSES.add(
    Pass(
        name="fold_batch_norm_conv",
        summary="BatchNormalization goes into the weights of the Conv, Gemm or MatMul behind it.",
        phase="fold",
        anchors=("BatchNormalization",),
        match=match,
        rewrite=rewrite,
        after=("fold_conv_batch_norm",),
        tolerance=5e-5,
        example="""(float[1,3,8,8] x, float[4,3,3,3] w,
            float[3] gamma, float[3] beta, float[3] mean, float[3] var) => (float[1,4,6,6] y) {
            a = BatchNormalization(x, gamma, beta, mean, var)
            y = Conv(a, w) }""",
    ),
    __name__,
)
