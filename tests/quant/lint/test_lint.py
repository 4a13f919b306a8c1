"""Lint: every rule fires on its fault, and is silent on the same thing done right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite.tiny import Builder, float_file, weights

from edgefuse.quant.calibration.calibrate import TensorStatistics
from edgefuse.quant.calibration.histogram import Histogram
from edgefuse.quant.calibration.ranges import Range
from edgefuse.quant.lint.input_affine import input_affine
from edgefuse.quant.lint.lint import (
    Finding,
    constant_answer,
    far_constants,
    graph_normalisation,
    lint,
    odd_inputs,
    uneven_joins,
)
from edgefuse.quant.lint.look import look_at
from edgefuse.tflite.read import TfliteModel, parse_model

DRAW = np.random.default_rng(8)
PIXELS = DRAW.integers(0, 256, (6, 1, 8, 8, 3)).astype(np.float32)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def _model(*steps: tuple[str, Any, bool], activation: str = "NONE") -> TfliteModel:
    """x [1, 8, 8, 3] through operators with one constant each; True: the constant comes second."""
    b = Builder()
    first = x = b.tensor("x", (1, 8, 8, 3))
    for number, (code, value, second) in enumerate(steps):
        y = b.tensor(f"y{number}", (1, 8, 8, 3))
        constant = b.tensor(f"c{number}", value=np.asarray(value))
        if code == "DEPTHWISE_CONV_2D":
            bias = b.tensor(f"b{number}", value=np.full(3, 0.5, np.float32))
            b.op(code, (x, constant, bias), (y,), activation)
        else:
            operands = (x, constant) if second else (constant, x)
            b.op(code, operands, (y,), activation)
        x = y
    return parse_model(b.finish({"x": first}, {"y": x}))


def _f(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("steps", "scale", "shift"),
    [
        ([("SUB", _f(1, 2, 3), True), ("MUL", _f(0.5), True)], [0.5], [-0.5, -1, -1.5]),
        ([("MUL", _f(2), False), ("ADD", _f(1), True)], [2], [1]),
        ([("DIV", _f(2, 4, 8), True)], [0.5, 0.25, 0.125], [0]),
        ([("SUB", _f(1), False)], [-1], [1]),
        ([("DEPTHWISE_CONV_2D", _f(1, 2, 3).reshape(1, 1, 1, 3), True)], [1, 2, 3], [0.5]),
        ([("ADD", _f(1, 2, 3).reshape(1, 1, 3), True)], [1], [1, 2, 3]),
    ],
)
def test_the_step_at_the_front(
    steps: list[Any], scale: Sequence[float], shift: Sequence[float]
) -> None:
    found = input_affine(_model(*steps), 0)
    assert found is not None and len(found.operators) == len(steps)
    np.testing.assert_allclose(np.broadcast_to(found.scale, 3), np.broadcast_to(scale, 3))
    np.testing.assert_allclose(np.broadcast_to(found.shift, 3), np.broadcast_to(shift, 3))


def test_other_steps_are_none() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    assert input_affine(_model(("ADD", rows, True)), 0) is None
    assert input_affine(_model(("DIV", _f(1), False)), 0) is None
    assert input_affine(_model(("ADD", _f(1), True), activation="RELU"), 0) is None
    assert input_affine(parse_model(float_file(weights())), 0) is None


def _codes(found: Sequence[Finding]) -> list[str]:
    assert all(f.message and f.where and f.remedy for f in found)
    return [f.code for f in found]


def _judged(model: TfliteModel, values: Any) -> list[Finding]:
    affine = input_affine(model, 0)
    assert affine is not None
    look = look_at({"x": np.asarray(value, np.float32)} for value in values)["x"]
    return graph_normalisation("x", affine, look)


def _steps(mean: Any, std: Any) -> TfliteModel:
    return _model(("SUB", _f(*mean), True), ("DIV", _f(*std), True))


@pytest.mark.parametrize(
    "model",
    [
        _steps(MEAN, STD),
        _steps(255 * MEAN, 255 * STD),
        _steps([0.5] * 3, [0.5] * 3),
        _model(("MUL", _f(1 / 127.5), True), ("ADD", _f(-1), True)),
    ],
    ids=["unit", "pixels", "half", "keras"],
)
def test_normalised_in_the_graph_and_before(model: TfliteModel) -> None:
    normalised = (PIXELS / 255 - MEAN) / STD
    (found,) = _judged(model, normalised)
    assert found.code == "normalised_twice"
    assert "SUB#0" in found.message or "MUL#0" in found.message
    assert "preprocessing" in found.remedy


def test_normalised_once_wherever() -> None:
    assert _judged(_steps(MEAN, STD), PIXELS / 255) == []
    assert _judged(_steps(255 * MEAN, 255 * STD), PIXELS) == []
    assert _judged(_model(("MUL", _f(1 / 127.5), True), ("ADD", _f(-1), True)), PIXELS) == []
    # A BatchNorm on the input that learned on normalised pictures.
    assert _judged(_steps([0.02, 0.1, -0.1], [1.2, 1.3, 1.2]), (PIXELS / 255 - MEAN) / STD) == []
    # Dark pictures are no second normalisation.
    assert _judged(_steps([0.5] * 3, [0.5] * 3), PIXELS / 255 * 0.2) == []


def test_another_scale_than_the_graph_expects() -> None:
    (found,) = _judged(_steps(255 * MEAN, 255 * STD), PIXELS / 255)
    assert found.code == "scale_before_graph" and "0..255" in found.remedy
    assert _codes(_judged(_steps(MEAN, STD), PIXELS)) == ["scale_before_graph"]


def _statistics(**spans: tuple[float, float]) -> list[TensorStatistics]:
    found = []
    for name, span in spans.items():
        histogram = Histogram()
        histogram.add(_f(*span), _f(*span))
        found.append(TensorStatistics(name, (1,), histogram))
    return found


def test_ranges_that_differ() -> None:
    model = _model(("MUL", _f(1), True))
    feeds = [{"x": PIXELS[0]}]
    (found,) = odd_inputs(model, _statistics(x=(-2.0, 2.5)), feeds)
    assert found.code == "ranges_differ" and "2.5 in calibration and 25" in found.message
    assert odd_inputs(model, _statistics(x=(0.0, 200.0)), feeds) == []


def test_a_model_that_answers_one_constant() -> None:
    logits = DRAW.normal(size=(1, 10))
    same = [{"y": logits + 1e-4 * DRAW.normal(size=(1, 10))} for _ in range(6)]
    (found,) = constant_answer(same)
    assert found.code == "constant_answer" and "'y'" in found.where
    assert (
        constant_answer([{"y": logits + 0.3 * DRAW.normal(size=(1, 10))} for _ in range(6)]) == []
    )
    assert constant_answer([{**row, "z": DRAW.normal(size=(1, 5))} for row in same]) == []
    assert constant_answer(same[:2]) == []
    assert constant_answer([]) == []


def test_joined_ranges() -> None:
    b = Builder()
    boxes, scores, joined = (
        b.tensor("boxes", (1, 4)),
        b.tensor("scores", (1, 4)),
        b.tensor("j", (1, 8)),
    )
    b.op("CONCATENATION", (boxes, scores), (joined,))
    model = parse_model(b.finish({"boxes": boxes, "scores": scores}, {"j": joined}))
    apart = {"boxes": Range(0.0, 640.0, 0.0), "scores": Range(0.0, 1.0, 0.0)}
    (found,) = uneven_joins(model, apart)
    assert found.code == "joined_ranges" and found.where == "CONCATENATION#0"
    assert "step of 2.51" in found.message and "separate outputs" in found.remedy
    near = {"boxes": Range(0.0, 1.0, 0.0), "scores": Range(0.0, 1.0, 0.0)}
    assert uneven_joins(model, near) == []


def _padded(constant: float) -> TfliteModel:
    b = Builder()
    x, y = b.tensor("x", (1, 8, 8, 3)), b.tensor("y", (1, 10, 10, 3))
    pads = b.tensor("pads", value=np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    b.op("PADV2", (x, pads, b.tensor("c", value=_f(constant))), (y,))
    return parse_model(b.finish({"x": x}, {"y": y}))


def test_a_padding_constant_that_ruins_a_range() -> None:
    (found,) = far_constants(_padded(-100.0), _statistics(x=(-1.0, 3.0), y=(-100.0, 3.0)))
    assert found.code == "far_constant" and found.where == "PADV2#0"
    assert "from 0.0157 to 0.404" in found.message
    assert far_constants(_padded(-2.0), _statistics(x=(-1.0, 3.0), y=(-2.0, 3.0))) == []
    # Calibration leaves padding for a maximum out of the range: then it does no harm.
    assert far_constants(_padded(-1e38), _statistics(x=(-1.0, 3.0), y=(-1.0, 3.0))) == []
    assert far_constants(_padded(-100.0), ()) == []


def test_a_mask_that_ruins_a_range() -> None:
    model = _model(("ADD", _f(0, -1e4, 0), True))
    (found,) = far_constants(model, _statistics(x=(-5.0, 5.0), y0=(-10005.0, 5.0)))
    assert found.where == "ADD#0" and "-20 before a softmax" in found.remedy
    near = _model(("ADD", _f(0, -20, 0), True))
    assert far_constants(near, _statistics(x=(-5.0, 5.0), y0=(-25.0, 5.0))) == []


def test_everything_on_a_good_model(tmp_path: Path) -> None:
    from edgefuse.data import open_samples
    from edgefuse.quant.calibration.calibrate import calibrate
    from edgefuse.quant.calibration.ranges import choose
    from edgefuse.recipe import Recipe, Samples

    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    data = {}
    for role in ("calibration", "evaluation"):
        np.save(tmp_path / f"{role}.npy", DRAW.normal(size=(20, 8, 8, 3)).astype(np.float32))
        data[role] = {"arrays": f"{role}.npy"}
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "model": {
                "tflite": {"path": "float.tflite"},
                "inputs": [{"name": "picture", "shape": [1, 8, 8, 3]}],
            },
            "data": data,
        }
    )
    sets = {
        role: open_samples(
            Samples(**given), preprocess=None, inputs=recipe.model.inputs, base=tmp_path
        )
        for role, given in data.items()
    }
    statistics = calibrate(path, (sample.feeds for sample in sets["calibration"].samples()))
    ranges = choose(statistics, "minmax", 0.0)
    assert lint(path, recipe, sets, None, statistics, ranges) == []
    assert lint(path, recipe, {"calibration": sets["calibration"]}, None) == []
