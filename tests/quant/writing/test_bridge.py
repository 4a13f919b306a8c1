"""Mixtures of int8 and int16: what is written, what is tried, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import float_file

from edgefuse.errors import StageError
from edgefuse.metrics import sqnr_db
from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import choose
from edgefuse.quant.writing import probe
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import read_model
from edgefuse.tflite.runtime import Runtime, open_model
from quant.writing.test_quantize import DEEP, FEEDS, HEAD, HELD, STEM, TWIN


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixtures") / "float.tflite"
    path.write_bytes(float_file(HELD))
    return path


def _mixed(source: Path, folder: Path, int16: set[int], runtime: Runtime = "litert") -> Path:
    made = folder / "mixed.tflite"
    ranges = choose(calibrate(source, FEEDS), "minmax", 0.0)
    quantize_file(source, made, ranges, int16=int16, runtime=runtime)
    return made


@pytest.mark.parametrize("runtime", ["litert", "tflite_runtime"])
def test_a_mixture_crosses_through_float_where_there_is_no_other_way(
    runtime: Runtime, source: Path, tmp_path: Path
) -> None:
    made = _mixed(source, tmp_path, {DEEP, TWIN}, runtime)
    model = read_model(made)
    codes = [op.code for op in model.operators]
    assert codes[1:3] == ["DEQUANTIZE", "QUANTIZE"]
    types = {op.code: {t.dtype for t in model.activations_of(op)} for op in model.operators[3:5]}
    assert types == {"DEPTHWISE_CONV_2D": {"int16"}, "CONV_2D": {"int16"}}
    exact, found = open_model(source), open_model(made, runtime)
    rows = [[m.run_float(feed)["logits"] for m in (exact, found)] for feed in FEEDS]
    assert sqnr_db(*map(np.concatenate, zip(*rows))) > 30.0


def test_ends_of_the_model_can_be_int16_inside(source: Path, tmp_path: Path) -> None:
    model = read_model(_mixed(source, tmp_path, {STEM, HEAD}))
    assert {model.tensors[i].dtype for i in (*model.inputs, *model.outputs)} == {"int8"}


def test_an_operator_without_an_int16_kernel_is_refused(tmp_path: Path) -> None:
    from quant.one_operator import CASES, feeds_of, file_of

    source = tmp_path / "elu.tflite"
    source.write_bytes(file_of("ELU"))
    ranges = choose(calibrate(source, feeds_of(CASES["ELU"], 2)), "minmax", 0.0)
    with pytest.raises(StageError, match="ELU#0 cannot have int16 activations") as caught:
        quantize_file(source, tmp_path / "made.tflite", ranges, int16={0})
    assert "quantize.keep_float" in caught.value.hint


def test_a_pair_that_the_runtime_refuses_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_runs(*arguments: object) -> list[str]:
        chains = arguments[2]
        assert isinstance(chains, list)
        return ["no such kernel"] * len(chains)

    monkeypatch.setattr(probe, "refusals", none_runs)
    with pytest.raises(StageError) as caught:
        _mixed(source, tmp_path, {DEEP})
    assert "CONV_2D#0 (int8) before DEPTHWISE_CONV_2D#3 (int16)" in caught.value.message
    assert "no such kernel" in caught.value.message
    assert "quantize.keep_float" in caught.value.hint


def test_a_probe_survives_a_runtime_that_ends_the_process_and_asks_only_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _mixed(source, tmp_path, {DEEP})
    model = read_model(made)
    monkeypatch.setattr(probe, "_KNOWN", {})
    monkeypatch.setattr(probe, "_WORKER", "quant.ending_worker")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    edit = Edit(model.data)
    chains = [[0], [3], [4]]
    found = probe.refusals(model, edit, chains, "litert")
    assert [bool(reason) for reason in found] == [False, True, False]
    assert "ended with code -6" in found[1]
    monkeypatch.setattr(probe, "_WORKER", "nothing.at_all")
    assert probe.refusals(model, edit, chains, "litert") == found
