"""Operators in the spelling that ends best in TFLite.

Problem: a hard sigmoid, clip(x / 6 + 1/2, 0, 1), becomes MUL, ADD and RELU_0_TO_1. The quantiser
has no int8 RELU_0_TO_1, and the converter folds the 1/6 into the weights of the layer before, which
are then no longer those of the graph. And a mean over the picture behind an addition becomes a
transposition and a MEAN, though GlobalAveragePool becomes a MEAN alone.

Transformation: clip(x / 6 + 1/2, 0, 1) = clip(x + 3, 0, 6) / 6: the layer's bias takes the 3, its
fused RELU6 the clip, and one int8 MUL remains. ReduceMean(x, axes 2 and 3, no axes kept) =
Flatten(GlobalAveragePool(x)) in front of a classifier.

Scope: HardSigmoid with alpha 1/6 and beta 1/2, float32; means of [N, C, H, W] that only Gemm reads.
Left alone: other slopes, for which TFLite has no fused clip; other means, whose axes may be others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

CLIP_INPUTS_SINCE = 11


def spell_hard_sigmoids(proto: onnx.ModelProto) -> int:
    """Rewrite the hard sigmoids of a plain graph in place; returns how many there were."""
    import onnx

    opset = next(o.version for o in proto.opset_import if o.domain == "")
    if opset < CLIP_INPUTS_SINCE:
        return 0
    graph = proto.graph
    taken = {tensor.name for tensor in graph.initializer}
    taken |= {name for node in graph.node for name in (*node.input, *node.output)}

    def fresh(hint: str) -> str:
        name = hint
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    nodes: list[onnx.NodeProto] = []
    constants: dict[float, str] = {}
    count = 0
    for node in graph.node:
        if not _is_hard_sigmoid(node):
            nodes.append(node)
            continue
        count += 1
        for number in (3.0, 0.0, 6.0, 1 / 6):
            if number not in constants:
                constants[number] = fresh(f"hard_sigmoid_{number:.3g}")
        source, output = node.input[0], node.output[0]
        shifted, clipped = fresh(f"{output}_shifted"), fresh(f"{output}_clipped")
        nodes += [
            onnx.helper.make_node("Add", [source, constants[3.0]], [shifted], shifted),
            onnx.helper.make_node(
                "Clip", [shifted, constants[0.0], constants[6.0]], [clipped], clipped
            ),
            onnx.helper.make_node("Mul", [clipped, constants[1 / 6]], [output], node.name),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    kind = onnx.TensorProto.FLOAT
    graph.initializer.extend(
        onnx.helper.make_tensor(name, kind, [], [number]) for number, name in constants.items()
    )
    return count


def spell_picture_means(proto: onnx.ModelProto) -> int:
    """Rewrite the means in front of classifiers in place; returns how many there were."""
    import onnx

    graph = proto.graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*graph.value_info, *graph.input)}
    axes = {
        tensor.name: onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.INT64
    }
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in graph.node:
        given = {attribute.name: attribute for attribute in node.attribute}
        if (
            node.domain != ""
            or node.op_type != "ReduceMean"
            or ranks.get(node.input[0]) != 4
            or "keepdims" not in given
            or given["keepdims"].i
            or _axes(node, axes) != [2, 3]
            or [reader.op_type for reader in readers.get(node.output[0], ())] != ["Gemm"]
        ):
            nodes.append(node)
            continue
        count += 1
        pooled = f"{node.output[0]}_pooled"
        while pooled in readers:
            pooled += "_"
        nodes += [
            onnx.helper.make_node("GlobalAveragePool", [node.input[0]], [pooled], pooled),
            onnx.helper.make_node("Flatten", [pooled], [node.output[0]], node.name),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    return count


def _axes(node: onnx.NodeProto, constants: Mapping[str, list[int]]) -> list[int]:
    """The axes of a reduction over a tensor of rank 4; empty when they are not known."""
    given = [list(a.ints) for a in node.attribute if a.name == "axes"]
    if len(node.input) > 1:
        given = [constants.get(node.input[1], [])]
    return sorted(axis % 4 for axes in given for axis in axes)


def _is_hard_sigmoid(node: onnx.NodeProto) -> bool:
    given: dict[str, float] = {attribute.name: attribute.f for attribute in node.attribute}
    slope, shift = given.get("alpha", 0.2), given.get("beta", 0.5)
    meant: bool = abs(slope - 1 / 6) < 1e-6 and abs(shift - 0.5) < 1e-6
    return meant and node.domain == "" and node.op_type == "HardSigmoid"
