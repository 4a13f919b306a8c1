"""One quantised file by the recipe's options: what is looked at, and what the evidence says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tflite.tiny import float_file, weights

from edgefuse.quant.make import Maker, Material
from edgefuse.recipe_quantize import Quantize
from edgefuse.tflite.read import read_model

SHAPE = (1, 8, 8, 3)


def material(folder: Path, feeds: Any) -> Material:
    path = folder / "float.tflite"
    path.write_bytes(float_file(weights()))
    return Material(
        float_file=path,
        equalized_file=None,
        feeds=feeds,
        samples=4,
        digest="",
        batch=1,
        given={},
        runtime="litert",
        work=folder,
        scratch=folder / "scratch",
        warn=pytest.fail,
        progress=lambda *_: None,
    )


@pytest.mark.parametrize("format", ["dynamic_range", "float16"])
def test_float_activations_need_no_sample(format: str, tmp_path: Path) -> None:
    def feeds() -> Iterator[Any]:
        pytest.fail("a sample was asked for")

    maker = Maker(material(tmp_path, feeds))
    options = Quantize.model_validate({"format": format})
    made = maker.make(options, tmp_path / "made.tflite")
    model = read_model(made.path)
    assert {t.dtype for op in model.operators for t in model.activations_of(op)} == {"float32"}
    assert not made.measured.statistics and not made.measured.ranges
    assert made.evidence["method"] == "none" and made.evidence["calibration_samples"] == 0


def test_int8_looks_at_every_sample(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    seen = []

    def feeds() -> Iterator[Any]:
        for number in range(4):
            seen.append(number)
            yield {"picture": draw.standard_normal(SHAPE).astype(np.float32)}

    made = Maker(material(tmp_path, feeds)).make(Quantize(), tmp_path / "made.tflite")
    assert seen == [0, 1, 2, 3] and made.evidence["method"] == "percentile"


@pytest.mark.parametrize("format", ["dynamic_range", "float16"])
def test_options_about_ranges_are_refused_where_there_are_none(format: str) -> None:
    rule = {"match": "x", "ranges": "minmax"}
    for key, value in (("tensors", [rule]), ("head", "classes")):
        with pytest.raises(ValidationError, match=f"{key} is about ranges, and {format} has none"):
            Quantize.model_validate({"format": format, key: value})
