"""Lint's rules on samples: arrays and labels as somebody made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.data import SampleSet, open_samples
from edgefuse.quant.lint.lint import Finding
from edgefuse.quant.lint.lint_samples import (
    cold_pictures,
    equal_axes,
    exchanged_between,
    exchanged_channels,
    guessed_labels,
    reversed_means,
    sample_range,
    shared_samples,
    shifted_labels,
)
from edgefuse.quant.lint.look import Look, look_at
from edgefuse.recipe import Preprocess, Samples, TensorShape

DRAW = np.random.default_rng(4)
IMAGENET: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def _contract(**given: Any) -> Preprocess:
    return Preprocess(crop=[8, 8], **given)


def _photographs(count: int = 24) -> np.ndarray[Any, Any]:
    """Pixels whose red is brighter than their blue by 0.08 of white, in the mean."""
    light = DRAW.uniform(60, 200, (count, 1, 1, 1, 1))
    tint = np.array([10.0, 0.0, -10.0]) + DRAW.normal(0, 6, (count, 1, 1, 1, 3))
    return np.clip(light + tint + DRAW.normal(0, 40, (count, 1, 8, 8, 3)), 0, 255).round()


def _look(values: Any) -> Look:
    return look_at({"x": np.asarray(value, np.float32)} for value in values)["x"]


def _normalised(pixels: Any) -> Any:
    return (pixels / 255 - np.array(IMAGENET["mean"])) / np.array(IMAGENET["std"])


def _only(found: list[Finding], code: str) -> Finding:
    (finding,) = found
    assert finding.code == code and finding.message and finding.where and finding.remedy
    return finding


@pytest.mark.parametrize(
    ("given", "fires"),
    [
        ({"mean": [0.406, 0.456, 0.485]}, True),
        ({"mean": [103.53, 116.28, 123.675], "scale": 1}, True),
        ({"mean": [0.485, 0.456, 0.406], "colour": "BGR"}, True),
        ({"mean": [0.485, 0.456, 0.406]}, False),
        ({"mean": [0.406, 0.456, 0.485], "colour": "BGR"}, False),
        ({"mean": [0.5, 0.5, 0.5]}, False),
        ({}, False),
    ],
)
def test_means_in_the_other_order(given: dict[str, Any], fires: bool) -> None:
    found = reversed_means(_contract(**given))
    if not fires:
        assert found == []
        return
    assert "set colour" in _only(found, "channel_order").remedy


def test_arrays_outside_the_contract() -> None:
    pixels = _photographs()
    contract = _contract(**IMAGENET)
    raw = _only(sample_range("calibration", _look(pixels), contract), "sample_range")
    assert "as raw pixels do" in raw.message and raw.where == "data.calibration, input 'x'"
    twice = (_normalised(pixels) - np.array(IMAGENET["mean"])) / np.array(IMAGENET["std"])
    _only(sample_range("evaluation", _look(twice), contract), "sample_range")
    unscaled = _contract(scale=1.0)
    _only(sample_range("evaluation", _look(pixels / 255), unscaled), "sample_range")
    assert sample_range("calibration", _look(_normalised(pixels)), contract) == []
    assert sample_range("calibration", _look(pixels), unscaled) == []
    assert sample_range("calibration", _look(pixels / 255), _contract()) == []


def test_blue_brighter_than_red() -> None:
    pixels, contract = _photographs(), _contract(**IMAGENET)
    found = _only(
        cold_pictures("calibration", _look(_normalised(pixels[..., ::-1])), contract),
        "channel_order",
    )
    assert found.severity == "note" and "OpenCV" in found.remedy
    assert cold_pictures("calibration", _look(_normalised(pixels)), contract) == []
    bgr = _contract(colour="BGR", mean=IMAGENET["mean"][::-1], std=IMAGENET["std"][::-1])
    turned = _normalised(pixels)[..., ::-1]
    assert cold_pictures("calibration", _look(turned), bgr) == []
    assert cold_pictures("calibration", _look(_normalised(pixels[:3, ..., ::-1])), contract) == []


def test_channels_exchanged_between_two_sets() -> None:
    one, other = _look(_photographs()), _look(_photographs()[..., ::-1])
    assert exchanged_between(one, _look(_photographs())) == []
    many, turned = _look(_photographs(400)), _look(_photographs(400)[..., ::-1])
    _only(exchanged_between(many, turned), "channel_order")
    grey = _look(_photographs(40).mean(axis=-1, keepdims=True).repeat(3, axis=-1))
    assert exchanged_between(grey, grey) == []
    assert len(exchanged_between(one, other)) <= 1


def test_axes_of_equal_size() -> None:
    found = _only(equal_axes("evaluation", "cube", (1, 4, 4, 4)), "equal_axes")
    assert found.severity == "note"
    assert equal_axes("evaluation", "x", (1, 3, 8, 8)) == []
    assert equal_axes("evaluation", "row", (1, 4)) == []


def _set(folder: Path, name: str, values: Any) -> SampleSet:
    np.save(folder / f"{name}.npy", np.asarray(values, np.float32))
    inputs = [TensorShape(name="x", shape=(1, 4))]
    return open_samples(Samples(arrays=f"{name}.npy"), preprocess=None, inputs=inputs, base=folder)


def test_the_same_rows_in_two_files(tmp_path: Path) -> None:
    rows = DRAW.normal(size=(30, 4))
    sets = {
        "calibration": _set(tmp_path, "calibration", rows[:12]),
        "evaluation": _set(tmp_path, "evaluation", rows[10:20]),
        "validation": _set(tmp_path, "validation", rows[20:]),
    }
    found = _only(shared_samples(sets, None), "shared_samples")
    assert found.where == "data.calibration"
    assert "2 samples are also in data.evaluation (first: calibration.npy[10])" in found.message
    sets["evaluation"] = _set(tmp_path, "apart", rows[12:20])
    assert shared_samples(sets, None) == []
    sets["validation"] = sets["evaluation"]
    assert "8 samples" in _only(shared_samples(sets, None), "shared_samples").message


def test_the_same_pictures_in_two_sets() -> None:
    def pictures(*contents: str) -> SampleSet:
        named = {digest: f"{digest}.png" for digest in contents}
        return SampleSet("d", (), (), named, "folder", lambda _: iter(()))

    sets = {"validation": pictures("a", "b"), "evaluation": pictures("b", "c")}
    found = _only(shared_samples(sets, None), "shared_samples")
    assert "1 samples are also in data.evaluation (first: b.png)" in found.message
    assert found.where == "data.validation"
    apart = {"training": pictures("a"), "validation": pictures("d"), "evaluation": pictures("c")}
    assert shared_samples(apart, None) == []


def _scores(labels: Any, right: float, classes: int = 11) -> Any:
    scores = DRAW.normal(size=(len(labels), classes))
    hit = DRAW.random(len(labels)) < right
    scores[np.arange(len(labels)), labels] += 8.0 * hit
    return scores


@pytest.mark.parametrize(("shift", "remedy"), [(1, "background"), (-1, "take 1 off")])
def test_labels_off_by_one(shift: int, remedy: str) -> None:
    true = DRAW.integers(1, 10, 48)
    found = _only(shifted_labels("evaluation", _scores(true, 0.8), true - shift), "labels_shifted")
    assert remedy in found.remedy and f"{shift:+d} is added" in found.message
    assert shifted_labels("evaluation", _scores(true, 0.8), true) == []
    assert shifted_labels("evaluation", _scores(true, 0.0), true) == []


def test_labels_that_fit_better_with_channels_exchanged() -> None:
    labels = DRAW.integers(0, 11, 60)
    weak, strong = _scores(labels, 0.55), _scores(labels, 0.9)
    found = _only(exchanged_channels("evaluation", weak, strong, labels), "channel_order")
    assert "preprocess.colour" in found.remedy
    assert exchanged_channels("evaluation", strong, weak, labels) == []
    alike = strong + 0.2 * DRAW.normal(size=strong.shape)
    assert exchanged_channels("evaluation", strong, alike, labels) == []
    shares = [np.exp(s) / np.exp(s).sum(axis=1, keepdims=True) for s in (weak, strong)]
    _only(exchanged_channels("evaluation", *shares, labels), "channel_order")
    # Two ways to be wrong are no order of channels.
    lost = _scores((labels + 5) % 11, 1.0)
    assert exchanged_channels("evaluation", 9 * lost, lost, labels) == []


def test_labels_that_the_model_does_not_know() -> None:
    labels = DRAW.integers(0, 11, 40)
    found = _only(guessed_labels("evaluation", _scores((labels + 5) % 11, 0.9), labels),
                  "labels_guessed")  # fmt: skip
    assert "order of the classes" in found.remedy
    assert guessed_labels("evaluation", _scores(labels, 0.5), labels) == []
    assert guessed_labels("evaluation", _scores((labels + 5) % 11, 0.9)[:9], labels[:9]) == []
