"""Memory: calibration streams, and folding keeps to its budget."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from .onnx_graph import OnnxGraph
from .pipeline import inputs, run, samples, write_recipe
from .tflite_file import conv_file

_CALIBRATE = r"""
import re, sys
from pathlib import Path
from edgefuse.data import open_samples
from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.recipe import Samples, TensorShape
from edgefuse.tflite.read import read_model, signature_of

model, arrays = Path(sys.argv[1]), sys.argv[2]
signature = signature_of(read_model(model))
inputs = [TensorShape(name=s.name, shape=s.shape) for s in signature.inputs]
opened = open_samples(
    Samples(arrays=arrays), preprocess=None, inputs=inputs, base=model.parent, memo=None
)
calibrate(model, (sample.feeds for sample in opened.samples(None)))
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_case_34_memory_does_not_grow_with_samples(tmp_path: Path) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(conv_file(64))
    peaks_kb = []
    for count in (50, 400):
        arrays = tmp_path / f"{count}.npz"
        np.savez(arrays, **samples({"x/in:0": (64, 64, 3)}, count, seed=1))
        command = [sys.executable, "-c", _CALIBRATE, str(model), str(arrays)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks_kb.append(int(done.stdout))
    # 350 samples more are 17 MB.
    assert peaks_kb[1] - peaks_kb[0] < 5_000, peaks_kb


def test_case_33_folding_keeps_to_its_budget(tmp_path: Path) -> None:
    g = OnnxGraph()
    shape = [1, 16, 64, 64]
    x = g.input("x", shape)
    tiled = g.add("Tile", g.constant(np.ones((1, 1, 1, 1))), g.constant(shape, np.int64))
    g.add("Relu", g.add("Add", x, tiled), output="y")
    g.output("y")
    g.save(tmp_path / "tile.onnx")
    shapes = {"x": (16, 64, 64)}
    model = {"onnx": {"path": "tile.onnx"}, "inputs": inputs(shapes)}
    data = samples(shapes, 2, seed=1)
    fuse = {"fold_size_limit_bytes": 1 << 16}
    found = run(write_recipe(tmp_path, "tile", model, data, data, fuse=fuse), until="fuse")
    assert found.report["exit_code"] == 0, found.error
    held = onnx.load(found.file("_fused.onnx"))
    assert held.ByteSize() < 1 << 16
