"""What each format promises, and that a file of another format does not pass for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgefuse.quant.calibration.ranges import Range
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.contract import check_contract
from edgefuse.tflite.format_check import Format, check_format, types_of
from edgefuse.tflite.read import TfliteModel, read_model

from .conftest import Pair
from .test_contract import groups

FORMATS: tuple[Format, ...] = ("int8", "int16x8", "dynamic_range", "float16")
_BOUNDARY = {"int8": "int8", "int16x8": "int16"}


def _made(pair: Pair, folder: Path, **options: Any) -> TfliteModel:
    source = read_model(pair.float_path)
    ranges = {t.name: Range(-6.0, 6.0, 0.0) for t in source.tensors if not t.is_constant}
    boundary = _BOUNDARY.get(options.get("format", "int8"), "float32")
    path = folder / "made.tflite"
    quantize_file(
        pair.float_path,
        path,
        ranges,
        **{"input_type": boundary, "output_type": boundary, **options},
    )
    return read_model(path)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_passes_as_its_own_format_only(format: Format, pair: Pair, tmp_path: Path) -> None:
    model, source = _made(pair, tmp_path, format=format), read_model(pair.float_path)
    passed = [f for f in FORMATS if not check_format(model, f, float_model=source)]
    assert passed == [format]


def test_boundary_types_change_nothing(pair: Pair, tmp_path: Path) -> None:
    for wanted in ("uint8", "float32"):
        model = _made(pair, tmp_path, input_type=wanted, output_type=wanted)
        assert check_format(model, "int8") == []


def test_per_tensor_weights_are_asked_for(pair: Pair, tmp_path: Path) -> None:
    model = _made(pair, tmp_path, per_tensor_weights=True)
    assert {p.kind for p in check_format(model, "int8")} == {"per_tensor_weights"}
    assert check_format(model, "int8", per_tensor_weights=True) == []


def test_a_float_layer_is_permitted_by_name(pair: Pair, tmp_path: Path) -> None:
    model = _made(pair, tmp_path, keep_float={6})
    (problem,) = check_format(model, "int8")
    assert problem.kind == "float_island" and "FULLY_CONNECTED" in problem.message
    assert check_format(model, "int8", permit_float=["FULLY_CONNECTED"]) == []


def test_a_mixture_is_asked_for_and_its_float_step_is_not_an_island(
    pair: Pair, tmp_path: Path
) -> None:
    model = _made(pair, tmp_path, int16={1, 2})
    kinds = {p.kind for p in check_format(model, "int8")}
    assert {"float_island", "int64_tensor", "wrong_type"} <= kinds
    assert check_format(model, "int8", mixed=True) == []
    # A real island beside it is still seen.
    both = _made(pair, tmp_path, int16={1}, keep_float={6})
    (problem,) = check_format(both, "int8", mixed=True)
    assert problem.place.startswith("FULLY_CONNECTED")


def test_a_layer_that_stayed_float_is_seen_in_dynamic_range(pair: Pair, tmp_path: Path) -> None:
    model = _made(pair, tmp_path, format="dynamic_range", keep_float={0})
    found = check_format(model, "dynamic_range")
    assert [p.place for p in found] == ["CONV_2D#0"]
    assert "is float32, not int8" in found[0].message
    assert check_format(model, "dynamic_range", permit_float=["CONV_2D"]) == []


@pytest.mark.parametrize(
    "options",
    [
        *({"format": format} for format in FORMATS),
        {"per_tensor_weights": True},
        {"keep_float": {0, 1, 6}},
        {"int16": {1, 2}},
    ],
)
def test_the_contract_holds_in_every_format(
    options: dict[str, Any], pair: Pair, tmp_path: Path
) -> None:
    model, source = _made(pair, tmp_path, **options), read_model(pair.float_path)
    asked: dict[str, Any] = {
        "format": options.get("format", "int8"),
        "per_tensor_weights": "per_tensor_weights" in options,
        "mixed": "int16" in options,
    }
    if "keep_float" in options:
        asked["permit_float"] = ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"]
    rows = check_contract(source, model, groups(pair.held), types=types_of(**asked))
    assert [row.reason for row in rows if not row.ok] == []
    if asked["format"] != "int8" or (len(options) and "format" not in options):
        assert not all(row.ok for row in check_contract(source, model, groups(pair.held)))
