from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgefuse.tflite.inspect import check_int8, float_islands
from edgefuse.tflite.read import TfliteModel, parse_model, read_model

from .conftest import Pair
from .test_contract import altered, retyped
from .tiny import Builder


def kinds(model: TfliteModel, permit: Sequence[str] = ()) -> list[tuple[str, str]]:
    return [(problem.kind, problem.place) for problem in check_int8(model, permit)]


def test_a_good_file_has_no_problem(pair: Pair) -> None:
    assert check_int8(read_model(pair.int8_path), (), read_model(pair.float_path)) == []


def test_a_float_file_is_one_island(pair: Pair) -> None:
    (problem,) = check_int8(read_model(pair.float_path))
    assert (problem.kind, problem.place) == ("float_island", "CONV_2D#0")
    assert str(problem).startswith("CONV_2D#0: stays float: CONV_2D#0, DEPTHWISE_CONV_2D#1")
    assert "and 1 more" in problem.message


def island(middle: str, custom: str = "") -> TfliteModel:
    """int8 -> DEQUANTIZE -> middle -> QUANTIZE -> int8 (case 23)."""
    b = Builder()
    x, y = (b.tensor(n, (1, 4), "int8", scales=[0.1]) for n in "xy")
    f, g = b.tensor("f", (1, 4)), b.tensor("g", (1, 4))
    b.op("DEQUANTIZE", (x,), (f,))
    b.op(middle, (f, f) if middle == "ADD" else (f,), (g,), custom=custom)
    b.op("QUANTIZE", (g,), (y,))
    return parse_model(b.finish({"x": x}, {"y": y}))


def test_float_island_and_its_permission() -> None:
    model = island("ADD")
    assert kinds(model) == [("float_island", "ADD#1")]
    assert kinds(model, ["MUL"]) == [("float_island", "ADD#1")]
    assert kinds(model, ["ADD"]) == []
    (found,) = float_islands(model)
    assert [op.label for op in found.operators] == ["DEQUANTIZE#0", "ADD#1", "QUANTIZE#2"]


def test_flex_and_custom_operators() -> None:
    flex = island("CUSTOM", "FlexErf")
    assert kinds(flex) == [("flex_operator", "FlexErf#1"), ("float_island", "FlexErf#1")]
    assert kinds(flex, ["FlexErf"]) == [("flex_operator", "FlexErf#1")]
    assert kinds(island("CUSTOM", "Mine"), ["Mine"]) == [("custom_operator", "Mine#1")]


def test_conversion_pair_alone_is_an_island() -> None:
    b = Builder()
    x, y = (b.tensor(n, (1, 4), "int8", scales=[0.1]) for n in "xy")
    f = b.tensor("f", (1, 4))
    b.op("DEQUANTIZE", (x,), (f,))
    b.op("QUANTIZE", (f,), (y,))
    model = parse_model(b.finish({"x": x}, {"y": y}))
    assert kinds(model) == [("float_island", "DEQUANTIZE#0")]
    assert kinds(model, ["DEQUANTIZE", "QUANTIZE"]) == []


def test_two_islands_are_two_problems(pair: Pair) -> None:
    b = Builder()
    q = [b.tensor(f"q{k}", (1, 4), "int8", scales=[0.1]) for k in range(3)]
    f = [b.tensor(f"f{k}", (1, 4)) for k in range(4)]
    for k in range(2):
        b.op("DEQUANTIZE", (q[k],), (f[2 * k],))
        b.op("ADD", (f[2 * k], f[2 * k]), (f[2 * k + 1],))
        b.op("QUANTIZE", (f[2 * k + 1],), (q[k + 1],))
    model = parse_model(b.finish({"x": q[0]}, {"y": q[2]}))
    assert kinds(model) == [("float_island", "ADD#1"), ("float_island", "ADD#4")]


def test_float_constant_of_an_int8_operator() -> None:
    b = Builder()
    x, y = (b.tensor(n, (1, 4), "int8", scales=[0.1]) for n in "xy")
    c = b.tensor("c", value=np.ones((1, 4), np.float32))
    b.op("ADD", (x, c), (y,))
    assert ("float_tensor", "c") in kinds(parse_model(b.finish({"x": x}, {"y": y})))


def test_int64() -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 4), "int8", scales=[0.1]), b.tensor("y", (1,), "int64")
    b.op("ARG_MAX", (x, b.tensor("axis", value=np.array([1], np.int32))), (y,))
    assert kinds(parse_model(b.finish({"x": x}, {"y": y}))) == [("int64_tensor", "y")]


def test_missing_and_bad_scales(pair: Pair) -> None:
    model = read_model(pair.int8_path)
    stem = model.operators[0]
    weight = model.tensors[stem.inputs[1]]
    unscaled = retyped(model, stem.outputs[0], scales=(), zero_points=())
    assert kinds(unscaled) == [("missing_scales", "map0")]
    for bad in (0.0, float("nan"), float("inf"), -1.0):
        broken = retyped(model, weight.index, scales=(*weight.scales[:7], bad))
        assert kinds(broken) == [("bad_scale", "stem")]
        assert "in channel 7" in check_int8(broken)[0].message
    single = retyped(model, weight.index, scales=weight.scales[:1], zero_points=(0,))
    assert kinds(single) == [("per_tensor_weights", "stem")]
    wrong_axis = retyped(model, weight.index, quantized_dimension=3)
    assert kinds(wrong_axis) == [("per_tensor_weights", "stem")]


@pytest.mark.parametrize("limit", [2**31 - 1, -(2**31)])
def test_bias_at_the_limit_of_int32(limit: int) -> None:
    b = Builder()
    x = b.tensor("x", (1, 2), "int8", scales=[0.5])
    y = b.tensor("y", (1, 2), "int8", scales=[0.5])
    w = b.tensor("w", value=np.ones((2, 2), np.int8), scales=[1e-9, 1.0])
    bias = b.tensor("bias", value=np.array([limit, 3], np.int32), scales=[5e-10, 0.5])
    b.op("FULLY_CONNECTED", (x, w, bias), (y,))
    (problem,) = check_int8(parse_model(b.finish({"x": x}, {"y": y})))
    assert (problem.kind, problem.place) == ("bias_overflow", "bias")
    assert "channel 0 of FULLY_CONNECTED#0" in problem.message


def test_bias_that_wrapped_around(pair: Pair) -> None:
    """Case 27: bias 5, input scale 0.5, max |w| 1e-7 need 1.3e10."""
    float_model, int8_model = read_model(pair.float_path), read_model(pair.int8_path)
    bias = int8_model.tensors[int8_model.operators[2].inputs[2]]
    tiny = retyped(int8_model, bias.index, scales=(1e-11, *bias.scales[1:]))
    assert [p.kind for p in check_int8(tiny)] == []
    (problem,) = check_int8(tiny, (), float_model)
    assert problem.kind == "bias_overflow" and "beyond int32" in problem.message


@pytest.mark.parametrize(("value", "scale", "found"), [(-127, 1e6, True), (-128, 0.1, False)])
def test_padding_constant_that_ruins_a_range(value: int, scale: float, found: bool) -> None:
    """Case 25: PADV2 before a MaxPool pads with the lowest float."""
    b = Builder()
    x = b.tensor("x", (1, 4, 4, 1), "int8", scales=[0.1])
    y = b.tensor("y", (1, 6, 6, 1), "int8", scales=[scale])
    pads = b.tensor("pads", value=np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    low = b.tensor("low", value=np.array([value], np.int8), scales=[scale])
    b.op("PADV2", (x, pads, low), (y,))
    wanted = [("huge_constant", "low")] if found else []
    assert kinds(parse_model(b.finish({"x": x}, {"y": y}))) == wanted


def test_activation_dropped_with_unequal_ranges(pair: Pair) -> None:
    """Case 28."""
    float_model, int8_model = read_model(pair.float_path), read_model(pair.int8_path)
    dropped = altered(int8_model, 0, activation="NONE")
    output = dropped.operators[0].outputs[0]
    symmetric = retyped(dropped, output, scales=(6 / 127,), zero_points=(0,))
    (problem,) = check_int8(symmetric, (), float_model)
    assert (problem.kind, problem.place) == ("dropped_activation", "CONV_2D#0")
    equal = retyped(dropped, output, scales=(6 / 255,), zero_points=(-128,))
    assert check_int8(equal, (), float_model) == []
