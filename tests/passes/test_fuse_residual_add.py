from pathlib import Path

import onnx
import pytest

from edgefuse.graph.group import groups
from edgefuse.passes.fuse_residual_add import PASS

from .check_pass import apply, check_pass, onnx_model


def block(tail: str, *, extra: str = "", **constants: object) -> onnx.ModelProto:
    text = f"""g (float[1,4,5,5] x, float[4,4,1,1] w, float[4,4,1,1] u, float[4] b{extra})
        => (float[1,4,5,5] y) {{
        t = Conv(x, w, b)
        {tail} }}"""
    return onnx_model(text, **{"w": 1, "u": 2, "b": 3, **constants})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tail", "ops"),
    [
        ("y = Add(t, x)", ["ConvAdd"]),
        ("y = Add(x, t)", ["ConvAdd"]),
        ("a = Add(x, t) y = Relu(a)", ["ConvAddRelu"]),
        ("s = Sigmoid(x) y = Add(t, s)", ["Sigmoid", "ConvAdd"]),
        ("s = Conv(x, u) a = Add(t, s) y = Relu(a)", ["Conv", "ConvAddRelu"]),
        ("r = Add(x, t) s = Conv(r, u) y = Add(r, s)", ["ConvAdd", "ConvAdd"]),
        ("a = Add(x, t) n = Neg(a) m = Relu(a) y = Mul(n, m)", ["ConvAdd", "Neg", "Relu", "Mul"]),
    ],
)
def test_fires(tail: str, ops: list[str]) -> None:
    times = sum(op.startswith("ConvAdd") for op in ops)
    check_pass(PASS, fires=[(block(tail), times, ops)])


@pytest.mark.parametrize(
    ("tail", "ops"),
    [
        ("r = Relu(t) y = Add(r, x)", ["ConvReluAdd"]),
        ("r = Relu(t) y = Add(x, r)", ["ConvReluAdd"]),
        ("r = LeakyRelu(t) y = Add(x, r)", ["ConvLeakyReluAdd"]),
        ("s = Sigmoid(t) m = Mul(t, s) y = Add(x, m)", ["ConvSiluAdd"]),
        ("p = Softplus(t) h = Tanh(p) m = Mul(t, h) y = Add(m, x)", ["ConvMishAdd"]),
        ("r = Relu(t) a = Add(x, r) y = Neg(a)", ["ConvReluAdd", "Neg"]),
        ("r = Relu(t) s = Conv(x, u) y = Add(r, s)", ["Conv", "Relu", "ConvAdd"]),
        ("s = Conv(x, u) r = Relu(t) y = Add(r, s)", ["Conv", "Relu", "ConvAdd"]),
    ],
)
def test_both_orders_are_kept_apart(tail: str, ops: list[str]) -> None:
    check_pass(PASS, fires=[(block(tail), 1, ops)])


def test_which_side_of_the_addition_the_activation_is_on(tmp_path: Path) -> None:
    found = {}
    for tail in ("r = Relu(t) y = Add(r, x)", "a = Add(t, x) y = Relu(a)", "y = Add(x, t)"):
        onnx.save(apply(PASS, block(tail)).proto, tmp_path / "m.onnx")
        (group,) = groups(tmp_path / "m.onnx")
        found[group.op_type] = (group.ops, group.activation, group.residual)
    assert found == {
        "ConvReluAdd": (("Conv", "Relu", "Add"), "RELU", 2),
        "ConvAddRelu": (("Conv", "Add", "Relu"), "RELU", 1),
        "ConvAdd": (("Conv", "Add"), "NONE", 1),
    }


@pytest.mark.parametrize(
    ("tail", "ops"),
    [
        ("t = Gemm(x, w, b) y = Add(t, x)", ["GemmAdd"]),
        ("t = Gemm(x, w, b) a = Add(x, t) y = Relu(a)", ["GemmAddRelu"]),
        ("t = Gemm(x, w, b) r = Relu(t) y = Add(x, r)", ["GemmReluAdd"]),
        ("t = MatMul(x, w) y = Add(t, x)", ["MatMulAdd"]),
        ("t = MatMul(x, w) u = Add(t, b) y = Add(x, u)", ["MatMulAddAdd"]),
        ("t = MatMul(x, w) u = Add(b, t) y = Add(u, x)", ["MatMulAddAdd"]),
        ("t = MatMul(x, w) u = Add(t, b) a = Add(x, u) y = Tanh(a)", ["MatMulAddAddTanh"]),
        ("t = MatMul(x, w) u = Add(t, b) s = Sigmoid(u) m = Mul(u, s) y = Add(x, m)",
         ["MatMulAddSiluAdd"]),
    ],
)  # fmt: skip
def test_linear_layers(tail: str, ops: list[str], tmp_path: Path) -> None:
    text = f"g (float[3,4] x, float[4,4] w, float[4] b) => (float[3,4] y) {{ {tail} }}"
    model = onnx_model(text, w=1, b=2)
    check_pass(PASS, fires=[(model, 1, ops)])
    onnx.save(apply(PASS, model).proto, tmp_path / "m.onnx")
    (group,) = groups(tmp_path / "m.onnx")
    assert group.weight is not None and group.ops[group.residual] == "Add"
    assert (group.bias is None) == (", b" not in tail and "(b," not in tail)


def test_a_bias_is_left_to_the_linear_layer() -> None:
    text = "g (float[3,4] x, float[4,4] w, float[4] b) => (float[3,4] y) { %s }"
    for tail in ("t = MatMul(x, w) y = Add(t, b)", "t = MatMul(x, w) u = Add(b, t) y = Relu(u)"):
        for more in ({}, {"overridable": ["b"]}):
            check_pass(PASS, ignores=[(onnx_model(text % tail, w=1, b=2, **more), "")])


def test_activations_on_both_sides_are_refused() -> None:
    model = block("r = Relu(t) a = Add(r, x) y = Relu(a)")
    reason = "stands between two activations, Relu 'Relu_r' and Relu 'Relu_y'"
    check_pass(PASS, ignores=[(model, reason)])


def test_the_later_of_two_convolutions_takes_the_addition() -> None:
    done = apply(PASS, block("s = Conv(x, u) y = Add(s, t)"))
    assert done.proto.graph.node[0].name == "Conv_t"
    assert list(done.proto.graph.node[1].input)[:2] == ["x", "u"]


def test_dynamic_batch() -> None:
    text = """g (float[N,4,5,5] x, float[{batch},4,5,5] z, float[4,4,1,1] w)
        => (float[N,4,5,5] y) {{
        t = Conv(x, w)
        y = Add(t, z) }}"""
    check_pass(
        PASS,
        fires=[(onnx_model(text.format(batch="N"), w=1), 1, ["ConvAdd"])],
        ignores=[(onnx_model(text.format(batch="1"), w=1), "not known to be equal")],
    )


def test_refusals() -> None:
    channel, scalar = ", float[1,4,1,1] c", ", float[1,1,5,5] c"
    check_pass(
        PASS,
        ignores=[
            (block("y = Add(t, c)", extra=channel, c=4), "a bias, no residual"),
            (block("y = Add(t, c)", extra=scalar), "not known to be equal"),
            (block("y = Add(t, t)"), "is read by Add 'Add_y' more than once"),
            (block("n = Neg(t) y = Add(t, n)"), "(t) is also read by Neg 'Neg_n'"),
            (block("n = Neg(t) y = Add(n, x)"), ""),
        ],
    )
