"""Operators that stay float: refused by name, or permitted by name and right."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefuse.tflite.read import read_model

from .onnx_graph import OnnxGraph
from .pipeline import (
    Run,
    Tflite,
    batches,
    inputs,
    operators,
    run,
    run_onnx,
    samples,
    sqnr_db,
    write_recipe,
)

SHAPES = {"cube": (4, 4, 4)}
INTEGERS = {
    "prelu": "PRELU",
    "leaky": "LEAKY_RELU",
    "nearest": "RESIZE_NEAREST_NEIGHBOR",
    "least": "MINIMUM",
    "both": "ADD",
}
ISLANDS = {"sine": "SIN", "minus": "NEG", "rounded": "FLOOR"}
HEADS = (*INTEGERS, *ISLANDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("islands")
    g = OnnxGraph()
    x = g.conv(g.input("cube", [1, 4, 4, 4]), 4, 4)
    g.add("PRelu", x, g.weight(4, 1, 1), output="prelu")
    g.add("LeakyRelu", x, output="leaky", alpha=0.2)
    twice = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    sizes = g.constant([1, 1, 2, 2])
    g.add("Resize", x, "", sizes, output="nearest", nearest_mode="floor", **twice)
    g.add("Min", "leaky", "prelu", output="least")
    g.add("Add", "prelu", "leaky", output="both")
    g.add("Sin", x, output="sine")
    g.add("Neg", "sine", output="minus")
    g.add("Floor", g.add("Mul", x, g.constant([40.0])), output="rounded")
    g.output(*HEADS)
    g.save(path / "islands.onnx")
    return path


def _run(folder: Path, title: str, permitted: tuple[str, ...]) -> Run:
    model = {"onnx": {"path": "islands.onnx"}, "inputs": inputs(SHAPES)}
    data = samples(SHAPES, 40, seed=1), samples(SHAPES, 20, seed=2)
    check = {"permit_float": list(permitted)}
    return run(write_recipe(folder, "islands", model, *data, title=title, check=check))


def test_case_17_23_float_operators_are_refused_by_name(folder: Path) -> None:
    found = _run(folder, "refused", ("SIN",))
    assert found.report["exit_code"] == 3
    assert "NEG" in found.error and "FLOOR" in found.error
    assert not any(f"{code}#" in found.error for code in ("SIN", *INTEGERS.values()))
    assert "check.permit_float" in found.error
    assert not list(found.out.glob("*.bundle.tar"))


def test_case_18_20_permitted_float_operators_are_right(folder: Path) -> None:
    found = _run(folder, "permitted", tuple(ISLANDS.values()))
    assert found.report["verdict"] == "pass", found.error
    codes = operators(found.int8_file)
    assert set(INTEGERS.values()) | set(ISLANDS.values()) <= set(codes)
    floats = [op.code for op in read_model(found.int8_file).float_operators()]
    assert set(floats) - {"QUANTIZE", "DEQUANTIZE"} == set(ISLANDS.values())
    feeds = batches(samples(SHAPES, 20, seed=2))
    reference = run_onnx(folder / "islands.onnx", feeds)
    for path, limit_db in ((found.float_file, 90.0), (found.int8_file, 30.0)):
        answers = [Tflite(path)(feed) for feed in feeds]
        for name in HEADS:
            rows = [r[name] for r in reference], [a[name] for a in answers]
            assert sqnr_db(*rows) > limit_db, (path.name, name)


def test_case_23_erf_names_the_operator(folder: Path) -> None:
    g = OnnxGraph()
    x = g.add("Gemm", g.input("x", [1, 8]), g.weight(16, 8), g.weight(16), transB=1)
    ones, zeros = g.constant([1] * 16), g.constant([0] * 16)
    normal = g.add("LayerNormalization", x, ones, zeros, axis=-1)
    # No GELU, which would have been found in any spelling: see test_activation_spelling.py.
    g.add("Mul", normal, g.add("Erf", normal), output="y")
    g.output("y")
    g.save(folder / "erf.onnx")
    shapes = {"x": (8,)}
    model = {"onnx": {"path": "erf.onnx"}, "inputs": inputs(shapes)}
    data = samples(shapes, 8, seed=1)
    found = run(write_recipe(folder, "erf", model, data, data))
    assert found.report["exit_code"] == 3
    assert "tf.Erf" in found.error and "export.opset: 20" in found.error


def test_case_18_axes_that_the_converter_mixes_up_are_refused(folder: Path) -> None:
    g = OnnxGraph()
    g.add("PRelu", g.input("cube", [1, 4, 4, 4]), g.weight(4, 1, 1), output="prelu")
    g.output("prelu")
    g.save(folder / "bare.onnx")
    model = {"onnx": {"path": "bare.onnx"}, "inputs": inputs(SHAPES)}
    data = samples(SHAPES, 8, seed=1)
    found = run(write_recipe(folder, "bare", model, data, data))
    assert found.report["exit_code"] == 3
    assert "relative error" in found.error and "axes of equal size" in found.error
