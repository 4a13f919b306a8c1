"""The stage check on whole runs from small .tflite files: what it compares with, its remedies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cases.pipeline import Run, inputs, run, samples, write_recipe
from quant.weights.networks import Net


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "cache"))


def checked(folder: Path, data: bytes, shapes: dict[str, tuple[int, ...]], **quantize: bool) -> Run:
    (folder / "net.tflite").write_bytes(data)
    model = {"tflite": {"path": "net.tflite"}, "inputs": inputs(shapes)}
    feeds = samples(shapes, 8, 1), samples(shapes, 8, 2)
    path = write_recipe(folder, "net", model, *feeds, quantize=quantize)
    return run(path, until="check")


def test_biases_are_judged_as_equalised(tmp_path: Path) -> None:
    """A constant layer: its channels are evened out, and each bias fills its scale."""
    net = Net()
    x = net.tensor("input", (1, 8, 8, 3))
    weight = net.tensor("w", value=np.zeros((8, 3, 3, 3), np.float32))
    bias = net.tensor("b", value=np.float32([0.001] * 7 + [30.0]))
    convolution = ("Conv2DOptions", {"strideH": 1, "strideW": 1})
    a = net.simple("CONV_2D", "a", (x, weight, bias), (1, 8, 8, 8), "RELU", options=convolution)
    y = net.dense("scores", net.mean("pooled", a), 4)
    made = checked(tmp_path, net.finish({"x": x}, {"y": y}), {"x": (8, 8, 3)}, equalize=True)
    assert made.report["error"] is None, made.error
    (stage,) = [s for s in made.report["stages"] if s["name"] == "equalize"]
    assert "8 channels" in stage["summary"]


def test_an_input_that_nobody_reads_is_told(tmp_path: Path) -> None:
    net = Net()
    x, z = net.tensor("input", (1, 40)), net.tensor("other", (1, 4))
    y = net.dense("scores", x, 12)
    made = checked(tmp_path, net.finish({"x": x, "z": z}, {"y": y}), {"x": (40,), "z": (4,)})
    assert "'z' is float32, the recipe wants int8" in made.error
    assert "no operator reads 'z': leave it out of the model" in made.error
