from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import pytest

from edgefuse.graph.group import groups
from edgefuse.graph.verify import compare, seeded_feed
from edgefuse.passes.fuse_linear import PASS

from .check_pass import apply, check_pass, onnx_model

ROOT, HALF, ONE = np.array(2.0**0.5), np.array(0.5), np.array(1.0)


def linear(
    tail: str, *, x: str = "2,3", y: str = "2,4", bias: str = "4", outputs: str = "",
    weight: str = "3,4", opset: int = 18, **options: object,
) -> onnx.ModelProto:  # fmt: skip
    text = f"""g (float[{x}] x, float[{weight}] w, float[{bias}] b, float lo, float six, float root,
            float one, float half) => (float[{y}] y{outputs}) {{
        t = MatMul(x, w)
        {tail} }}"""
    constants = {"w": 1, "b": 2, "lo": 0.0, "six": 6.0, "root": ROOT, "one": ONE, "half": HALF}
    return onnx_model(text, opset=opset, **(constants | options))  # type: ignore[arg-type]


GELU = "d = Div(u, root) e = Erf(d) o = Add(e, one) m = Mul(u, o) y = Mul(m, half)"


@pytest.mark.parametrize(
    ("tail", "ops"),
    [
        ("y = Add(t, b)", ["MatMulAdd"]),
        ("y = Add(b, t)", ["MatMulAdd"]),
        ("y = Relu(t)", ["MatMulRelu"]),
        ("u = Add(t, b) y = Relu(u)", ["MatMulAddRelu"]),
        ("u = Add(t, b) y = Clip(u, lo, six)", ["MatMulAddClip"]),
        ("u = Add(b, t) y = Sigmoid(u)", ["MatMulAddSigmoid"]),
        ("u = Add(t, b) s = Sigmoid(u) y = Mul(u, s)", ["MatMulAddSilu"]),
        (f"u = Add(t, b) {GELU}", ["MatMulAddGelu"]),
        ("u = Add(t, b) r = Relu(u) y = Neg(r)", ["MatMulAddRelu", "Neg"]),
        ("u = Add(t, b) n = Neg(u) m = Relu(u) y = Mul(n, m)", ["MatMulAdd", "Neg", "Relu", "Mul"]),
    ],
)
def test_fires(tail: str, ops: list[str]) -> None:
    check_pass(PASS, fires=[(linear(tail), 1, ops)])


@pytest.mark.parametrize(
    ("x", "y", "bias"),
    [
        ("2,3", "2,4", "1,4"),
        ("5,2,3", "5,2,4", "4"),
        ("5,2,3", "5,2,4", "1,4"),
        ("2,1,5,2,3", "2,1,5,2,4", "4"),
        ("N,2,3", "N,2,4", "4"),
        ("3", "4", "4"),
    ],
)
def test_any_rank(x: str, y: str, bias: str) -> None:
    model = linear("u = Add(t, b) y = Tanh(u)", x=x, y=y, bias=bias)
    check_pass(PASS, fires=[(model, 1, ["MatMulAddTanh"])])


@pytest.mark.parametrize(
    ("bias", "y"),
    [("2,1", "2,4"), ("1,2,4", "1,2,4"), ("1,1,1,2,4", "1,1,1,2,4"), ("1", "2,4"), ("1,1", "2,4"),
     ("2,4", "2,4"), ("1,1,4", "1,2,4")],
)  # fmt: skip
def test_case_7_other_shapes_of_bias_are_refused(bias: str, y: str) -> None:
    shape = "[" + bias.replace(",", ", ") + "]"
    reason = f"adds a constant (b) of shape {shape} to the 4 columns of MatMul 'MatMul_t'"
    for tail in ("y = Add(t, b)", "u = Add(b, t) y = Relu(u)"):
        check_pass(PASS, ignores=[(linear(tail, bias=bias, y=y), reason)])


def test_case_7_one_column() -> None:
    def column(bias: str, y: str = "2,1") -> onnx.ModelProto:
        return linear("y = Add(t, b)", weight="3,1", bias=bias, y=y)

    check_pass(
        PASS,
        fires=[(column("1"), 1, ["MatMulAdd"]), (column("1,1"), 1, ["MatMulAdd"])],
        ignores=[
            (column("2,1"), "of shape [2, 1] to the 1 columns"),
            (column("4", "2,4"), "of shape [4] to the 1 columns"),
        ],
    )


def test_a_row_would_change_the_rank_of_one_vector() -> None:
    model = linear("y = Add(t, b)", x="3", bias="1,4", y="1,4")
    check_pass(PASS, ignores=[(model, "of shape [1, 4] to the 4 columns")])


@pytest.mark.parametrize(
    ("activation", "opset", "name"),
    [
        ("Relu(t)", 18, "GemmRelu"),
        ("LeakyRelu <alpha = 0.2> (t)", 18, "GemmLeakyRelu"),
        ("Gelu(t)", 20, "GemmGelu"),
        ("HardSwish(t)", 14, "GemmHardSwish"),
        ("Clip <min = 0.0, max = 6.0> (t)", 9, "GemmClip"),
    ],
)
def test_gemm_with_an_activation(activation: str, opset: int, name: str) -> None:
    def gemm(tail: str) -> onnx.ModelProto:
        text = f"""g (float[2,3] x, float[4,3] w, float[4] b) => (float[2,4] y) {{
            t = Gemm <transB = 1> (x, w, b)
            {tail} }}"""
        return onnx_model(text, opset=opset, w=1, b=2)

    check_pass(
        PASS,
        fires=[(gemm(f"y = {activation}"), 1, [name])],
        ignores=[
            (gemm("y = Neg(t)"), ""),
            (gemm(f"n = {activation} y = Add(n, t)"), "(t) is also read by Add 'Add_y'"),
        ],
    )


def test_refusals() -> None:
    attention = onnx_model("""g (float[2,3] x, float[3,2] z) => (float[2,2] y) {
        t = MatMul(x, z)
        y = Relu(t) }""")
    check_pass(
        PASS,
        ignores=[
            (attention, ""),
            (linear("y = Neg(t)"), ""),
            (linear("y = Add(t, b)", overridable=["b"]), "(b) is also a graph input"),
            (linear("u = Add(t, b) n = Neg(t) y = Add(u, n)"), "(t) is also read by Neg 'Neg_n'"),
            (linear("y = Add(t, b)", outputs=", float[2,4] t"), "(t) is an output of the graph"),
            (linear("y = Add(t, b)", x="5,2,3", y="5,2,4", weight="5,3,4"), ""),
        ],
    )


def test_a_weight_that_a_caller_may_override_stays_an_input() -> None:
    model = linear("u = Add(t, b) y = Relu(u)", overridable=["w"])
    done = apply(PASS, model)
    assert done.ops == ["MatMulAddRelu"] and "w" in [i.name for i in done.proto.graph.input]


def test_the_group_knows_its_weight_bias_and_activation(tmp_path: Path) -> None:
    tails = {"u = Add(b, t) y = Relu(u)": "RELU", "y = Add(t, b)": "NONE", "y = Relu(t)": "RELU"}
    for tail, activation in tails.items():
        model = linear(tail)
        done = apply(PASS, model).proto
        onnx.save(done, tmp_path / "m.onnx")
        (group,) = groups(tmp_path / "m.onnx")
        held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        assert group.activation == activation and group.residual == -1
        np.testing.assert_array_equal(group.weight, held["w"])
        if "Add" in tail:
            np.testing.assert_array_equal(group.bias, held["b"])
        else:
            assert group.bias is None
        plain = onnx.inliner.inline_local_functions(done)
        compare(model, plain, [seeded_feed(model, seed=3)], max_relative_error=0.0)


def test_the_constants_of_an_activation_are_no_bias(tmp_path: Path) -> None:
    body = "a = Add(t, b) r = Clip(a, lo, six) m = Mul(t, r) y = Div(m, six)"
    done = apply(PASS, linear(body, bias="1", b=np.array([3.0])))
    assert done.ops == ["MatMulHardSwish"]
    onnx.save(done.proto, tmp_path / "m.onnx")
    (group,) = groups(tmp_path / "m.onnx")
    assert (group.bias, group.activation, group.residual) == (None, "HARDSWISH", -1)


@pytest.mark.parametrize("kind", ["float16", "double", "bfloat16"])
def test_other_types(kind: str) -> None:
    text = f"""g ({kind}[2,3] x, {kind}[3,4] w, {kind}[4] b) => ({kind}[2,4] y) {{
        t = MatMul(x, w)
        u = Add(t, b)
        y = Sigmoid(u) }}"""
    model = onnx_model(text, w=1, b=2)
    check_pass(PASS, fires=[(model, 1, ["MatMulAddSigmoid"])], numbers=kind != "bfloat16")
