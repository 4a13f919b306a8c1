"""Fold BatchNormalization into the layer before it.

Problem: in inference mode a BatchNormalization is an affine map per channel, and costs a pass over
the whole tensor.

Rewrite, with s = gamma / sqrt(var + epsilon):
BN(W * x + b) = (s W) * x + ((b - mean) s + beta), s along the output channels of W.

Scope: Conv and ConvTranspose of any rank and grouping, and Gemm, whose output the
BatchNormalization alone reads. Computed in float64 and cast last; refused when the result is not
finite or loses its precision in the weight's type. Left alone: parameters that are computed or
overridable, and a BatchNormalization behind anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    Array,
    attribute,
    constant,
    describe,
    read,
    reads_alone,
    set_origin,
    why_not_constant,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

LAYERS = ("Conv", "ConvTranspose", "Gemm")
PARAMETERS = ("scale", "bias", "mean", "variance")


def match(node: ir.Node, context: Context) -> Verdict:
    value = node.inputs[0]
    if value is None:
        return None
    layer: ir.Node | None = value.producer()
    if layer is None or layer.domain != "" or layer.op_type not in LAYERS:
        origin = f"({value.name}) is a graph input" if layer is None else f"is {describe(layer)}"
        return Refusal(
            f"what {describe(node)} reads {origin}, not the output of {', '.join(LAYERS)}",
            (str(node.name),),
            "put the normalisation directly behind the layer, before the activation",
        )
    if not reads_alone(node, value):
        return _refuse(node, layer, f"the output of {describe(layer)} {why_shared(value, node)}")
    if any(list(o.uses()) or o.is_graph_output() for o in node.outputs[1:]):
        return _refuse(node, layer, f"{describe(node)} has further outputs that are used")
    if not attribute(node, "spatial", 1):
        return _refuse(node, layer, f"{describe(node)} normalises every pixel (spatial is 0)")
    arrays: dict[str, Array] = {}
    places: list[tuple[str, ir.Node, int]] = [
        *((name, node, i) for i, name in enumerate(PARAMETERS, start=1)),
        ("weight", layer, 1),
        ("layer bias", layer, 2),
    ]
    for name, owner, index in places:
        source = read(owner, index)
        if source is None:
            continue
        array = constant(source)
        if array is None:
            what, remedy = why_not_constant(source)
            return _refuse(node, layer, f"the {name} of {describe(owner)} {what}", remedy)
        arrays[name] = array
    return _fold(node, layer, arrays)


def _fold(node: ir.Node, layer: ir.Node, arrays: dict[str, Array]) -> Verdict:
    import numpy as np

    weight = arrays["weight"]
    scale, beta, mean, variance = (arrays[name].astype(np.float64) for name in PARAMETERS)
    channels = _channels(layer, weight)
    if any(a.shape != (channels,) for a in (scale, beta, mean, variance)):
        return _refuse(node, layer, f"the parameters of {describe(node)} are not of [{channels}]")
    bias = np.zeros(channels)
    if "layer bias" in arrays:
        given = arrays["layer bias"].astype(np.float64)
        if layer.op_type == "Gemm":
            given = given * attribute(layer, "beta", 1.0)
        flat = _per_channel(given, channels)
        if flat is None:
            return _refuse(
                node, layer, f"the bias of {describe(layer)}, {given.shape}, is not per channel"
            )
        bias = flat
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        exact = {
            "weight": weight.astype(np.float64) * _along_outputs(layer, weight, factor),
            "bias": (bias - mean) * factor + beta,
        }
        cast = {name: array.astype(weight.dtype) for name, array in exact.items()}
    for name, array in cast.items():
        if not np.isfinite(array.astype(np.float64)).all():
            return _refuse(
                node,
                layer,
                f"the folded {name} of {describe(layer)} is not finite in {weight.dtype}",
                "export in float32",
            )
    if _loses_precision(exact["weight"], cast["weight"]):
        return _refuse(
            node,
            layer,
            f"the folded weight of {describe(layer)} is too small for {weight.dtype}",
            "export in float32",
        )
    return Match((layer, node), cast)


def _channels(layer: ir.Node, weight: Array) -> int:
    if layer.op_type == "ConvTranspose":
        return int(weight.shape[1] * attribute(layer, "group", 1))
    if layer.op_type == "Gemm":
        return int(weight.shape[0 if attribute(layer, "transB", 0) else 1])
    return int(weight.shape[0])


def _per_channel(bias: Array, channels: int) -> Array | None:
    """The bias as [channels] when it is the same for every row; else None."""
    import numpy as np

    if bias.size == 1:
        return np.full(channels, bias.reshape(()))
    return bias.reshape(channels) if bias.shape[-1] == channels == bias.size else None


def _along_outputs(layer: ir.Node, weight: Array, factor: Array) -> Array:
    """The factor in a shape that scales the output channels of the weight."""
    import numpy as np

    ones = (1,) * (weight.ndim - 2)
    if layer.op_type == "Gemm":
        return factor[:, None] if attribute(layer, "transB", 0) else factor[None, :]
    if layer.op_type == "ConvTranspose":
        groups = int(attribute(layer, "group", 1))
        per_group = factor.reshape(groups, 1, -1)
        rows = np.repeat(per_group, weight.shape[0] // groups, axis=1)
        return rows.reshape(weight.shape[0], weight.shape[1], *ones)
    return factor.reshape(-1, 1, *ones)


def _loses_precision(exact: Array, cast: Array) -> bool:
    """Whether rounding leaves an error beyond the type's own, not counting negligible values."""
    import numpy as np

    kinds = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}
    epsilon = kinds.get(cast.dtype.name, 2.0**-23)
    error = float(np.abs(cast.astype(np.float64) - exact).max(initial=0.0))
    peak = float(np.abs(exact).max(initial=0.0))
    return error > 2 * float(epsilon) * peak


def _refuse(node: ir.Node, layer: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name), str(layer.name)), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    layer, node = found.nodes
    weight_name = str(layer.inputs[1].name)
    stem = weight_name[: -len("weight")] if weight_name.endswith("weight") else f"{weight_name}_"
    builder.set_constant(layer, 1, found.data["weight"], f"{weight_name}_folded")
    builder.set_constant(layer, 2, found.data["bias"], f"{stem}bias")
    if layer.op_type == "Gemm" and "beta" in layer.attributes:
        del layer.attributes["beta"]
    set_origin(layer, (layer, node))
    builder.bypass(node, layer.outputs[0], keep_name=True)


PASS = PASSES.add(
    Pass(
        name="fold_conv_batch_norm",
        summary="BatchNormalization goes into the weights of the Conv, ConvTranspose or Gemm.",
        phase="fold",
        anchors=("BatchNormalization",),
        match=match,
        rewrite=rewrite,
        tolerance=5e-5,
    ),
    __name__,
)
