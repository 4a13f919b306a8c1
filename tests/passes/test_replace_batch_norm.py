import numpy as np
import onnx
import pytest

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.passes.replace_batch_norm import PASS

from .check_pass import apply, check_pass, onnx_model


def normalised(x: str, channels: int, *, kind: str = "float", **options: object) -> onnx.ModelProto:
    c = channels
    declared = f"float[{c}] g, float[{c}] beta, float[{c}] m, float[{c}] v"
    constants: dict[str, object] = {"g": 2, "beta": 4, "m": 5, "v": np.full(c, 0.5)}
    text = f"""g ({kind}{x} x, {declared}) => ({kind}{x} y) {{
        r = Relu(x)
        y = BatchNormalization(r, g, beta, m, v) }}"""
    return onnx_model(text, **{**constants, **options})  # type: ignore[arg-type]


def test_ranks_and_types() -> None:
    cases = [
        normalised("[2,4]", 4),
        normalised("[N,4]", 4),
        normalised("[2,4,5]", 4),
        normalised("[4,4,4,4]", 4),
        normalised("[1,4,2,2,2]", 4),
        normalised("[1,4,2,2]", 4, kind="float16"),
        normalised("[5]", 1),
        normalised("[1,4,2,2]", 4, opset=11),
        normalised("[1,4,2,2]", 4, opset=21),
    ]
    check_pass(PASS, fires=[(model, 1, ["Relu", "Mul", "Add"]) for model in cases])
    half = normalised("[1,4,2,2]", 4, kind="bfloat16", opset=22)
    check_pass(PASS, fires=[(half, 1, ["Relu", "Mul", "Add"])], numbers=False)


def test_known_numbers() -> None:
    given = {"g": [4.0, 3.0], "beta": [2.0, 0.0], "m": [0.5, 0.0], "v": [4 - 1e-5, 9 - 1e-5]}
    done = apply(PASS, normalised("[1,2,2,2]", 2, **given))
    mul, add = done.proto.graph.node[1:]
    np.testing.assert_allclose(done.constant(mul.input[1]), [[[2.0]], [[1.0]]], rtol=1e-6)
    np.testing.assert_allclose(done.constant(add.input[1]), [[[1.0]], [[0.0]]], atol=1e-6)
    assert add.output[0] == "y"


def test_nothing_is_shifted_or_nothing_is_scaled() -> None:
    zero, one = [0.0, 0.0], [1.0, 1.0]
    scaled = normalised("[1,2,2,2]", 2, beta=zero, m=zero)
    shifted = normalised("[1,2,2,2]", 2, g=one, v=[1 - 1e-5] * 2, beta=one, m=zero)
    check_pass(PASS, fires=[(scaled, 1, ["Relu", "Mul"])])
    assert apply(PASS, shifted).ops in (["Relu", "Add"], ["Relu", "Mul", "Add"])


@pytest.mark.parametrize("name", ["g", "beta", "m", "v"])
def test_what_a_caller_may_override_is_left(name: str) -> None:
    model = normalised("[1,4,2,2]", 4, overridable=[name])
    check_pass(PASS, ignores=[(model, f"({name}) is also a graph input")])


def test_statistics_computed_at_run_time_are_refused() -> None:
    text = """g (float[2,4] x, float[4] g, float[4] v) => (float[2,4] y) {
        zero = Constant <value_ints = [0]> ()
        n = ReduceMean <keepdims = 0> (x, zero)
        y = BatchNormalization(x, g, g, n, v) }"""
    model = onnx_model(text, g=1, v=np.ones(4))
    check_pass(PASS, ignores=[(model, "(n) is computed at run time by ReduceMean")])


def test_half_precision() -> None:
    wide = normalised("[1,2,2,2]", 2, kind="float16", g=[1e5, 1.0], v=[1e-5, 1.0])
    tiny = normalised("[1,2,2,2]", 2, kind="float16", g=[1e-9, 1.0], v=[1.0, 1.0])
    check_pass(
        PASS,
        ignores=[(wide, "is not finite in float16"), (tiny, "is too small for float16")],
        numbers=False,
    )


def test_why_no_layer_took_it_stays_in_the_ledger() -> None:
    text = """g (float[1,3,4,4] x, float[4,3,1,1] w, float[4,4,3,3] k, float[4] g, float[4] v)
        => (float[1,4,4,4] y) {
        t = Conv(x, w)
        r = Relu(t)
        n = BatchNormalization(r, g, g, g, v)
        y = Conv <pads = [1,1,1,1]> (n, k) }"""
    model = onnx_model(text, w=1, k=2, g=3, v=np.ones(4))
    _, ledger = run_passes(prepare(model))
    assert ledger.fired(PASS.name) == 1
    (before,) = ledger.refused("fold_conv_batch_norm")
    (behind,) = ledger.refused("fold_batch_norm_conv")
    assert "is Relu 'Relu_r'" in before.reason
    assert "pads with zeros" in behind.reason
