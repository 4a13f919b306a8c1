"""One quantised file as a recipe asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgefuse.errors import RecipeError, StageError
from edgefuse.quant.calibration import measure
from edgefuse.quant.make import Maker, Material
from edgefuse.recipe.quantize import Quantize, TensorRule
from edgefuse.tflite.read import Tensor, read_model
from quant.weights.networks import Feed, classifier, feeds


def _maker(folder: Path, samples: Sequence[Feed], **more: Any) -> Maker:
    source = folder / "float.tflite"
    source.write_bytes(classifier())
    more = {"equalized_file": None, **more}
    return Maker(
        Material(
            float_file=source, feeds=lambda: iter(samples), samples=len(samples), digest="0" * 64,
            batch=1, given={}, runtime="litert", work=folder, scratch=folder,
            warn=lambda _: None, progress=lambda *_: None, **more,
        )
    )  # fmt: skip


def _made(maker: Maker, folder: Path, **options: Any) -> dict[str, Tensor]:
    made = maker.make(Quantize(**options), folder / "int8.tflite")
    return {tensor.name: tensor for tensor in read_model(made.path).tensors}


def test_tensors_between_int16_operators_keep_all_values(tmp_path: Path) -> None:
    samples = feeds(classifier(), 16, 1)
    samples[3]["x"] = samples[3]["x"] * 30
    maker = _maker(tmp_path, samples)
    cut = {"tail_percent": 2.0}
    plain = _made(maker, tmp_path, **cut)
    mixed = _made(maker, tmp_path, **cut, int16=("^joined$", "^last$", "^wide$"))
    assert mixed["joined"].dtype == "int16"
    peak = {name: tensor.real_range[1] for name, tensor in mixed.items() if tensor.real_range}
    before = {name: tensor.real_range[1] for name, tensor in plain.items() if tensor.real_range}
    # wide and joined are touched by int16 operators alone; stem by int8 ones too.
    assert peak["joined"] > 2 * before["joined"]
    assert peak["stem"] == pytest.approx(before["stem"], rel=0.02)
    rule = (TensorRule(match="^joined$", ranges="percentile", tail_percent=2.0),)
    ruled = _made(maker, tmp_path, **cut, tensors=rule, int16=("^joined$", "^last$", "^wide$"))
    assert ruled["joined"].real_range is not None
    assert ruled["joined"].real_range[1] == pytest.approx(before["joined"], rel=0.02)


def test_samples_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = measure.calibrate

    def counted(*given: Any, **more: Any) -> Any:
        calls.append(given)
        return real(*given, **more)

    monkeypatch.setattr(measure, "calibrate", counted)
    maker = _maker(tmp_path, feeds(classifier(), 8, 1))
    one = _made(maker, tmp_path)
    other = _made(maker, tmp_path, ranges="percentile", tail_percent=3.0)
    assert len(calls) == 1
    assert one["last"].scales != other["last"].scales


@pytest.mark.parametrize("key", ["keep_float", "int16"])
def test_a_pattern_that_finds_nothing(tmp_path: Path, key: str) -> None:
    maker = _maker(tmp_path, feeds(classifier(), 4, 1))
    with pytest.raises(RecipeError, match="joinde") as caught:
        maker.make(Quantize(**{key: ("joinde",)}), tmp_path / "int8.tflite")
    assert caught.value.where == f"quantize.{key}"
    assert "joined" in caught.value.hint


def test_a_file_that_could_not_be_equalised_is_not_made(tmp_path: Path) -> None:
    maker = _maker(tmp_path, feeds(classifier(), 4, 1), not_equalized="it knows no ARG_MAX")
    with pytest.raises(StageError, match="it knows no ARG_MAX"):
        maker.make(Quantize(equalize=True), tmp_path / "int8.tflite")


def test_evidence(tmp_path: Path) -> None:
    maker = _maker(tmp_path, feeds(classifier(), 8, 1))
    made = maker.make(Quantize(rounding="gptq", keep_float=("wide",)), tmp_path / "int8.tflite")
    assert made.evidence["rounding"]["layers"] == 4
    assert made.evidence["rounding"]["samples"] == 8
    assert made.evidence["equalized"] is False
