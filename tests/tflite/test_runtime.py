from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from edgefuse.artifact import Quantization, TensorSpec
from edgefuse.errors import DataError, SourceError, StageError, ToolError
from edgefuse.tflite import runtime
from edgefuse.tflite.runtime import (
    dequantize,
    open_model,
    quantize,
    quiet_native,
    runtime_version,
    to_input,
    to_layout,
)

from .conftest import Pair
from .tiny import Builder


def picture(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 8, 8, 3)).astype(np.float32)


@pytest.mark.parametrize("kernels", ["default", "builtin", "reference"])
def test_int8_answers_as_float_does(pair: Pair, kernels: runtime.Kernels) -> None:
    wanted = open_model(pair.float_path, kernels=kernels).run({"picture": picture()})["logits"]
    model = open_model(pair.int8_path, kernels=kernels)
    exact = model.run({"picture": picture()})["logits"]
    assert exact.dtype == np.int8
    got = model.run_float({"picture": picture()})["logits"]
    assert got.dtype == np.float32
    assert np.abs(got - wanted).max() < 0.1 * np.abs(wanted).max()


def test_tflite_runtime_agrees_on_reference_kernels(pair: Pair) -> None:
    pytest.importorskip("tflite_runtime")
    feeds = {"picture": picture()}
    new = open_model(pair.int8_path, "litert", kernels="reference").run(feeds)["logits"]
    old = open_model(pair.int8_path, "tflite_runtime", kernels="reference").run(feeds)["logits"]
    assert np.array_equal(new, old)


def two_inputs(signature: bool = True) -> bytes:
    """sub = a - b, add = a + b, the file's order being a, b, the signature's b, a (case 20)."""
    b = Builder()
    left, right = b.tensor("t/a:0", (1, 3)), b.tensor("t/b:0", (1, 3))
    add, sub = b.tensor("t/add", (1, 3)), b.tensor("t/sub", (1, 3))
    b.op("ADD", (left, right), (add,))
    b.op("SUB", (left, right), (sub,))
    return b.finish({"a": left, "b": right}, {"sub": sub, "add": add}, signature)


@pytest.mark.parametrize("signature", [True, False])
def test_binding_is_by_name(tmp_path: Path, signature: bool) -> None:
    (tmp_path / "m.tflite").write_bytes(two_inputs(signature))
    model = open_model(tmp_path / "m.tflite")
    a, b = np.float32([[1, 2, 3]]), np.float32([[10, 20, 30]])
    names = ("a", "b", "sub", "add") if signature else ("t/a:0", "t/b:0", "t/sub", "t/add")
    out = model.run({names[1]: b, names[0]: a})
    assert np.array_equal(out[names[2]], a - b)
    assert np.array_equal(out[names[3]], a + b)


def test_wrong_feeds(pair: Pair) -> None:
    model = open_model(pair.int8_path)
    good = picture()
    with pytest.raises(DataError, match="no input is named 'pictures'") as caught:
        model.run({"pictures": good})
    assert caught.value.hint == "did you mean 'picture'?"
    with pytest.raises(DataError, match="no value for input 'picture'"):
        model.run({})
    with pytest.raises(DataError, match=r"shape \(1, 8, 8, 3\), given \(1, 3, 8, 8\)"):
        model.run({"picture": good.transpose(0, 3, 1, 2)})
    with pytest.raises(DataError, match="is int8, given float64"):
        model.run({"picture": good.astype(np.float64)})
    with pytest.raises(DataError, match="is int8, given uint8"):
        model.run({"picture": good.astype(np.uint8)})
    bad = good.copy()
    bad[0, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match="NaN"):
        model.run({"picture": bad})
    with pytest.raises(DataError, match="is float32, given int8"):
        open_model(pair.float_path).run({"picture": good.astype(np.int8)})


def test_nan_in_an_output_is_an_error(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 3)), b.tensor("y", (1, 3))
    b.op("SUB", (x, b.tensor("c", value=np.full((1, 3), np.nan, np.float32))), (y,))
    (tmp_path / "m.tflite").write_bytes(b.finish({"x": x}, {"y": y}))
    with pytest.raises(StageError, match="output 'y' holds NaN"):
        open_model(tmp_path / "m.tflite").run({"x": np.zeros((1, 3), np.float32)})


def test_quantisation_rounds_half_away_and_clips() -> None:
    spec = TensorSpec("x", (6,), "int8", quantization=Quantization(0.5, 3))
    value = np.float32([0.25, -0.25, 0.75, 0.2, 1e6, -1e6])
    assert quantize(value, spec).tolist() == [4, 2, 5, 3, 127, -128]
    # The greatest float below one half must not round up.
    one = TensorSpec("x", (1,), "int8", quantization=Quantization(1.0, 0))
    assert quantize(np.nextafter(np.float32([0.5]), np.float32(0)), one).tolist() == [0]
    assert dequantize(np.int8([3, 5]), spec).tolist() == [0.0, 1.0]
    with pytest.raises(DataError, match="not quantised"):
        quantize(value, TensorSpec("x", (6,), "int32"))
    with pytest.raises(DataError, match="is int32, given float32"):
        to_input(value, TensorSpec("x", (6,), "int32"))


def test_quantising_feeds_equals_the_quantize_kernel(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 4096)), b.tensor("y", (1, 4096), "int8", scales=[0.037], zeros=[-11])
    b.op("QUANTIZE", (x,), (y,))
    (tmp_path / "m.tflite").write_bytes(b.finish({"x": x}, {"y": y}))
    value = (np.arange(4096, dtype=np.float32)[None] - 2048) * np.float32(0.037 / 16)
    model = open_model(tmp_path / "m.tflite", kernels="reference")
    got = model.run({"x": value})["y"]
    assert np.array_equal(got, quantize(value, model.signature.outputs[0]))


def test_layout_of_equal_dimensions() -> None:
    cube = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)
    turned = to_layout(cube, "NCHW", (1, 4, 4, 4))
    assert turned[0, 1, 2, 3] == cube[0, 3, 1, 2]
    assert to_layout(cube, "NHWC", (1, 4, 4, 4))[0, 1, 2, 3] == cube[0, 1, 2, 3]
    with pytest.raises(DataError, match=r"gives \(1, 4, 4, 4\) for the model's \(1, 4, 4, 3\)"):
        to_layout(cube, "NCHW", (1, 4, 4, 3))
    with pytest.raises(DataError, match="needs 4 axes"):
        to_layout(cube[0], "NCHW", (4, 4, 4))


def test_custom_operator_is_named(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 3)), b.tensor("y", (1, 3))
    b.op("CUSTOM", (x,), (y,), custom="FlexErf")
    (tmp_path / "m.tflite").write_bytes(b.finish({"x": x}, {"y": y}))
    with pytest.raises(StageError, match="operators it does not have: FlexErf"):
        open_model(tmp_path / "m.tflite")


def test_damaged_file(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(pair.float_path.read_bytes()[:500])
    with pytest.raises(SourceError, match="truncated"):
        open_model(tmp_path / "m.tflite")


def test_missing_runtime_names_the_remedy(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    from importlib import metadata

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "tflite_runtime", None)
    monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", None)
    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ToolError) as caught:
        open_model(pair.int8_path, "tflite_runtime")
    assert caught.value.hint == 'pip install "edgefuse[legacy-runtime]"'
    with pytest.raises(ToolError, match="not installed"):
        runtime_version("tflite_runtime")


def test_version() -> None:
    assert runtime_version().startswith("ai-edge-litert ")


def test_native_chatter_is_dropped_and_the_rest_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), quiet_native() as so_far:
        os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n")
        os.write(2, b"ERROR: node 3 failed to prepare\n")
        assert "node 3" in so_far()
        _ = 1 / 0
    assert capfd.readouterr().err == "ERROR: node 3 failed to prepare\n"


def test_loading_is_quiet(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    open_model(pair.float_path).run({"picture": picture()})
    assert capfd.readouterr().err == ""
