"""What of an ONNX graph is alive when, what shares a place, and what cannot be planned."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
import pytest

from edgefuse.errors import StageError
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.summary import figures
from edgefuse.memory.arena import Live, peak
from edgefuse.memory.liveness.onnx import ONNX, ONNX_IN_PLACE, live_buffers, steps_of

from ..onnx_text import RESIDUAL, model

REUSED = replace(ONNX, keeps_inputs=False)


def spans(buffers: tuple[Live, ...]) -> dict[str, tuple[int, int, int]]:
    return {b.name: (b.size_bytes, b.first, b.last) for b in buffers}


def test_lifetimes_inputs_and_outputs() -> None:
    """The input stays to the end unless its place may be used, the output from its making."""
    chain = model(
        """g (float[1,8] x) => (float[1,8] early, float[1,8] y) {
        early = Relu(x)
        b = Neg(early)
        y = Tanh(b) }"""
    )
    assert spans(live_buffers(chain)) == {
        "x": (32, 0, 2),
        "early": (32, 0, 2),
        "b": (32, 1, 2),
        "y": (32, 2, 2),
    }
    assert spans(live_buffers(chain, REUSED))["x"] == (32, 0, 0)
    assert spans(live_buffers(chain, replace(ONNX, alignment=64)))["b"] == (64, 1, 2)


def test_views_are_one_buffer_and_weights_are_none() -> None:
    """What shapes and constants alone decide is computed when the model is loaded."""
    graph = model(
        """g (float[1,2,4] x) => (float[1,8] y)
        <float[8] w = {1,2,3,4,5,6,7,8}, int64[2] shape = {1, 8}> {
        a = Relu(x)
        r = Reshape(a, shape)
        n = Neg(w)
        d = Dropout(r)
        z = Mul(d, n)
        s = Unsqueeze(z, axes)
        q = Identity(s)
        y = Squeeze(q, axes) }""".replace("{1, 8}>", "{1, 8}, int64[1] axes = {0}>")
    )
    found = {b.name: b.tensors for b in live_buffers(graph)}
    assert found == {"x": ("x",), "a": ("a", "r", "d"), "z": ("z", "s", "q", "y")}
    apart = live_buffers(graph, replace(ONNX, reshapes=False))
    assert [b.name for b in apart] == ["x", "a", "r", "d", "z", "s", "q", "y"]


def test_the_peak_is_that_of_the_figures_which_count_otherwise() -> None:
    for text in (RESIDUAL, CONTROL):
        graph = model(text)
        if text is RESIDUAL:
            assert peak(live_buffers(graph, REUSED))[0] == figures(graph).peak_bytes
            run_passes(graph)
            assert peak(live_buffers(graph, REUSED))[0] == figures(graph).peak_bytes


def test_a_group_is_one_step_and_writes_over_its_residual_alone() -> None:
    graph = model(RESIDUAL)
    assert [b.name for b in live_buffers(graph)] == ["x", "a", "b", "c", "y"]
    in_place = live_buffers(graph, ONNX_IN_PLACE)
    assert [b.tensors for b in in_place] == [("x",), ("a", "b"), ("c", "y")]
    run_passes(graph)
    steps = steps_of(graph)
    assert [step.nodes[0].op_type for step in steps] == ["ConvRelu", "ConvAdd"]
    assert [b.name for b in live_buffers(graph)] == ["x", "b", "y"]
    # The 1x1 convolution of ConvAdd reads its residual's own buffer, whole: not in place.
    assert [b.name for b in live_buffers(graph, ONNX_IN_PLACE)] == ["x", "b", "y"]


def test_a_residual_that_nobody_else_reads_is_written_over() -> None:
    graph = model(RESIDUAL.replace("y = Add(c, b)", "t = Tanh(x)\n y = Add(c, t)"))
    run_passes(graph)
    found = {b.name: b.tensors for b in live_buffers(graph, ONNX_IN_PLACE)}
    assert ("t", "y") in found.values(), found


@pytest.mark.parametrize(
    ("body", "shared"),
    [
        ("a = Relu(x)\n y = Tanh(a)", [("x",), ("a", "y")]),
        # Read again, or an output of the model.
        ("a = Tanh(x)\n b = Neg(a)\n y = Add(b, a)", [("x",), ("a",), ("b", "y")]),
        # The smaller operand is read several times for one result.
        ("a = ReduceMean<keepdims = 1>(x, axes)\n y = Mul(x, a)", [("x",), ("a",), ("y",)]),
        # Not element by element.
        ("a = Relu(x)\n y = Softmax(a)", [("x",), ("a",), ("y",)]),
        # Other widths.
        (
            "a = Relu(x)\n b = Cast<to = 10>(a)\n y = Cast<to = 1>(b)",
            [("x",), ("a",), ("b",), ("y",)],
        ),
        # Under another name, with another order of its axes.
        (
            "a = Relu(x)\n r = Reshape(a, turned)\n y = Add(a, r)",
            [("x",), ("a", "r"), ("y",)],
        ),
    ],
)
def test_what_is_written_over(body: str, shared: list[tuple[str, ...]]) -> None:
    shape = "[4,4]" if "turned" not in body else "[2,1,2]"
    result = shape if "turned" not in body else "[2,2,2]"
    constants = "<int64[1] axes = {1}, int64[3] turned = {1,2,2}>"
    graph = model(f"g (float{shape} x) => (float{result} y) {constants} {{ {body} }}")
    assert [b.tensors for b in live_buffers(graph, ONNX_IN_PLACE)] == shared


def test_an_input_is_written_over_only_where_allowed() -> None:
    graph = model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    assert len(live_buffers(graph, ONNX_IN_PLACE)) == 2
    (only,) = live_buffers(graph, replace(ONNX_IN_PLACE, keeps_inputs=False))
    assert only.tensors == ("x", "y")
    both = model("g (float[4] x) => (float[4] a, float[4] y) { a = Neg(x)\n y = Relu(a) }")
    assert len(live_buffers(both, replace(ONNX_IN_PLACE, keeps_inputs=False))) == 2


CONTROL = """g (float[1,8] x, bool c) => (float[1,8] y) {
    a = Relu(x)
    k = Neg(x)
    b = If (c) <
        then_branch = t () => (float[1,8] p) { q = Tanh(a)  p = Neg(q) },
        else_branch = e () => (float[1,8] r) { r = Abs(k) }>
    y = Add(b, x) }"""


def test_bodies_count_at_the_step_of_their_owner() -> None:
    """Both branches, and what they read from outside lives until then."""
    found = spans(live_buffers(model(CONTROL)))
    assert {name: found[name] for name in "akqprb"} == {
        "a": (32, 0, 2),
        "k": (32, 1, 2),
        **dict.fromkeys("qpr", (32, 2, 2)),
        "b": (32, 2, 3),
    }
    assert found["c"] == (1, 0, 3)


def test_a_loop_counts_what_its_body_is_given() -> None:
    graph = model(
        """g (float[1,8] x) => (float[1,8] y)
        <int64 n = {3}, bool go = {1}> {
        y = Loop (n, go, x) <body = b (int64 i, bool on, float[1,8] s) => (bool on2, float[1,8] t) {
            on2 = Identity(on)
            t = Tanh(s) }> }"""
    )
    found = spans(live_buffers(graph))
    assert {name: found[name][0] for name in ("i", "on", "s", "on2", "t")} == {
        "i": 8,
        "on": 1,
        "s": 32,
        "on2": 1,
        "t": 32,
    }
    assert all(first == last == 0 for _, first, last in found.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[N,8] x) => (float[N,8] y) { y = Relu(x) }", "'x' [N, 8] has a shape known only"),
        (
            "g (float[4] x) => (int64[1,K] y) { y = NonZero(x) }",
            "'y' [1, K] has a shape known only at run time",
        ),
        ("g (float[0,8] x) => (float[0,8] y) { y = Relu(x) }", "'x' [0, 8] has no elements"),
        (
            "g (float[2147483648,2147483648,2] x) => (float[2147483648,2147483648,2] y) "
            "{ y = Relu(x) }",
            "is larger than an address can tell",
        ),
        ("g (string[4] x) => (string[4] y) { y = Identity(x) }", "values without a fixed size"),
    ],
)
def test_what_cannot_be_planned(text: str, message: str) -> None:
    with pytest.raises(StageError) as caught:
        live_buffers(model(text))
    assert message in caught.value.message
    assert caught.value.hint and caught.value.where


def test_a_cycle_and_a_wrong_order() -> None:
    def node(kind: str, *inputs: ir.Value) -> ir.Node:
        made = ir.Node("", kind, inputs, name=kind)
        made.outputs[0].name = kind.lower()
        made.outputs[0].shape, made.outputs[0].type = x.shape, x.type
        return made

    def graph(nodes: list[ir.Node]) -> ir.Model:
        whole = ir.Graph([x], [nodes[-1].outputs[0]], nodes=nodes, opset_imports={"": 18})
        return ir.Model(whole, ir_version=10)

    def tensor() -> ir.Value:
        return ir.Value(name="x", shape=ir.Shape([4]), type=ir.TensorType(ir.DataType.FLOAT))

    x = tensor()
    add = node("Add", x, x)
    neg = node("Neg", add.outputs[0])
    add.replace_input_with(1, neg.outputs[0])
    with pytest.raises(StageError, match="has a cycle, through Add 'Add', Neg 'Neg'"):
        live_buffers(graph([add, neg]))
    x = tensor()
    relu = node("Relu", x)
    tanh = node("Tanh", relu.outputs[0])
    with pytest.raises(StageError, match="Tanh 'Tanh' comes before an operator"):
        live_buffers(graph([tanh, relu]))
