"""Programs of small graphs agree with onnxruntime, layouts cost nothing, refusals name the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefuse.cuda.lower.choose import choose, every_depthwise
from edgefuse.cuda.lower.graph import lower
from edgefuse.cuda.program import Program
from edgefuse.cuda.run_numpy import Runner
from edgefuse.cuda.storage import Precision
from edgefuse.errors import DataError, StageError
from edgefuse.graph.cost import Balance
from edgefuse.graph.shapes import at_shapes
from edgefuse.graph.verify import seeded_feed

from ..nets import BLOCK, expected, fused, graph

TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 8e-2}
H200 = Balance(2e-6, 4.3e12, 790e12, vector_flops_per_s=67e12, parallel_tiles=132)


def check(text: str, precision: Precision = "fp32", merge: bool = False) -> Program:
    """The program of a fused text, after its outputs were compared, the arena poisoned before."""
    proto = fused(graph(text))
    model = at_shapes(proto, {}).model
    kernels = every_depthwise(model) if merge else None
    program, weights = lower(model, precision, name="net", kernels=kernels)
    feed = seeded_feed(proto, seed=5)
    wanted = expected(proto, feed)
    for poison in (0x00, 0xC7):
        got = Runner(program, weights, poison=poison)(feed)
        for name, value in wanted.items():
            assert got[name].shape == value.shape
            gap = np.abs(got[name] - value).max() / np.abs(value).max()
            assert gap <= TOLERANCE[precision], (name, gap)
    return program


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("merge", [False, True])
def test_an_inverted_residual(precision: Precision, merge: bool) -> None:
    program = check(BLOCK, precision, merge)
    kernels = [launch.kernel for launch in program.launches]
    middle = ["depthwise_project"] if merge else ["depthwise", "conv1x1"]
    assert kernels == ["conv", "conv1x1", *middle, "reduce", "gemm"]
    assert program.launches[0].attributes["layout"] == "NCHW"
    assert program.arena.proven
    assert program.bytes_moved == program.floor_bytes or precision != "fp32"
    residual = program.launches[len(middle) + 1]
    assert [step.kind for step in residual.epilogue] == ["add", "add"]
    # The residual dies here, so that the result takes its place.
    assert program.tensor(residual.output).offset == program.tensor("a0").offset


def test_merged_or_not_the_numbers_are_the_same() -> None:
    proto = fused(graph(BLOCK))
    feed = seeded_feed(proto, seed=5)
    answers = []
    for merge in (False, True):
        model = at_shapes(proto, {}).model
        kernels = every_depthwise(model) if merge else None
        program, weights = lower(model, "fp16", name="net", kernels=kernels)
        answers.append(Runner(program, weights)(feed)["y"])
    assert np.array_equal(*answers)


GRAPHS: dict[str, tuple[str, list[str]]] = {
    "transposes are views": (
        """(float[2, 6, 4, 5] x, float[6] s, float[6] b) => (float[2, 6, 4, 5] y) {
        t = Transpose<perm = [0, 2, 3, 1]>(x)  n = LayerNormalization<axis = -1>(t, s, b)
        u = Transpose<perm = [0, 3, 1, 2]>(n)  y = Neg(u) }""",
        ["pointwise", "norm", "pointwise", "pointwise"],
    ),
    "channels are shuffled by one copy": (
        """(float[1, 6, 4, 5] x, float[6, 6, 1, 1] w) => (float[1, 6, 4, 5] y)
        <int64[5] s = {1, 2, 3, 4, 5}, int64[4] e = {1, 6, 4, 5}> {
        c = Conv(x, w)  v = Reshape(c, s)  t = Transpose<perm = [0, 2, 1, 3, 4]>(v)
        r = Reshape(t, e)  y = Conv(r, w) }""",
        ["pointwise", "conv1x1", "pointwise", "conv1x1", "pointwise"],
    ),
    "a gate broadcasts": (
        """(float[2, 4, 3, 5] x, float[4, 4, 1, 1] w) => (float[2, 4, 3, 5] y)
        <int64[2] axes = {2, 3}> {
        c = Conv(x, w)  m = ReduceMean(c, axes)  g = Sigmoid(m)  y = Mul(g, c) }""",
        ["pointwise", "conv1x1", "reduce", "pointwise"],
    ),
    "slices are joined": (
        """(float[2, 7] x) => (float[2, 7] y)
        <int64[1] z = {0}, int64[1] three = {3}, int64[1] end = {7}, int64[1] one = {1}> {
        a = Slice(x, z, three, one)  b = Slice(x, three, end, one)  y = Concat<axis = 1>(b, a) }""",
        ["concat"],
    ),
    "pools": (
        """(float[2, 4, 9, 7] x) => (float[2, 4, 3, 2] y) {
        m = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
        y = AveragePool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 0, 0]>(m) }""",
        ["pointwise", "pool", "pool", "pointwise"],
    ),
    "twice the size": (
        """(float[1, 2, 3, 4] x, float[2, 2, 1, 1] w) => (float[1, 2, 6, 8] y)
        <float[4] s = {1.0, 1.0, 2.0, 2.0}> {
        c = Conv(x, w)
        y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
                   nearest_mode = "floor">(c, , s) }""",
        ["pointwise", "conv1x1", "pointwise", "pointwise"],
    ),
    "pixels are put in place": (
        """(float[1, 3, 2, 5] x, float[3, 4, 2, 2] w, float[4] b) => (float[1, 4, 4, 10] y) {
        y = ConvTranspose<strides = [2, 2], kernel_shape = [2, 2]>(x, w, b) }""",
        ["pointwise", "conv1x1", "pointwise", "pointwise"],
    ),
    "softmax along channels": (
        "(float[2, 5, 3] x) => (float[2, 5, 3] y) { y = Softmax<axis = 1>(x) }",
        ["pointwise", "softmax", "pointwise"],
    ),
    "an input is handed out": (
        "(float[2, 3] x) => (float[3, 2] y) { y = Transpose<perm = [1, 0]>(x) }",
        ["pointwise"],
    ),
    "constants at the left": (
        """(float[2, 3] x) => (float[2, 3] y) <float two = {2.0}, float[3] v = {1.0, 2.0, 3.0}> {
        a = Sub(two, x)  b = Mul(a, v)  c = Max(b, two)  y = Div(two, c) }""",
        ["pointwise"],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_small_graphs(name: str) -> None:
    text, kernels = GRAPHS[name]
    program = check(text)
    assert [launch.kernel for launch in program.launches][: len(kernels)] == kernels[
        : len(program.launches)
    ]


def test_operators_without_a_kernel_are_refused_by_name() -> None:
    text = "(float[1, 4, 6] x) => (float[1, 4, 6] y) <int64 axis = {1}> "
    proto = fused(graph(text + "{ a = Relu(x) y = CumSum(a, axis) }"))
    for node in proto.graph.node:
        if node.op_type == "CumSum":
            node.name = "running"
            scopes = node.metadata_props.add()
            scopes.key, scopes.value = "pkg.torch.onnx.name_scopes", "['', 'head.sum', 'running']"
    with pytest.raises(StageError) as raised:
        lower(at_shapes(proto, {}).model, "fp32", name="net")
    assert "CumSum 'running' (torch module head.sum)" in raised.value.message
    assert "supported: convolutions" in raised.value.hint


REFUSED = {
    "Conv1d": "(float[1, 4, 6] x, float[4, 4, 3] w) => (float[1, 4, 4] y) { y = Conv(x, w) }",
    "2 groups": """(float[1, 4, 6, 6] x, float[4, 2, 1, 1] w) => (float[1, 4, 6, 6] y) {
        y = Conv<group = 2>(x, w) }""",
    "computed at run time": """(float[4, 6] x, float[6, 2] x2) => (float[4, 2] y) {
        y = MatMul(x, x2) }""",
    "several": """(float[4, 6] x) => (float[4, 2] y) <int64[2] i = {0, 3}> {
        y = Gather<axis = 1>(x, i) }""",
}


@pytest.mark.parametrize("problem", REFUSED)
def test_refusals(problem: str) -> None:
    wanted = {"Conv1d": "convolution over 1 axes"}.get(problem, problem)
    with pytest.raises(StageError, match=wanted):
        lower(at_shapes(graph(REFUSED[problem]), {}).model, "fp32", name="net")


def test_a_tensor_beyond_32_bits() -> None:
    proto = graph("(float[70000, 200, 200] x) => (float[70000, 200, 200] y) { y = Relu(x) }")
    with pytest.raises(StageError, match="2800000000 elements: kernels index with 32 bits"):
        lower(at_shapes(proto, {}).model, "fp32", name="net")


def test_a_feed_of_another_shape() -> None:
    proto = fused(graph(BLOCK))
    program, weights = lower(at_shapes(proto, {}).model, "fp32", name="net")
    with pytest.raises(
        DataError, match=r"input 'x' has to be \[2, 3, 9, 11\], not \[1, 3, 9, 11\]"
    ):
        Runner(program, weights)({"x": np.zeros((1, 3, 9, 11), np.float32)})


def test_an_input_that_is_not_contiguous_is_taken_by_its_values() -> None:
    proto = fused(graph(BLOCK))
    program, weights = lower(at_shapes(proto, {}).model, "fp32", name="net")
    feed: Any = seeded_feed(proto, seed=5)
    turned = {"x": np.ascontiguousarray(feed["x"].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)}
    run = Runner(program, weights)
    assert np.array_equal(run(turned)["y"], run(feed)["y"])


def test_kernels_are_chosen_from_those_that_exist() -> None:
    model = at_shapes(fused(graph(BLOCK)), {}).model
    plan = choose(model, H200, "fp16", bucket="small")
    program, _ = lower(model, "fp16", name="net", kernels=plan.kernels, bucket="small")
    assert len(program.launches) == len(plan.kernels) == 5
    rows = at_shapes(
        graph("""(float[8, 16] x, float[16] s, float[16] b, float[16, 4] w) => (float[8, 4] y) {
            n = LayerNormalization<axis = -1>(x, s, b)  y = MatMul(n, w) }"""),
        {},
    ).model
    (decision,) = choose(rows, H200, "fp32").decisions
    assert not decision.taken and "no kernel normalises rows" in decision.reason
