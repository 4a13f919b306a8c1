import onnx
import pytest

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
