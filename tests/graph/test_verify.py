import numpy as np
import onnx
import onnx.parser
import pytest

from edgefuse.errors import DataError, ParityError, StageError, ToolError
from edgefuse.graph.verify import check_structure, compare, scaled_tolerance, seeded_feed

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[1,3,6,6] x, float[4,3,3,3] w) => (float[1,4,4,4] y) { y = Conv(x, w) }"""
WEIGHT = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)


def convolution(weight: np.ndarray) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    del proto.graph.input[1]
    return proto


def feeds() -> list[dict[str, np.ndarray]]:
    return [dict(seeded_feed(convolution(WEIGHT), seed=s)) for s in (1, 2)]


def test_equal_models_are_equal() -> None:
    found = compare(convolution(WEIGHT), convolution(WEIGHT), feeds(), max_relative_error=0.0)
    assert (found.max_abs, found.sqnr_db, found.samples) == (0.0, None, 2)


def test_measures_before_it_judges() -> None:
    found = compare(convolution(WEIGHT), convolution(WEIGHT * np.float32(1.01)), feeds())
    assert found.max_rel_to_peak == pytest.approx(0.01, rel=1e-3)
    assert found.sqnr_db == pytest.approx(40.0, abs=0.01)
    assert found.worst_output == "y"


@pytest.mark.parametrize(
    "wrong",
    [
        WEIGHT * np.float32(1.01),
        WEIGHT[[1, 0, 2, 3]],
        WEIGHT[:, [1, 0, 2]],
        np.where(np.arange(108).reshape(4, 3, 3, 3) == 50, WEIGHT * np.float32(1.01), WEIGHT),
    ],
    ids=["one percent", "output channels", "input channels", "one weight"],
)
def test_rejects(wrong: np.ndarray) -> None:
    with pytest.raises(ParityError, match="relative error"):
        compare(convolution(WEIGHT), convolution(wrong), feeds(), max_relative_error=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rejects_nan_on_either_side_even_without_a_limit(bad: float) -> None:
    broken = WEIGHT.copy()
    broken[2, 1, 0, 0] = bad
    for pair in ((WEIGHT, broken), (broken, WEIGHT), (broken, broken)):
        with pytest.raises(ParityError, match="NaN or infinity"):
            compare(convolution(pair[0]), convolution(pair[1]), feeds())


def test_rejects_other_outputs_and_shapes() -> None:
    other = convolution(WEIGHT)
    other.graph.node[0].output[0] = other.graph.output[0].name = "z"
    with pytest.raises(ParityError, match="outputs"):
        compare(convolution(WEIGHT), other, feeds())
    wider = convolution(WEIGHT)
    wider.graph.output[0].type.tensor_type.shape.Clear()
    wider.graph.node[0].attribute.append(onnx.helper.make_attribute("pads", [1, 1, 1, 1]))
    with pytest.raises(ParityError, match="shape"):
        compare(convolution(WEIGHT), wider, feeds())


def test_strings_are_compared_as_they_are() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]>\ng (float x) => (float y, string[N] z) {\n'
    text += 'y = Neg(x) z = Constant <value_strings = ["a", "%s"]> () }'
    first, other = (onnx.parser.parse_model(text % end) for end in ("b", "c"))
    feed = seeded_feed(first, seed=1)
    assert compare(first, first, [feed]).max_abs == 0
    with pytest.raises(ParityError, match="the strings differ"):
        compare(first, other, [feed])


def test_scalars_of_numpy_are_fed() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]>\ng (float x, int64 k) => (float y) {\n'
    model = onnx.parser.parse_model(text + "c = Cast <to = 1> (k) y = Mul(x, c) }")
    for feed in (seeded_feed(model, seed=1), {"x": np.float32(2), "k": np.int64(1)}):
        assert compare(model, model, [feed]).max_abs == 0


def test_nothing_compared_is_an_error() -> None:
    with pytest.raises(DataError, match="empty"):
        compare(convolution(WEIGHT), convolution(WEIGHT), [])
    with pytest.raises(DataError, match="'x'"):
        compare(convolution(WEIGHT), convolution(WEIGHT), [{}])


def test_foreign_errors_are_translated() -> None:
    with pytest.raises(ToolError, match="cannot load"):
        compare(b"not a model", b"not a model", feeds())
    with pytest.raises(ToolError, match="cannot run"):
        compare(convolution(WEIGHT), convolution(WEIGHT), [{"x": np.zeros((1, 3), np.float32)}])
    broken = convolution(WEIGHT)
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(StageError, match="not valid ONNX"):
        check_structure(broken)


def test_tolerance_grows_with_the_type_up_to_a_limit() -> None:
    assert scaled_tolerance(1e-6, ["float32", "int64"]) == 1e-6
    assert scaled_tolerance(1e-6, ["float16"]) == pytest.approx(1e-6 * 2**13)
    assert scaled_tolerance(0.0, ["float32"]) == 0.0
    assert scaled_tolerance(1e-4, ["bfloat16"]) == 0.02
    assert scaled_tolerance(0.0, ["float16"]) == 4 * 2.0**-10


def test_seeded_feeds() -> None:
    model = convolution(WEIGHT)
    first, second = seeded_feed(model, seed=1), seeded_feed(model, seed=1)
    np.testing.assert_array_equal(first["x"], second["x"])
    like = {"x": np.full((2, 3, 8, 8), 5.0, np.float32)}
    assert seeded_feed(model, seed=1, like=like)["x"].shape == (2, 3, 8, 8)
    assert list(first) == ["x"]
