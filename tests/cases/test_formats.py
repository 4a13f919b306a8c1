"""Every format and boundary type from a recipe to a bundle, judged by the runtime alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .onnx_graph import OnnxGraph
from .pipeline import Run, Tflite, batches, inputs, operators, run, run_onnx, samples, write_recipe

SHAPES = {"picture": (3, 20, 28)}
FLOAT_ENDS = {"input": "float32", "output": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("formats")
    g = OnnxGraph()
    x = g.add("Relu", g.conv(g.input("picture", [1, 3, 20, 28]), 3, 16))
    depthwise = {"group": 16, "kernel_shape": [3, 3], "pads": [1] * 4}
    x = g.add("Conv", x, g.weight(16, 1, 3, 3), g.weight(16), **depthwise)
    x = g.add("Flatten", g.add("GlobalAveragePool", g.add("Relu", x)))
    g.dense(x, 16, 10, output="scores")
    g.output("scores")
    g.save(path / "net.onnx")
    return path


def _run(folder: Path, title: str, quantize: dict[str, Any], **sections: Any) -> Run:
    model = {"onnx": {"path": "net.onnx"}, "inputs": inputs(SHAPES)}
    data = samples(SHAPES, 30, seed=1), samples(SHAPES, 12, seed=2)
    recipe = write_recipe(folder, "net", model, *data, title=title, quantize=quantize, **sections)
    return run(recipe)


def _db(folder: Path, found: Run) -> float:
    """Of the file with the runtime's own interpreter; parameters are the tensors'."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(found.int8_file))
    interpreter.allocate_tensors()
    (given,), (answer,) = interpreter.get_input_details(), interpreter.get_output_details()
    feeds = batches(samples(SHAPES, 12, seed=2))
    signal = noise = 0.0
    for feed, expected in zip(feeds, run_onnx(folder / "net.onnx", feeds)):
        value = feed["picture"].transpose(0, 2, 3, 1)
        scale, zero = given["quantization"]
        if scale:
            limits = np.iinfo(given["dtype"])
            steps = np.clip(np.round(value / scale) + zero, limits.min, limits.max)
            value = steps.astype(given["dtype"])
        interpreter.set_tensor(given["index"], value)
        interpreter.invoke()
        result = interpreter.get_tensor(answer["index"]).astype(np.float64)
        scale, zero = answer["quantization"]
        result = (result - zero) * scale if scale else result
        signal += float((expected["scores"] ** 2).sum())
        noise += float(((expected["scores"] - result) ** 2).sum())
    return 10 * float(np.log10(signal / noise))


@pytest.mark.parametrize(
    ("quantize", "types", "limit_db"),
    [
        ({"input": "uint8", "output": "uint8"}, ("uint8", "uint8"), 25.0),
        ({"weights": "per_tensor"}, ("int8", "int8"), 22.0),
        ({"format": "int16x8", "ranges": "minmax"}, ("int16", "int16"), 35.0),
        ({"format": "int16x8", "ranges": "minmax", **FLOAT_ENDS}, ("float32", "float32"), 35.0),
        ({"format": "dynamic_range"}, ("float32", "float32"), 30.0),
        ({"format": "float16"}, ("float32", "float32"), 55.0),
    ],
)
def test_case_17_29_each_format_becomes_a_bundle(
    quantize: dict[str, Any], types: tuple[str, str], limit_db: float, folder: Path
) -> None:
    title = "_".join(str(value) for value in quantize.values())
    found = _run(folder, title, quantize)
    assert found.report["verdict"] == "pass", found.error
    signature = json.loads((found.out / "bundle/manifest.json").read_text())["signature"]
    assert tuple(signature[side][0]["dtype"] for side in ("inputs", "outputs")) == types
    for side, dtype in zip(("inputs", "outputs"), types):
        held = signature[side][0]["quantization"]
        assert (held is None) == (dtype == "float32")
    assert {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"} <= set(operators(found.int8_file))
    if types == ("int8", "int8"):
        assert Tflite(found.int8_file).dtypes <= {"int8", "int32"}
    assert _db(folder, found) > limit_db
    (made,) = [row for row in found.report["stages"] if row["name"] == "quantize"]
    unranged = made["summary"].startswith("activations stay float: no ranges")
    assert unranged == (quantize.get("format") in ("dynamic_range", "float16"))
    assert all(row["ok"] for row in found.report["fusion"]["contract"])
