"""A float .tflite as the source: named or not, with dead channels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.tflite.read import read_model, signature_of

from .pipeline import Run, Tflite, run, samples, write_recipe
from .tflite_file import conv_file


def _run(folder: Path, name: str, path: Path, **sections: Any) -> Run:
    """Its inputs as it has them, fed with normal samples."""
    specs = signature_of(read_model(path)).inputs
    model = {
        "tflite": {"path": str(path)},
        "inputs": [{"name": s.name, "shape": list(s.shape)} for s in specs],
    }
    shapes = {s.name: s.shape[1:] for s in specs}
    data = samples(shapes, 40, seed=1, scale=0.5), samples(shapes, 20, seed=2, scale=0.5)
    return run(write_recipe(folder, name, model, *data, **sections))


def test_case_27_visual_wake_words_with_dead_channels(
    tmp_path: Path, require_data: Callable[[str], Path]
) -> None:
    path = require_data("mlperf-tiny/vww_96_float.tflite")
    gates = {"accuracy": {"min_sqnr_db": 12}}
    found = _run(tmp_path, "vww", path, gates=gates)
    assert found.report["verdict"] == "pass", found.error
    stages = [stage["name"] for stage in found.report["stages"]]
    assert "export" not in stages and "fuse" not in stages
    assert Tflite(found.int8_file).dtypes <= {"int8", "int32"}
    model = read_model(found.int8_file)
    scales = np.concatenate([t.scales for t in model.tensors if t.is_constant and t.scales])
    assert (scales > 0).all() and np.isfinite(scales).all()


@pytest.mark.parametrize("named", [False, True])
def test_case_20_a_float_file_with_and_without_names(named: bool, tmp_path: Path) -> None:
    path = tmp_path / "given.tflite"
    path.write_bytes(conv_file(8, signature=named))
    path.chmod(0o400)
    made = _run(tmp_path, "given", path, gates={"accuracy": {"min_sqnr_db": 25}})
    assert made.report["verdict"] == "pass", made.error
    assert path.read_bytes() == made.float_file.read_bytes()
    signature = signature_of(read_model(made.int8_file))
    wanted = ("x/in:0", "y/out:0") if named else ("input", "output")
    assert (signature.inputs[0].name, signature.outputs[0].name) == wanted


def test_an_operator_without_a_reference_kernel_ships_and_is_told(tmp_path: Path) -> None:
    """Neither the proof of the given file nor the golden vectors can use those kernels."""
    path = tmp_path / "given.tflite"
    path.write_bytes(conv_file(8, elu=True))
    made = _run(tmp_path, "elu", path, check={"permit_float": ["ELU"]})
    assert made.report["verdict"] == "pass", made.error
    (told,) = [text for text in made.report["warnings"] if "golden outputs" in text]
    assert "its reference kernels have no ELU" in told
    manifest = json.loads((made.out / "bundle/manifest.json").read_text())
    assert manifest["golden"]["kernels"] == "builtin" and manifest["golden"]["vectors"]


def test_case_29_an_int8_file_is_no_source(tmp_path: Path) -> None:
    given = tmp_path / "given.tflite"
    given.write_bytes(conv_file(8))
    made = _run(tmp_path, "given", given)
    again = _run(tmp_path, "again", made.int8_file)
    assert again.report["exit_code"] == 3
    assert "only a float model can be quantised" in again.error
