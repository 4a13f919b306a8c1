"""BatchNormalization that no layer takes stays int8 to the end, and right."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .onnx_graph import OnnxGraph
from .pipeline import Tflite, batches, inputs, run, run_onnx, samples, sqnr_db, write_recipe

SHAPES = {"cube": (4, 8, 8)}


def _batch_norm(g: OnnxGraph, x: str, output: str = "") -> str:
    draw = g.random.uniform
    constants = (draw(0.5, 2, 4), draw(-1, 1, 4), draw(-1, 1, 4), draw(0.5, 2, 4))
    return g.add("BatchNormalization", x, *map(g.constant, constants), output=output)


def test_case_12_no_float_island(tmp_path: Path) -> None:
    g = OnnxGraph()
    x = g.add("Relu", g.conv(g.input("cube", [1, 4, 8, 8]), 4, 4))
    x = g.add("MaxPool", _batch_norm(g, x), kernel_shape=[2, 2], strides=[2, 2])
    x = g.conv(_batch_norm(g, x), 4, 4)
    g.add("Flatten", x, output="y")
    g.output("y")
    g.save(tmp_path / "alone.onnx")
    model = {"onnx": {"path": "alone.onnx"}, "inputs": inputs(SHAPES)}
    data = samples(SHAPES, 40, seed=1), samples(SHAPES, 20, seed=2)
    found = run(write_recipe(tmp_path, "alone", model, *data), until="check")
    assert not found.error
    tflite = Tflite(found.int8_file)
    kinds = {np.dtype(d["dtype"]).name for d in tflite.interpreter.get_tensor_details()}
    assert kinds <= {"int8", "int32"}
    feeds = batches(samples(SHAPES, 20, seed=2))
    reference = run_onnx(tmp_path / "alone.onnx", feeds)
    answers = [tflite(feed) for feed in feeds]
    assert sqnr_db([r["y"] for r in reference], [a["y"] for a in answers]) > 30
