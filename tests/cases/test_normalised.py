"""A graph that normalises its input by itself, fed with normalised and with raw samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .onnx_graph import OnnxGraph
from .pipeline import Array, Run, inputs, run, write_recipe

SHAPES = {"picture": (3, 16, 16)}
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
GATES = {"accuracy": {"min_sqnr_db": 12}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("normalised")
    g = OnnxGraph()
    x = g.input("picture", [1, 3, 16, 16])
    shape = (1, 3, 1, 1)
    centred = g.add("Sub", x, g.constant((255 * MEAN).reshape(shape)))
    normal = g.add("Div", centred, g.constant((255 * STD).reshape(shape)))
    relu = g.add("Relu", g.conv(normal, 3, 8))
    flat = g.add("Flatten", g.add("GlobalAveragePool", relu))
    g.dense(flat, 8, 10, output="logits")
    g.output("logits")
    g.save(path / "normalising.onnx")
    return path


def _pixels(count: int, seed: int) -> Array:
    """Pictures that differ: each of its own brightness and colour."""
    random = np.random.default_rng(seed)
    base = random.uniform(40, 215, (count, 3, 1, 1))
    return np.clip(base + random.normal(0, 40, (count, 3, 16, 16)), 0, 255).astype(np.float32)


def _normalised(pixels: Array) -> Array:
    shape = (3, 1, 1)
    return ((pixels / 255 - MEAN.reshape(shape)) / STD.reshape(shape)).astype(np.float32)


def _run(folder: Path, title: str, *, twice: bool) -> Run:
    sets = [_pixels(30, 1), _pixels(20, 2)]
    data = [{"picture": _normalised(s) if twice else s} for s in sets]
    model = {"onnx": {"path": "normalising.onnx"}, "inputs": inputs(SHAPES)}
    return run(write_recipe(folder, "normalising", model, *data, title=title, gates=GATES))


def test_case_24_normalised_in_the_graph_and_on_both_sides(folder: Path) -> None:
    found = _run(folder, "twice", twice=True)
    told = " ".join(w for w in found.report["warnings"] if "the graph normalises" in w)
    assert "input 'picture'" in told and "normalise once" in told, found.report["warnings"]
    # The ranges agree, so nothing else can tell; and the float model says one thing to all.
    assert not any("in calibration and" in w for w in found.report["warnings"])
    assert any("answers nearly the same" in w for w in found.report["warnings"])


def test_case_24_normalised_in_the_graph_alone(folder: Path) -> None:
    found = _run(folder, "once", twice=False)
    assert found.report["verdict"] == "pass", found.error
    assert found.report["warnings"] == []
