import numpy as np
import onnx
import pytest

from edgefuse.errors import SourceError
from edgefuse.graph.normalise import prepare
from edgefuse.passes.fold_conv_batch_norm import PASS

from .check_pass import apply, check_pass, onnx_model


def behind(
    layer: str, weight: list[int], inputs: str, output: str, channels: int, *, bias: bool = True,
    **options: object,
) -> onnx.ModelProto:  # fmt: skip
    """A layer, its weight and bias, and a BatchNormalization with seeded parameters."""
    c = channels
    rng = np.random.default_rng(3)
    constants: dict[str, object] = {
        "w": 1,
        "g": rng.uniform(0.5, 2, c),
        "beta": 4,
        "m": 5,
        "v": rng.uniform(0.1, 3, c),
    }
    declared = f"float{weight} w, float[{c}] g, float[{c}] beta, float[{c}] m, float[{c}] v"
    if bias:
        declared += f", float[{c}] b"
        constants["b"] = 6
    call = f"{layer} (x, w{', b' if bias else ''})"
    text = f"""g (float{inputs} x, {declared}) => (float{output} y) {{
        t = {call}
        y = BatchNormalization <epsilon = 1e-3> (t, g, beta, m, v) }}"""
    return onnx_model(text, **{**constants, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [False, True])
def test_layers_ranks_and_groups(bias: bool) -> None:
    up = "ConvTranspose"
    cases = [
        behind("Conv", [5, 3, 3], "[1,3,8]", "[1,5,6]", 5, bias=bias),
        behind("Conv", [8, 3, 3, 3], "[2,3,6,6]", "[2,8,4,4]", 8, bias=bias),
        behind("Conv", [4, 2, 2, 2, 2], "[1,2,3,3,3]", "[1,4,2,2,2]", 4, bias=bias),
        behind("Conv <group = 4>", [4, 1, 3, 3], "[1,4,6,6]", "[1,4,4,4]", 4, bias=bias),
        behind("Conv <group = 2>", [6, 2, 3, 3], "[1,4,6,6]", "[1,6,4,4]", 6, bias=bias),
        behind(up, [4, 4, 3, 3], "[1,4,5,5]", "[1,4,7,7]", 4, bias=bias),
        behind(up, [4, 6, 3, 3], "[1,4,5,5]", "[1,6,7,7]", 6, bias=bias),
        behind(f"{up} <group = 2>", [4, 3, 3, 3], "[1,4,5,5]", "[1,6,7,7]", 6, bias=bias),
        behind(f"{up} <group = 2>", [4, 2, 3], "[1,4,5]", "[1,4,7]", 4, bias=bias),
        behind("Gemm", [3, 5], "[2,3]", "[2,5]", 5, bias=bias),
        behind("Gemm <transB = 1, alpha = 0.5, beta = 2.0>", [5, 3], "[2,3]", "[2,5]", 5,
               bias=bias),
    ]  # fmt: skip
    check_pass(PASS, fires=[(m, 1, [m.graph.node[0].op_type]) for m in cases])


@pytest.mark.parametrize("bias", [False, True])
def test_depthwise_with_known_numbers(bias: bool) -> None:
    parameters = {"g": [2.0] * 2, "beta": [0.25] * 2, "m": [0.5] * 2, "v": [1.0 - 1e-3] * 2}
    constants = {"b": [1.0, 1.0]} if bias else {}
    model = behind(
        "Conv <group = 2>", [2, 1, 1, 1], "[1,2,2,2]", "[1,2,2,2]", 2, bias=bias,
        **parameters, **constants,
    )  # fmt: skip
    done = apply(PASS, model)
    folded = done.constant(done.proto.graph.node[0].input[2])
    expected = (1.0 - 0.5) * 2 + 0.25 if bias else (0.0 - 0.5) * 2 + 0.25
    np.testing.assert_allclose(folded, [expected] * 2, rtol=1e-6)


def test_two_folds_never_share_a_name() -> None:
    for left, right, taken in ((8, 16, "wa_bias"), (8, 8, "wa_bias"), (8, 8, "wb_bias_2")):
        text = f"""g (float[1,4,6,6] x, float[{left},4,3,3] wa, float[{right},4,3,3] wb,
            float[{left}] ga, float[{right}] gb, float[{left}] va, float[{right}] vb)
            => (float[1,{left},4,4] y, float[1,{right},4,4] z, float[1,4,6,6] {taken}) {{
            a = Conv(x, wa)
            b = Conv(x, wb)
            y = BatchNormalization(a, ga, ga, ga, va)
            z = BatchNormalization(b, gb, gb, gb, vb)
            {taken} = Relu(x) }}"""
        ones = {"va": np.ones(left), "vb": np.full(right, 2.0)}
        done = apply(PASS, onnx_model(text, wa=1, wb=2, ga=3, gb=4, **ones))
        assert done.ops == ["Conv", "Conv", "Relu"]
        names = [t.name for t in done.proto.graph.initializer]
        assert len(set(names) | {taken}) == len(names) + 1 == 5


def test_shared_weight_is_cloned() -> None:
    model = onnx_model(
        """g (float[1,3,4,4] x, float[8,3,3,3] w, float[8] g, float[8] v)
            => (float[1,8,2,2] y, float[1,8,2,2] z) {
        a = Conv(x, w)
        y = BatchNormalization(a, g, g, g, v)
        z = Conv(x, w) }""",
        w=1, g=2, v=np.ones(8),
    )  # fmt: skip
    done = apply(PASS, model)
    assert done.ops == ["Conv", "Conv"]
    np.testing.assert_array_equal(
        done.constant("w"), onnx.numpy_helper.to_array(model.graph.initializer[0])
    )


TWICE = """g (float[1,3,4,4] x, float[8,3,3,3] w, float[8] g, float[8] v)
    => (float[1,8,2,2] y, float[1,8,2,2] z) {
    a = Conv(x, w)
    y = BatchNormalization(a, g, g, g, v)
    z = Relu(a) }"""
AFTER_RELU = """g (float[1,3,4,4] x, float[8,3,3,3] w, float[8] g, float[8] v)
    => (float[1,8,2,2] y) {
    a = Conv(x, w)
    r = Relu(a)
    y = BatchNormalization(r, g, g, g, v) }"""
AFTER_POOL = """g (float[1,8,4,4] x, float[8] g, float[8] v) => (float[1,8,2,2] y) {
    r = MaxPool <kernel_shape = [3, 3]> (x)
    y = BatchNormalization(r, g, g, g, v) }"""
AT_INPUT = """g (float[1,8,2,2] x, float[8] g, float[8] v) => (float[1,8,2,2] y) {
    y = BatchNormalization(x, g, g, g, v) }"""
COMPUTED = """g (float[1,3,4,4] x, float[8,3,3,3] w, float[8] g, float[8] v)
    => (float[1,8,2,2] y) {
    a = Conv(x, w)
    n = ReduceMean <keepdims = 0> (a, axes)
    y = BatchNormalization(a, g, g, n, v) }"""


def test_refusals() -> None:
    ones = np.ones(8)
    conv = onnx_model(TWICE, w=1, g=2, v=ones)
    check_pass(
        PASS,
        ignores=[
            (conv, "the output of Conv 'Conv_a' (a) is also read by"),
            (onnx_model(AFTER_RELU, w=1, g=2, v=ones), "is Relu 'Relu_r', not the output of Conv"),
            (onnx_model(AFTER_POOL, g=2, v=ones), "is MaxPool 'MaxPool_r'"),
            (onnx_model(AT_INPUT, g=2, v=ones), "(x) is a graph input"),
        ],
    )


def test_without_running_statistics() -> None:
    text = COMPUTED.replace("float[8] v)", "float[8] v, float[8] mean)").replace(
        "n = ReduceMean <keepdims = 0> (a, axes)", "n = Neg(mean)"
    )
    model = onnx_model(text, w=1, g=2, v=np.ones(8))
    check_pass(PASS, ignores=[(model, "the mean of BatchNormalization")])


@pytest.mark.parametrize("name", ["w", "b", "g", "m"])
def test_what_a_caller_may_override_is_not_folded(name: str) -> None:
    model = behind("Conv", [8, 3, 3, 3], "[1,3,6,6]", "[1,8,4,4]", 8, overridable=[name])
    check_pass(PASS, ignores=[(model, f"({name}) is also a graph input")])
    assert "graph inputs" in apply(PASS, model).ledger.refused(PASS.name)[0].remedy


def test_gemm_bias_must_be_per_channel() -> None:
    text = """g (float[2,3] x, float[3,4] w, float{shape} b, float[4] g, float[4] v)
        => (float[2,4] y) {{
        t = Gemm(x, w, b)
        y = BatchNormalization(t, g, g, g, v) }}"""
    one = np.ones(4)

    def gemm(shape: str) -> onnx.ModelProto:
        return onnx_model(text.format(shape=shape), w=1, b=2, g=3, v=one)

    check_pass(
        PASS,
        fires=[(gemm(s), 1, ["Gemm"]) for s in ("[4]", "[1,4]", "[1]", "[1,1]")],
        ignores=[(gemm(s), "is not per channel") for s in ("[2,1]", "[2,4]")],
    )


def half(kind: str, variance: float, gamma: float) -> onnx.ModelProto:
    text = f"""g ({kind}[1,2,3,3] x, {kind}[2,2,1,1] w, float[2] g, float[2] z, float[2] v)
        => ({kind}[1,2,3,3] y) {{
        t = Conv(x, w)
        y = BatchNormalization(t, g, z, z, v) }}"""
    return onnx_model(text, opset=22, w=1, g=[gamma] * 2, z=[0.0, 0.0], v=[variance] * 2)


def test_precision_of_small_types() -> None:
    check_pass(PASS, fires=[(half("float16", 1e5, 3.0), 1, ["Conv"])])
    check_pass(PASS, fires=[(half("bfloat16", 1e5, 3.0), 1, ["Conv"])], numbers=False)
    check_pass(PASS, ignores=[(half("float16", 1.0, 1e-7), "too small for float16")])
    check_pass(
        PASS, ignores=[(half("float16", 1e-10, 1e4), "is not finite in float16")], numbers=False
    )


def test_folding_is_done_in_float64() -> None:
    model = half("bfloat16", 1e5, 3.0)
    done = apply(PASS, model, numbers=False)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0])
    exact = weight.astype(np.float64) * 3.0 / np.sqrt(np.float64(np.float32(1e5)) + 1e-5)
    folded = done.constant("w")
    assert folded.dtype == weight.dtype
    np.testing.assert_array_equal(folded, exact.astype(weight.dtype))


def test_error_is_relative_not_summed() -> None:
    model = behind("Conv <pads = [1,1,1,1]>", [3, 3, 3, 3], "[2,3,224,224]", "[2,3,224,224]", 3)
    assert apply(PASS, model).ops == ["Conv"]


@pytest.mark.parametrize(
    ("opset", "outputs", "attribute"),
    [(8, "y, m, v, sm, sv", ""), (13, "y, m", ""), (15, "y, m, v", "<training_mode = 1>")],
)
def test_training_mode_is_an_error(opset: int, outputs: str, attribute: str) -> None:
    text = f"""g (float[1,8,2,2] x, float[8] g, float[8] u) => (float[1,8,2,2] y) {{
        {outputs} = BatchNormalization {attribute} (x, g, g, g, u) }}"""
    with pytest.raises(SourceError, match="training mode") as caught:
        prepare(onnx_model(text, opset=opset, g=1, u=np.ones(8)))
    assert "model.eval()" in caught.value.hint
    assert "BatchNormalization" in caught.value.message


def test_active_dropout_is_an_error() -> None:
    model = onnx_model(
        "g (float[4] x, float r, bool t) => (float[4] y) { y = Dropout(x, r, t) }", r=0.5, t=True
    )
    with pytest.raises(SourceError, match="active Dropout"):
        prepare(model)


def product(
    x: str, y: str, *, bias: str = "", channels: int = 4, before: str = "", k: int = 3
) -> onnx.ModelProto:
    """MatMul by [k, channels], an Add when ``bias`` is a shape, and a BatchNormalization."""
    c = channels
    declared = f"float[{k},{c}] w, float[{c}] g, float[{c}] beta, float[{c}] m, float[{c}] v"
    constants: dict[str, object] = {"w": 1, "g": 2, "beta": 4, "m": 5, "v": np.full(c, 0.5)}
    if bias:
        declared += f", float{bias} b"
        constants["b"] = 6
    add = "a = Add(b, t)" if bias else "a = Identity(t)"
    text = f"""g (float{x} x, {declared}) => (float{y} y) {{
        t = MatMul(x, w)
        {add}
        {before}
        y = BatchNormalization(a, g, beta, m, v) }}"""
    return onnx_model(text if bias else text.replace(add, "").replace("(a,", "(t,"), **constants)


def test_products_of_matrices() -> None:
    check_pass(
        PASS,
        fires=[
            (product("[2,3]", "[2,4]"), 1, ["Gemm"]),
            (product("[N,3]", "[N,4]"), 1, ["Gemm"]),
            (product("[2,3]", "[2,4]", bias="[4]"), 1, ["Gemm"]),
            (product("[2,3]", "[2,4]", bias="[1,4]"), 1, ["Gemm"]),
            (product("[2,3]", "[2,4]", bias="[1]"), 1, ["Gemm"]),
            (product("[2,3]", "[2,1]", bias="[1,1]", channels=1), 1, ["Gemm"]),
        ],
        ignores=[
            (product("[2,4,3]", "[2,4,4]"), "the channels of MatMul 'MatMul_t' are axis 2"),
            (product("[2,4,3]", "[2,4,4]", bias="[4]"), "are axis 2"),
            (product("[4,3]", "[4,4]", bias="[4,1]"), "is not per channel"),
        ],
    )


def test_a_product_with_a_bias_that_raises_the_rank_is_refused() -> None:
    text = """g (float[2,3] x, float[3,4] w, float[1,2,4] b, float[2] g, float[2] v)
        => (float[1,2,4] y) {
        t = MatMul(x, w)
        a = Add(t, b)
        y = BatchNormalization(a, g, g, g, v) }"""
    model = onnx_model(text, w=1, b=2, g=3, v=np.ones(2))
    check_pass(PASS, ignores=[(model, "is not per channel")])


def test_a_product_of_two_computed_values_is_no_layer() -> None:
    text = """g (float[2,3] x, float[3,4] w, float[4] g, float[4] v) => (float[2,4] y) {
        n = Neg(w)
        t = MatMul(x, n)
        y = BatchNormalization(t, g, g, g, v) }"""
    check_pass(PASS, ignores=[(onnx_model(text, g=1, v=np.ones(4)), "not the output of Conv")])


def test_double_precision_stays_double() -> None:
    text = """g (double[1,2,3,3] x, double[2,2,1,1] w, double[2] g, double[2] v)
        => (double[1,2,3,3] y) {
        t = Conv(x, w)
        y = BatchNormalization(t, g, g, g, v) }"""
    done = apply(PASS, onnx_model(text, w=1, g=[1.0, 0.1], v=[0.3, 1.0]), numbers=False)
    assert done.ops == ["Conv"]
    assert done.constant("w").dtype == done.constant("w_bias").dtype == np.float64


def test_channels_that_a_transposition_brings_to_the_second_axis() -> None:
    text = """g (float[2,5,3] x, float[3,4] w, float[4] b, float[4] g, float[4] v)
        => (float[2,4,5] y) {
        t = MatMul(x, w)
        a = Add(t, b)
        p = Transpose <perm = [0,2,1]> (a)
        y = BatchNormalization(p, g, g, g, v) }"""
    model = onnx_model(text, w=1, b=2, g=3, v=np.ones(4))
    check_pass(PASS, fires=[(model, 1, ["MatMul", "Add", "Transpose"])])
    bare = text.replace("a = Add(t, b)", "").replace("(a)", "(t)").replace("float[4] b, ", "")
    check_pass(PASS, ignores=[(onnx_model(bare, w=1, g=3, v=np.ones(4)), "has no bias")])
