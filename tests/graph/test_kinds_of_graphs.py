"""Kinds of graphs that rewriting goes wrong on, in every opset, through all passes: never wrong.

Each graph starts with what passes like best (convolutions, BatchNorm, activations, residuals, norms
and attention) and goes on at random.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from graph import random_steps as steps
from graph.random_graphs import RandomGraph, Step, fuse_and_compare, random_graph

OPSETS = range(11, 22)
LAYERS: tuple[Step, ...] = (steps.conv_batch_norm, steps.residual, steps.conv_scale)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    "first",
    [
        (steps.branch, steps.conv_batch_norm),
        (steps.loop, steps.residual),
        (steps.conv_batch_norm, steps.branch, steps.loop),
    ],
    ids=["branch", "loop", "both"],
)
def test_subgraphs_that_capture_values(opset: int, first: tuple[Step, ...], tmp_path: Path) -> None:
    case = random_graph(opset, opset, first)
    assert {"If", "Loop"} & {node.op_type for node in case.proto.graph.node}
    fuse_and_compare(case, tmp_path)


@pytest.mark.parametrize("opset", OPSETS)
def test_every_value_is_an_output(opset: int, tmp_path: Path) -> None:
    case = random_graph(opset, opset, LAYERS)
    proto = case.proto
    floating = {
        i.name: i
        for i in proto.graph.value_info
        if i.type.tensor_type.elem_type == 1 and i.type.tensor_type.HasField("shape")
    }
    known = {o.name for o in proto.graph.output}
    proto.graph.output.extend(
        floating[name]
        for node in proto.graph.node
        for name in node.output
        if name in floating and name not in known and node.op_type != "Constant"
    )
    assert len(proto.graph.output) > 5
    fuse_and_compare(case, tmp_path)
    fused = onnx.load(str(tmp_path / "fused.onnx"))
    assert [o.name for o in fused.graph.output] == [o.name for o in proto.graph.output]


@pytest.mark.parametrize("opset", OPSETS)
def test_initializers_that_many_nodes_share(opset: int, tmp_path: Path) -> None:
    """All constants of one shape and type are one, whatever reads them."""
    case = random_graph(opset, opset, LAYERS)
    graph = case.proto.graph
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    alias: dict[str, str] = {}
    declared = {i.name for i in graph.input}
    for tensor in graph.initializer:
        if tensor.data_type == 1 and tensor.name not in declared and _may_share(tensor):
            key = (tensor.data_type, tuple(tensor.dims))
            alias[tensor.name] = first.setdefault(key, tensor.name)
    for node in graph.node:
        node.input[:] = [alias.get(name, name) for name in node.input]
    kept = [t for t in graph.initializer if alias.get(t.name, t.name) == t.name]
    assert len(kept) < len(graph.initializer)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    fuse_and_compare(case, tmp_path)


def _may_share(tensor: onnx.TensorProto) -> bool:
    """Variances are left alone: another constant in their place may be negative."""
    return not (len(tensor.dims) == 1 and onnx.numpy_helper.to_array(tensor).min() > 0)


@pytest.mark.parametrize("opset", OPSETS)
def test_every_initializer_is_an_input_too(opset: int, tmp_path: Path) -> None:
    """What the caller gives in place of a weight must reach the result."""
    case = random_graph(opset, opset, LAYERS)
    _declare_initializers(case)
    fuse_and_compare(case, tmp_path)
    sessions = [
        onnxruntime.InferenceSession(str(tmp_path / name), providers=["CPUExecutionProvider"])
        for name in ("source.onnx", "fused.onnx")
    ]
    weights = {
        t.name: np.asarray(onnx.numpy_helper.to_array(t) * np.float32(1.25))
        for t in case.proto.graph.initializer
        if t.data_type == 1
    }
    default, given, fused = (
        session.run(None, {**case.feeds[0], **overridden})
        for session, overridden in (
            (sessions[0], {}),
            (sessions[0], weights),
            (sessions[1], {n: weights[n] for n in _overridable(sessions[1]) if n in weights}),
        )
    )
    assert not np.allclose(default[-1], given[-1], rtol=1e-3)
    for expected, actual in zip(given, fused):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def _overridable(session: onnxruntime.InferenceSession) -> list[str]:
    return [str(value.name) for value in session.get_overridable_initializers()]


@pytest.mark.parametrize("version", range(3, 11))
def test_every_version_of_the_format(version: int, tmp_path: Path) -> None:
    case = random_graph(version, 11, LAYERS)
    case.proto.ir_version = version
    if version < 4:
        _declare_initializers(case)
    fuse_and_compare(case, tmp_path)


def _declare_initializers(case: RandomGraph) -> None:
    graph = case.proto.graph
    known = {i.name for i in graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in graph.initializer
        if t.name not in known
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("edit", ["dynamic", "no shapes"])
def test_extents_that_nobody_knows(opset: int, edit: str, tmp_path: Path) -> None:
    case = random_graph(opset, opset, LAYERS)
    graph = case.proto.graph
    del graph.value_info[:]
    if edit == "dynamic":
        _each_extent(graph, lambda dim, place: setattr(dim, "dim_param", f"d{place}"), (0, 2, 3))
    else:
        _each_extent(graph, lambda dim, place: dim.Clear(), (0, 2, 3))
    fuse_and_compare(case, tmp_path)


def _each_extent(
    graph: onnx.GraphProto,
    change: Callable[[onnx.TensorShapeProto.Dimension, int], None],
    places: tuple[int, ...],
) -> None:
    image = next(i for i in graph.input if i.name == "x")
    for place in places:
        change(image.type.tensor_type.shape.dim[place], place)
    for output in graph.output:
        for dim in output.type.tensor_type.shape.dim:
            dim.Clear()
