"""A group that is scaled dot-product attention, as one launch over strided views of q, k and v."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgefuse.cuda.lower.build import Build, refuse
from edgefuse.cuda.lower.layout import LAYOUTS
from edgefuse.cuda.lower.pointwise import scalar
from edgefuse.cuda.lower.view import View
from edgefuse.graph.values import attribute, module_path

if TYPE_CHECKING:
    import onnx_ir as ir

ORDER = (0, 2, 1, 3)


def is_attention(nodes: Sequence[ir.Node]) -> bool:
    kinds = [node.op_type for node in nodes]
    return kinds.count("MatMul") == 2 and kinds.count("Softmax") == 1


def lower_attention(build: Build, nodes: Sequence[ir.Node]) -> None:
    """``softmax(scale * q k^T) v``; factors on q, k and the scores are gathered in ``scale``.

    Raises:
        StageError: anything else in the group, a mask for example.
    """
    factors: dict[ir.Value, float] = {}
    scores: dict[ir.Value, tuple[View, View]] = {}
    for node in nodes:
        value, result = node.inputs[0], node.outputs[0]
        assert value is not None
        if node.op_type in LAYOUTS and value not in scores:
            LAYOUTS[node.op_type](build, node)
            factors[result] = factors.get(value, 1.0)
        elif node.op_type in ("Mul", "Div"):
            _scale(build, node, factors, scores)
        elif node.op_type == "MatMul" and value not in scores:
            key = node.inputs[1]
            assert key is not None
            scores[result] = (build.view(value), build.view(key))
            factors[result] = factors.get(value, 1.0) * factors.get(key, 1.0)
        elif node.op_type == "Softmax" and value in scores:
            rank = len(scores[value][0].shape)
            if int(attribute(node, "axis", -1)) % rank != rank - 1:
                refuse(node, "its softmax is not over the keys")
            scores[result], factors[result] = scores[value], factors[value]
        elif node.op_type == "MatMul":
            _launch(build, node, nodes, scores[value], factors[value])
        else:
            refuse(node, "it is a part of attention that no kernel computes, such as a mask")
    if nodes[-1].outputs[0] not in build.views:
        refuse(nodes[-1], "it follows attention in one group")


def _scale(
    build: Build,
    node: ir.Node,
    factors: dict[ir.Value, float],
    scores: dict[ir.Value, tuple[View, View]],
) -> None:
    left, right = node.inputs[:2]
    assert left is not None and right is not None
    number, value = scalar(right), left
    if number is None and node.op_type == "Mul":
        number, value = scalar(left), right
    if number is None:
        refuse(node, "it scales attention by what is computed at run time")
    result = node.outputs[0]
    factors[result] = factors.get(value, 1.0) * (number if node.op_type == "Mul" else 1.0 / number)
    if value in scores:
        scores[result] = scores[value]
    else:
        build.views[result] = build.view(value)


def _launch(
    build: Build,
    node: ir.Node,
    nodes: Sequence[ir.Node],
    pair: tuple[View, View],
    scale: float,
) -> None:
    value = node.inputs[1]
    assert value is not None
    query, key, mixed = pair[0], pair[1], build.view(value)
    rank = len(query.shape)
    if rank not in (3, 4) or {len(key.shape), len(mixed.shape)} != {rank}:
        refuse(node, f"its operands have {rank} axes", hint="give [batch, heads, tokens, columns]")
    key = key.transposed((*range(rank - 2), rank - 1, rank - 2))
    views = [query, key, mixed]
    if rank == 3:
        views = [View(v.tensor, (1, *v.shape), (0, *v.strides), v.offset) for v in views]
    n, h, t, d = views[0].shape
    s, e = views[2].shape[2:]
    if views[1].shape != (n, h, s, d) or views[2].shape[:2] != (n, h):
        refuse(node, "its heads are shared", hint="repeat keys and values for every head")
    result = nodes[-1].outputs[0]
    order = ORDER if rank == 4 else (1, 0, 2)
    shape = (n, t, h, e)
    output = build.output(result, order, module_path(node))
    target = build.alias(output, shape)
    build.launch(
        "attention", [v.tensor for v in views], (), target, nodes=nodes,
        sizes=(n, h, t, s, d, e), views=tuple((v.offset, v.strides) for v in views), scale=scale,
    )  # fmt: skip
