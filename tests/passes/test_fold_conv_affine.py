import numpy as np
import onnx
import pytest

from edgefuse.passes.fold_conv_affine import PASS

from .check_pass import apply, check_pass, onnx_model


def behind(
    layer: str, weight: list[int], x: str, y: str, operator: str, shape: str, *, bias: int = 0,
    opset: int = 18, **options: object,
) -> onnx.ModelProto:  # fmt: skip
    """A layer and ``y = operator`` on ``t`` and ``c``, a constant of ``shape``."""
    declared = f"float{weight} w, float{shape} c" + (f", float[{bias}] b" if bias else "")
    extents = [int(e) for e in shape.strip("[]").split(",") if e]
    constants: dict[str, object] = {"w": 1, "c": np.random.default_rng(2).uniform(0.5, 2, extents)}
    if bias:
        constants["b"] = 6
    text = f"""g (float{x} x, {declared}) => (float{y} y) {{
        t = {layer} (x, w{", b" if bias else ""})
        y = {operator} }}"""
    return onnx_model(text, opset=opset, **{**constants, **options})  # type: ignore[arg-type]


def conv(operator: str, shape: str, **options: object) -> onnx.ModelProto:
    """A Conv whose output is a cube: [1,4,4,4]."""
    given = ("Conv", [4, 3, 1, 1], "[1,3,4,4]", "[1,4,4,4]")
    return behind(*given, operator, shape, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [0, 4])
@pytest.mark.parametrize("shape", ["[4,1,1]", "[1,4,1,1]", "[1]", "[]", "[1,1,1,1]"])
def test_every_operator_in_both_orders(shape: str, bias: int) -> None:
    forms = ["Mul(t, c)", "Mul(c, t)", "Add(t, c)", "Add(c, t)", "Sub(t, c)", "Sub(c, t)",
             "Div(t, c)"]  # fmt: skip
    check_pass(PASS, fires=[(conv(form, shape, bias=bias), 1, ["Conv"]) for form in forms])


def test_known_numbers() -> None:
    done = apply(
        PASS, conv("Sub(c, t)", "[4,1,1]", bias=4, b=[1, 2, 3, 4], c=10 * np.ones((4, 1, 1)))
    )
    weight, bias = (done.constant(name) for name in done.proto.graph.node[0].input[1:])
    given = onnx.numpy_helper.to_array(conv("Sub(c, t)", "[4,1,1]").graph.initializer[0])
    np.testing.assert_array_equal(weight, -given)
    np.testing.assert_array_equal(bias, [9, 8, 7, 6])
    done = apply(PASS, conv("Div(t, c)", "[]", bias=4, b=[1, 2, 3, 4], c=4.0))
    np.testing.assert_array_equal(done.constant(done.proto.graph.node[0].input[1]), given / 4)
    done = apply(PASS, conv("Mul(t, c)", "[]", c=2.0))
    assert len(done.proto.graph.node[0].input) == 2, "no bias where none is needed"


def test_layers_ranks_and_groups() -> None:
    up, mul, add = "ConvTranspose", "Mul(t, c)", "Add(c, t)"
    cases = [
        (behind("Conv", [5, 3, 3], "[1,3,8]", "[1,5,6]", mul, "[5,1]"), "Conv"),
        (behind("Conv", [4, 2, 2, 2, 2], "[1,2,3,3,3]", "[1,4,2,2,2]", add, "[4,1,1,1]"), "Conv"),
        (behind("Conv <group = 4>", [4, 1, 3, 3], "[N,4,6,6]", "[N,4,4,4]", mul, "[4,1,1]"),
         "Conv"),
        (behind(f"{up} <group = 2>", [4, 3, 3, 3], "[1,4,5,5]", "[1,6,7,7]", mul, "[6,1,1]"), up),
        (behind(up, [4, 4, 3, 3], "[1,4,5,5]", "[1,4,7,7]", mul, "[4,1,1]", bias=4), up),
        (behind("Gemm", [3, 5], "[2,3]", "[2,5]", mul, "[5]"), "Gemm"),
        (behind("Gemm <transB = 1, alpha = 0.5, beta = 2.0>", [5, 3], "[2,3]", "[2,5]", mul,
                "[1,5]", bias=5), "Gemm"),
        (behind("Gemm <transA = 1, beta = 0.5>", [3, 5], "[3,2]", "[2,5]", add, "[5]", bias=5),
         "Gemm"),
        (behind("MatMul", [3, 5], "[2,3]", "[2,5]", mul, "[5]"), "MatMul"),
        (behind("MatMul", [3, 5], "[2,3]", "[2,5]", add, "[5]"), "Gemm"),
        (behind("MatMul", [3, 5], "[N,3]", "[N,5]", add, "[1,5]"), "Gemm"),
        (behind("MatMul", [3, 1], "[2,3]", "[2,1]", add, "[1]"), "Gemm"),
        (behind("MatMul", [3, 5], "[2,4,3]", "[2,4,5]", mul, "[5]"), "MatMul"),
        (behind("MatMul", [3, 5], "[2,4,3]", "[2,4,5]", "Div(t, c)", "[]"), "MatMul"),
        (behind("MatMul", [3, 5], "[3]", "[5]", mul, "[5]"), "MatMul"),
    ]  # fmt: skip
    check_pass(PASS, fires=[(model, 1, [op]) for model, op in cases])


def test_a_scaled_query_with_its_bias() -> None:
    text = """g (float[2,4,3] x, float[3,5] w, float[5] b, float c) => (float[2,4,5] y) {
        t = MatMul(x, w)
        a = Add(b, t)
        y = Mul(a, c) }"""
    model = onnx_model(text, w=1, b=[1, 2, 3, 4, 5], c=0.5)
    check_pass(PASS, fires=[(model, 1, ["MatMul", "Add"])])
    assert apply(PASS, model).constant("b").tolist() == [0.5, 1, 1.5, 2, 2.5]


def test_a_chain_folds_whole() -> None:
    text = """g (float[1,3,4,4] x, float[4,3,3,3] w, float[4,1,1] c, float d)
        => (float[1,4,2,2] y) {
        t = Conv(x, w)
        m = Mul(t, c)
        a = Add(m, d)
        s = Sub(d, a)
        y = Div(s, c) }"""
    check_pass(PASS, fires=[(onnx_model(text, w=1, c=2, d=0.5), 4, ["Conv"])])


def test_constants_that_are_not_per_channel() -> None:
    two = ("MatMul", [3, 4], "[2,3]")
    check_pass(
        PASS,
        ignores=[
            (conv("Mul(t, c)", shape), "is not one number for each of the 4 output channels")
            for shape in ("[4]", "[4,1]", "[1,1,4,1]", "[4,4]", "[4,4,4]", "[1,4,4,4]")
        ]
        + [
            (behind("Conv", [4, 3, 1, 1], "[1,3,4,4]", "[3,4,4,4]", "Add(t, c)", "[3,1,1,1]"),
             "[3, 1, 1, 1], is not"),
            (behind("Conv", [4, 3, 1, 1], "[1,3,4,4]", "[1,1,4,4,4]", "Add(t, c)", "[1,1,4,1,1]"),
             "[1, 1, 4, 1, 1], is not"),
            (behind("Conv", [1, 3, 1, 1], "[1,3,4,4]", "[1,4,4,4]", "Mul(t, c)", "[4,1,1]"),
             "each of the 1 output channels"),
            (behind(*two, "[2,4]", "Add(t, c)", "[2,1]"), "[2, 1], is not"),
            (behind(*two, "[1,2,4]", "Add(t, c)", "[1,2,4]"), "[1, 2, 4], is not"),
            (behind(*two, "[1,1,1,2,4]", "Add(t, c)", "[1,1,1,1,4]"), "[1, 1, 1, 1, 4], is not"),
            (behind("MatMul", [3, 1], "[2,3]", "[2,4]", "Mul(t, c)", "[4]"), "of the 1 output"),
            (behind("MatMul", [3, 5], "[3]", "[1,5]", "Mul(t, c)", "[1,5]"), "[1, 5], is not"),
        ],
    )  # fmt: skip


def test_other_refusals() -> None:
    twice = """g (float[1,3,4,4] x, float[4,3,1,1] w, float c)
        => (float[1,4,4,4] y, float[1,4,4,4] z) {
        t = Conv(x, w)
        y = Mul(t, c)
        z = Relu(t) }"""
    half = """g (float16[1,2,3,3] x, float16[2,2,1,1] w, float16 c) => (float16[1,2,3,3] y) {
        t = Conv(x, w)
        y = Mul(t, c) }"""
    check_pass(
        PASS,
        ignores=[
            (conv("Div(c, t)", "[4,1,1]"), "divides by what the layer computes"),
            (onnx_model(twice, w=1, c=2.0), "the output of Conv 'Conv_t' (t) is also read by"),
            (conv("Mul(t, c)", "[1]", overridable=["c"]), "(c) is also a graph input"),
            (conv("Mul(t, c)", "[1]", overridable=["w"]), "(w) is also a graph input"),
            (onnx_model(half, w=1, c=1e-7), "too small for float16"),
            (onnx_model(half, w=1e3 * np.ones((2, 2, 1, 1)), c=1e3), "not finite in float16"),
            (behind("MatMul", [3, 5], "[2,4,3]", "[2,4,5]", "Sub(c, t)", "[5]"), "has no bias"),
        ],
        numbers=False,
    )
    zero = conv("Div(t, c)", "[]", c=0.0)
    check_pass(PASS, ignores=[(zero, "is not finite in float32")], numbers=False)


def test_left_to_others() -> None:
    bias = behind("MatMul", [3, 5], "[2,4,3]", "[2,4,5]", "Add(t, c)", "[5]")
    residual = onnx_model(
        """g (float[1,3,4,4] x, float[3,3,1,1] w) => (float[1,3,4,4] y) {
        t = Conv(x, w)
        y = Add(t, x) }""", w=1
    )  # fmt: skip
    scores = onnx_model("""g (float[2,4,3] q, float[2,3,4] k, float c) => (float[2,4,4] y) {
        t = MatMul(q, k)
        y = Div(t, c) }""", c=2.0)  # fmt: skip
    hard_sigmoid = onnx_model(
        """g (float[1,3,4,4] x, float[4,3,1,1] w, float three, float zero, float six)
            => (float[1,4,4,4] y) {
        t = Conv(x, w)
        a = Add(t, three)
        c = Clip(a, zero, six)
        y = Div(c, six) }""", w=1, three=3.0, zero=0.0, six=6.0
    )  # fmt: skip
    hard_swish = onnx_model(
        """g (float[1,3,4,4] x, float[4,3,1,1] w, float three, float zero, float six)
            => (float[1,4,4,4] y) {
        t = Conv(x, w)
        a = Add(t, three)
        c = Clip(a, zero, six)
        d = Div(c, six)
        y = Mul(t, d) }""", w=1, three=3.0, zero=0.0, six=6.0
    )  # fmt: skip
    integers = onnx_model("""g (int32[2,3] x, int32[3,4] w, int32 c) => (int32[2,4] y) {
        t = MatMul(x, w)
        y = Mul(t, c) }""", w=np.ones((3, 4)), c=2)  # fmt: skip
    check_pass(
        PASS,
        ignores=[(m, "") for m in (bias, residual, scores, hard_sigmoid, hard_swish, integers)],
    )


def test_shared_weights_are_cloned() -> None:
    text = """g (float[1,3,4,4] x, float[4,3,1,1] w, float c)
        => (float[1,4,4,4] y, float[1,4,4,4] z) {
        t = Conv(x, w)
        y = Mul(t, c)
        z = Conv(x, w) }"""
    model = onnx_model(text, w=1, c=2.0)
    check_pass(PASS, fires=[(model, 1, ["Conv", "Conv"])])
    done = apply(PASS, model)
    np.testing.assert_array_equal(2 * done.constant("w"), done.constant("w_folded"))


def test_through_a_transposition() -> None:
    def scaled(operator: str, perm: str, shape: str, y: str) -> onnx.ModelProto:
        text = f"""g (float[2,4,4,3] x, float[3,4] w, float[4] b, float{shape} c) => (float{y} y) {{
            t = MatMul(x, w)
            a = Add(t, b)
            p = Transpose <perm = {perm}> (a)
            y = {operator} }}"""
        return onnx_model(text, w=1, b=2, c=3)

    to_first, cube = "[0,3,1,2]", "[2,4,4,4]"
    check_pass(
        PASS,
        fires=[
            (scaled("Mul(c, p)", to_first, "[4,1,1]", cube), 1, ["MatMul", "Add", "Transpose"]),
            (scaled("Sub(c, p)", "[3,0,1,2]", "[4,1,1,1]", "[4,2,4,4]"), 1,
             ["MatMul", "Add", "Transpose"]),
        ],
        ignores=[
            (scaled("Mul(c, p)", to_first, "[4]", cube), "is not one number for each"),
            (scaled("Mul(c, p)", to_first, "[4,1]", cube), "is not one number for each"),
        ],
    )  # fmt: skip
    shared = onnx_model(
        """g (float[2,4,3] x, float[3,4] w, float[4,1] c) => (float[2,4,4] y, float[2,4,4] z) {
        t = MatMul(x, w)
        p = Transpose <perm = [0,2,1]> (t)
        y = Mul(p, c)
        z = Relu(t) }""", w=1, c=2
    )  # fmt: skip
    check_pass(PASS, ignores=[(shared, "")])
