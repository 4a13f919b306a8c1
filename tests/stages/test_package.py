"""Golden vectors: by the reference kernels, or said to be by others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tflite.tiny import Builder

from edgefuse.data import Entry, Sample, SampleSet
from edgefuse.devices import device as devices
from edgefuse.errors import StageError
from edgefuse.stages.package import _compiled, _golden, _steps
from edgefuse.target import Target

FEED = np.float32([[-1, 0, 1, 2]])


def golden(path: Path, code: str) -> tuple[dict[str, bytes], dict[str, Any], list[str]]:
    """Of a float file with one operator."""
    b = Builder()
    x, y = b.tensor("x", (1, 4)), b.tensor("y", (1, 4))
    b.op(code, (x,), (y,))
    path.write_bytes(b.finish({"x": x}, {"y": y}))
    entry = Entry("p", "p", None)

    def stream(_: Any) -> Iterator[Sample]:
        yield Sample({"x": FEED}, None, "p", "p")

    warnings: list[str] = []
    context: Any = SimpleNamespace(
        samples=lambda role: SampleSet("d", (entry,), (), {}, "arrays", stream),
        downloads=None,
        progress=lambda *_: None,
        warn=warnings.append,
    )
    one_input = SimpleNamespace(name="x", shape=(1, 4))
    recipe: Any = SimpleNamespace(
        package=SimpleNamespace(golden_samples=1),
        model=SimpleNamespace(batch=1, source="tflite", inputs=[one_input]),
        preprocess=None,
    )
    inputs: Any = {"quantize": SimpleNamespace(path=path)}
    return (*_golden(inputs, recipe, context), warnings)


def test_reference_kernels(tmp_path: Path) -> None:
    members, manifest, warnings = golden(tmp_path / "m.tflite", "RELU")
    row = {"inputs": {"x": "golden/0/input_0.npy"}, "outputs": {"y": "golden/0/output_0.npy"}}
    (usual,) = manifest.pop("deviation", {"none": None}).values()
    assert manifest == {"kernels": "reference", "vectors": [row]} and not warnings
    assert usual is None, "float outputs differ from CPU to CPU"
    answer = np.load(io.BytesIO(members["golden/0/output_0.npy"]))
    np.testing.assert_array_equal(answer, np.maximum(FEED, 0))


def test_an_operator_without_a_reference_kernel_is_told(tmp_path: Path) -> None:
    members, manifest, (warning,) = golden(tmp_path / "m.tflite", "ELU")
    assert manifest["kernels"] == "builtin" and manifest["no_reference"] == "ELU"
    assert manifest["runtime"].startswith("ai-edge-litert ")
    assert f"built-in kernels of {manifest['runtime']}" in warning and "have no ELU" in warning
    answer = np.load(io.BytesIO(members["golden/0/output_0.npy"]))
    np.testing.assert_allclose(answer, np.where(FEED < 0, np.expm1(FEED), FEED), rtol=1e-6)


def test_a_file_that_no_kernels_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="cannot load the model"):
        golden(tmp_path / "m.tflite", "LSTM")


def test_how_far_the_usual_kernels_are_off_is_told() -> None:
    exact = {"a": np.int8([-128, 5]), "b": np.float32([1.0]), "c": np.uint8([0])}
    found = {"a": np.int8([127, 5]), "b": np.float32([2.0]), "c": np.uint8([3])}
    assert _steps(exact, found) == [255, 3]


@dataclass(frozen=True)
class Facts:
    cycles: int
    layers: tuple[int, ...]


class Compiler:
    def compile(self, model: Path, destination: Path) -> Facts:
        destination.write_bytes(b"compiled " + model.read_bytes())
        return Facts(7, (1, 2))

    def describe(self) -> str:
        return "a compiler"


def test_a_model_is_compiled_where_the_target_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "open_device", lambda *_: Compiler())
    (tmp_path / "m").write_bytes(b"model")
    accelerator = {
        "config": "ethos-u55-128", "system_config": "a", "memory_mode": "b"
    }  # fmt: skip
    fields = {"name": "npu", "summary": "n", "transport": "local", "runtime": "ethos_u"}
    npu = Target.model_validate({**fields, "accelerator": accelerator})
    context: Any = SimpleNamespace(target=npu, work=tmp_path, log=tmp_path / "log")
    data, facts = _compiled(tmp_path / "m", context) or (b"", {})
    assert data == b"compiled model"
    assert facts == {"cycles": 7, "target": "npu", "by": "a compiler"}
    context.target = Target(name="host", summary="h", transport="local", runtime="litert")
    assert _compiled(tmp_path / "m", context) is None and context.target.compiled_for is None
