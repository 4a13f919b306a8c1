"""A normalisation that is written out becomes the standard operator.

Problem: exporters write LayerNorm, InstanceNorm and GroupNorm as nine operators and more; each
passes the whole tensor through memory, and no runtime has a kernel for the lot.

Rewrite, with n(x) = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + e):
s n(x) + b = LayerNormalization(x, s, b)     means over the last axes, opset 17 on;
s n(x) + b = InstanceNormalization(x, s, b)  means over all axes from 2 on, s and b a channel;
Reshape(InstanceNormalization(Reshape(x, [N, G, ...]), 1, 0)) s + b = GroupNormalization(x, s, b),
opset 21 on.

Scope: float32, in which the operators compute as the spelling does; means with and without
keepdims, squares by Pow or Mul, any order of operands, scale or bias absent; decided by what the
operators compute. Left alone: other axes, a scale of another shape (it stays behind as a Mul), and
a spelling whose inner values something else reads. Where the opset or the type has no such
operator, fuse_norm_spelling makes a group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgefuse.graph.group_norm import GroupNorm, recognise_group_norm
from edgefuse.graph.norm import Norm, Statistics, full_shape, recognise, statistics
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import Array, constant

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

SINCE = {"LayerNormalization": 17, "InstanceNormalization": 6, "GroupNormalization": 21}


def match(node: ir.Node, context: Context) -> Verdict:
    if node.op_type == "InstanceNormalization":
        grouped = recognise_group_norm(node)
        if not isinstance(grouped, GroupNorm):
            return grouped
        return _operator(node, "GroupNormalization", grouped, context)
    found = statistics(node)
    if not isinstance(found, Statistics):
        return found
    if not found.centred:
        return None
    norm = recognise(found, context.opset)
    return norm if isinstance(norm, Refusal) else _operator(node, norm.kind, norm, context)


def _operator(node: ir.Node, kind: str, norm: Norm | GroupNorm, context: Context) -> Verdict:
    """The match, where the model can hold the operator."""
    if context.opset < SINCE[kind]:
        return _refuse(
            node,
            f"opset {context.opset} has no {kind}: it can only become a group",
            f"export at opset {SINCE[kind]} or later",
        )
    dtype = norm.source.dtype.name
    if dtype != "FLOAT":
        return _refuse(
            node, f"{kind} computes in float32, this one in {dtype}: it can only become a group"
        )
    shape = (norm.channels,) if isinstance(norm, GroupNorm) else full_shape(norm)
    if shape is None:
        return _refuse(
            node,
            f"{kind} wants a scale, and the extents of {norm.source.name} are not static: "
            "it can only become a group",
        )
    if 4 * math.prod(shape) > context.fold_size_limit_bytes:
        return _refuse(node, f"{kind} wants a scale of shape {list(shape)}, above the limit",
                       "raise fuse.fold_size_limit_bytes")  # fmt: skip
    return Match(norm.nodes, {"norm": norm, "kind": kind, "shape": shape})


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    norm, kind, shape = found.data["norm"], found.data["kind"], found.data["shape"]
    attributes: dict[str, float | int] = {"epsilon": norm.epsilon}
    if isinstance(norm, GroupNorm):
        attributes["num_groups"] = norm.groups
    elif kind == "LayerNormalization":
        attributes["axis"] = -len(norm.axes)
    graph, name = found.nodes[-1].graph, found.nodes[-1].outputs[0].name
    inputs = [norm.source]
    for value, absent, what in ((norm.scale, 1.0, "scale"), (norm.bias, 0.0, "bias")):
        if value is None and what == "bias" and kind == "LayerNormalization":
            continue
        if value is not None and tuple(value.const_value.shape) == shape:
            inputs.append(value)
            continue
        array = _spread(constant(value), absent, shape, kind)
        inputs.append(builder.constant(array, f"{name}_{what}", graph))
    builder.node(kind, inputs, attributes, replaces=found.nodes)


def _spread(array: Array | None, absent: float, shape: tuple[int, ...], kind: str) -> Array:
    """The constant, of exactly that shape."""
    import numpy as np

    if array is None:
        return np.full(shape, absent, np.float32)
    if kind != "LayerNormalization":
        array = array.reshape(-1)  # [C, 1, 1]
    elif array.ndim > len(shape):
        array = array.reshape(array.shape[-len(shape) :])  # leading extents of 1
    return np.ascontiguousarray(np.broadcast_to(array, shape))


PASS = PASSES.add(
    Pass(
        name="replace_norm_spelling",
        summary="Written-out LayerNorm, InstanceNorm and GroupNorm become the standard operator.",
        phase="normalise",
        anchors=("InstanceNormalization", "Pow", "Sqrt"),
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants"),
        tolerance=1e-5,
        example="""(float[2,8] x, float[8] scale, float[8] bias) => (float[2,8] y) {
            axes = Constant<value_ints = [-1]>()
            two = Constant<value_float = 2.0>()
            epsilon = Constant<value_float = 0.00001>()
            mean = ReduceMean(x, axes)
            d = Sub(x, mean)
            p = Pow(d, two)
            var = ReduceMean(p, axes)
            e = Add(var, epsilon)
            s = Sqrt(e)
            n = Div(d, s)
            m = Mul(n, scale)
            y = Add(m, bias) }""",
    ),
    __name__,
)
