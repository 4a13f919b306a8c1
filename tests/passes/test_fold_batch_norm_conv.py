import numpy as np
import onnx
import pytest

from edgefuse.passes.fold_batch_norm_conv import PASS

from .check_pass import apply, check_pass, onnx_model


def before(
    layer: str, weight: list[int], x: str, y: str, channels: int, *, bias: int = 0,
    between: str = "n = BatchNormalization <epsilon = 1e-3> (x, g, beta, m, v)", **options: object,
) -> onnx.ModelProto:  # fmt: skip
    """A BatchNormalization with seeded parameters, and a layer."""
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
        declared += f", float[{bias}] b"
        constants["b"] = 6
    text = f"""g (float{x} x, {declared}) => (float{y} y) {{
        {between}
        y = {layer} (n, w{", b" if bias else ""}) }}"""
    return onnx_model(text, **{**constants, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [False, True])
def test_layers_ranks_and_groups(bias: bool) -> None:
    b5, b6, b4 = 5 * bias, 6 * bias, 4 * bias
    cases = [
        (before("Conv", [5, 3, 3], "[1,3,8]", "[1,5,6]", 3, bias=b5), "Conv"),
        (before("Conv", [6, 4, 3, 3], "[2,4,6,6]", "[2,6,4,4]", 4, bias=b6), "Conv"),
        (before("Conv", [4, 4, 3, 3], "[N,4,6,6]", "[N,4,4,4]", 4, bias=b4), "Conv"),
        (before("Conv", [4, 2, 2, 2, 2], "[1,2,3,3,3]", "[1,4,2,2,2]", 2, bias=b4), "Conv"),
        (before("Conv <group = 4>", [4, 1, 3, 3], "[1,4,6,6]", "[1,4,4,4]", 4, bias=b4), "Conv"),
        (before("Conv <group = 2>", [6, 2, 3, 3], "[1,4,6,6]", "[1,6,4,4]", 4, bias=b6), "Conv"),
        (before("Conv <auto_pad = \"VALID\", strides = [2,2]>", [6, 4, 3, 3], "[1,4,7,7]",
                "[1,6,3,3]", 4, bias=b6), "Conv"),
        (before("Gemm", [4, 6], "[2,4]", "[2,6]", 4, bias=b6), "Gemm"),
        (before("Gemm <transB = 1, alpha = 0.5, beta = 2.0>", [6, 4], "[2,4]", "[2,6]", 4,
                bias=b6), "Gemm"),
        (before("Gemm <transB = 1>", [4, 4], "[4,4]", "[4,4]", 4, bias=b4), "Gemm"),
        (before("MatMul", [4, 4], "[4,4]", "[4,4]", 4), "Gemm"),
    ]  # fmt: skip
    check_pass(PASS, fires=[(model, 1, [op]) for model, op in cases])


def test_known_numbers() -> None:
    parameters = {"g": [2.0, 4.0], "beta": [1.0, 3.0], "m": [0.5, 0.0], "v": [1 - 1e-3] * 2}
    model = before("Conv", [1, 2, 1, 1], "[1,2,2,2]", "[1,1,2,2]", 2, bias=1,
                   w=np.reshape([10.0, 100.0], (1, 2, 1, 1)), b=[0.25], **parameters)  # fmt: skip
    done = apply(PASS, model)
    weight, bias = (done.constant(name) for name in done.proto.graph.node[0].input[1:])
    np.testing.assert_allclose(weight.reshape(-1), [20.0, 400.0], rtol=1e-6)
    np.testing.assert_allclose(bias, [0.25 + 10 * (1.0 - 0.5 * 2.0) + 100 * 3.0], rtol=1e-6)


def test_padding_is_refused_unless_nothing_is_shifted() -> None:
    given = ([6, 4, 3, 3], "[1,4,6,6]", "[1,6,6,6]", 4)
    up = ("ConvTranspose <pads = [1,1,1,1]>", [4, 6, 3, 3], "[1,4,6,6]", "[1,6,6,6]", 4)
    still = {"beta": np.zeros(4), "m": np.zeros(4)}
    padded, same = "Conv <pads = [1,1,1,1]>", 'Conv <auto_pad = "SAME_UPPER">'
    check_pass(
        PASS,
        fires=[
            (before(padded, *given, **still), 1, ["Conv"]),
            (before(same, *given, **still), 1, ["Conv"]),
            (before(*up, **still), 1, ["ConvTranspose"]),
        ],
        ignores=[
            (before(padded, *given), "pads with zeros (pads [1, 1, 1, 1])"),
            (before(same, *given), "pads with zeros (auto_pad SAME_UPPER)"),
            (before(*up), "adds up fewer products at its border"),
        ],
    )


def test_refusals() -> None:
    given = ([6, 4, 1, 1], "[1,4,6,6]", "[1,6,6,6]", 4)
    twice = onnx_model(
        """g (float[1,4,2,2] x, float[4,4,1,1] w, float[4] g, float[4] v)
            => (float[1,4,2,2] y, float[1,4,2,2] z) {
        n = BatchNormalization(x, g, g, g, v)
        y = Conv(n, w)
        z = Relu(n) }""",
        w=1, g=2, v=np.ones(4),
    )  # fmt: skip
    alone = onnx_model(
        """g (float[1,4,2,2] x, float[4] g, float[4] v) => (float[1,4,2,2] y) {
        n = BatchNormalization(x, g, g, g, v)
        y = Relu(n) }""", g=2, v=np.ones(4)
    )  # fmt: skip
    weights = onnx_model(
        """g (float[1,4,2,2] x, float[6,4,1,1] w, float[4] g, float[4] v) => (float[1,6,2,2] y) {
        n = BatchNormalization(w, g, g, g, v)
        y = Conv(x, n) }""", g=2, v=np.ones(4)
    )  # fmt: skip
    products = before("MatMul", [4, 5], "[2,4,4]", "[2,4,5]", 4)
    turned = before("Gemm <transA = 1>", [4, 5], "[4,4]", "[4,5]", 4)
    check_pass(
        PASS,
        ignores=[
            (twice, "the output of BatchNormalization 'BatchNormalization_n' (n) is also read by"),
            (alone, ""),
            (weights, ""),
            (products, "is not what MatMul 'MatMul_y' sums over"),
            (turned, "is not what Gemm 'Gemm_y' sums over"),
            *(
                (before("Conv", *given, overridable=[name]), f"({name}) is also a graph input")
                for name in ("w", "g", "m", "v")
            ),
        ],
    )


def test_shared_weights_are_cloned() -> None:
    model = onnx_model(
        """g (float[1,4,2,2] x, float[4,4,1,1] w, float[4] g, float[4] v)
            => (float[1,4,2,2] y, float[1,4,2,2] z) {
        n = BatchNormalization(x, g, g, g, v)
        y = Conv(n, w)
        z = Conv(x, w) }""",
        w=1, g=2, v=np.ones(4),
    )  # fmt: skip
    check_pass(PASS, fires=[(model, 1, ["Conv", "Conv"])])
    kept = onnx.numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_array_equal(apply(PASS, model).constant("w"), kept)


def test_half_precision_that_overflows() -> None:
    text = """g (float16[1,2,3,3] x, float16[2,2,1,1] w, float[2] g, float[2] z, float[2] v)
        => (float16[1,2,3,3] y) {
        n = BatchNormalization(x, g, z, z, v)
        y = Conv(n, w) }"""
    fine = onnx_model(text, w=1, g=[3.0, 2.0], z=[0.5, 1.0], v=[1e5, 1.0])
    wide = onnx_model(text, w=1, g=[1e4, 1e4], z=[0.0, 0.0], v=[1e-10, 1e-10])
    check_pass(PASS, fires=[(fine, 1, ["Conv"])])
    check_pass(PASS, ignores=[(wide, "is not finite in float16")], numbers=False)
