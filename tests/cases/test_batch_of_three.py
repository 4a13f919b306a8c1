"""A detector-like graph of batch 3 and two inputs, through every gate, and what makes it fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.errors import RecipeError

from .onnx_graph import OnnxGraph
from .pipeline import (
    Array,
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

BATCH = 3
SHAPES = {"b/left:0": (3, 8, 8), "a/right": (8,)}
HEADS = ("sub", "add", "boxes/scores:0", "biased")
GATES = {
    "accuracy": {"min_sqnr_db": 10, "min_agreement_percent": 40},
    "memory": {"max_arena_bytes": 1_000_000},
}
MODEL = {"onnx": {"path": "three.onnx"}, "inputs": inputs(SHAPES, BATCH)}
SMALL_CHANNEL, DEAD_CHANNEL = 3, 5


def _graph(path: Path) -> None:
    g = OnnxGraph()
    left, right = g.input("b/left:0", ["N", 3, 8, 8]), g.input("a/right", ["N", 8])
    weight = g.random.normal(size=(8, 3, 3, 3)) / 5
    weight[SMALL_CHANNEL] *= 1e-7 / np.abs(weight[SMALL_CHANNEL]).max()
    weight[DEAD_CHANNEL] = 0
    bias = np.zeros(8)
    bias[SMALL_CHANNEL], bias[DEAD_CHANNEL] = 5, -300
    g.add("Conv", left, g.constant(weight), g.constant(bias), output="biased", pads=[1] * 4)
    relu = g.add("Relu", g.conv(left, 3, 8))
    pooled = g.add("Flatten", g.add("GlobalAveragePool", relu))
    a, b = g.dense(pooled, 8, 6), g.dense(right, 8, 6)
    g.add("Sub", a, b, output="sub")
    g.add("Add", a, b, output="add")
    wide = g.add("Mul", g.dense(right, 8, 4), g.constant(300))
    g.add("Concat", g.add("Relu", wide), g.add("Sigmoid", a), output="boxes/scores:0", axis=1)
    g.output(*HEADS)
    g.save(path)


def _evaluation() -> dict[str, Array]:
    return samples(SHAPES, 30, seed=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("three")
    _graph(path / "three.onnx")
    return path


def _recipe(folder: Path, title: str, calibration_scale: float = 1.0, **sections: Any) -> Path:
    calibration = samples(SHAPES, 40, seed=1, scale=calibration_scale)
    data = calibration, _evaluation()
    return write_recipe(folder, "three", MODEL, *data, title=title, **sections)


@pytest.fixture(scope="module")
def made(folder: Path) -> Run:
    found = run(_recipe(folder, "three", gates=GATES))
    assert found.report["verdict"] == "pass", found.error
    return found


def _judge(folder: Path, path: Path) -> dict[str, float]:
    feeds = batches(_evaluation(), BATCH)
    reference, model = run_onnx(folder / "three.onnx", feeds), Tflite(path)
    answers = [model(feed) for feed in feeds]
    return {n: sqnr_db([r[n] for r in reference], [a[n] for a in answers]) for n in HEADS}


def test_case_19_20_batch_3_bound_by_name_and_value(made: Run, folder: Path) -> None:
    found = _judge(folder, made.float_file)
    assert min(found.values()) > 90, found
    found = _judge(folder, made.int8_file)
    assert min(found.values()) > 25, found
    assert Tflite(made.int8_file).inputs["a/right"]["shape"].tolist() == [BATCH, 8]


def test_case_19_a_size_that_is_not_pinned_is_refused(folder: Path) -> None:
    model = {"onnx": {"path": "three.onnx"}, "inputs": [{"name": "a/right", "shape": ["N", 8]}]}
    data = samples(SHAPES, 8, seed=1)
    with pytest.raises(RecipeError, match=r"inputs.*shape"):
        run(write_recipe(folder, "unpinned", model, data, data))


def test_case_19_another_size_than_the_files_is_refused(folder: Path) -> None:
    g = OnnxGraph()
    g.add("Relu", g.input("x", [1, 4]), output="y")
    g.output("y")
    g.save(folder / "static.onnx")
    shapes = {"x": (4,)}
    model = {"onnx": {"path": "static.onnx"}, "inputs": inputs(shapes, 2)}
    data = samples(shapes, 8, seed=1)
    found = run(write_recipe(folder, "static", model, data, data), until="export")
    assert found.report["exit_code"] == 2
    assert "[2, 4]" in found.error and "[1, 4]" in found.error


def test_case_24_normalised_on_one_side_only(folder: Path) -> None:
    found = run(_recipe(folder, "twice", 1 / 50, gates=GATES))
    warned = [w for w in found.report["warnings"] if "normalised" in w]
    assert len(warned) == len(SHAPES) and "'a/right'" in " ".join(warned)
    assert found.report["verdict"] == "fail"
    assert found.report["exit_code"] == 1 and "sqnr" in found.error


def test_case_26_boxes_joined_with_scores(made: Run) -> None:
    (warned,) = (w for w in made.report["warnings"] if "CONCATENATION" in w)
    assert re.search(r"joins values in 0\.\.0\.\d+ with values in 0\.\.\d{3}:", warned)
    assert "separate outputs" in warned


def test_case_27_bias_that_does_not_fit_int32(made: Run, folder: Path) -> None:
    model = Tflite(made.int8_file)
    scale, _ = model.outputs["biased"]["quantization"]
    for feed in batches(_evaluation(), BATCH):
        biased = model(feed)["biased"]
        assert np.abs(biased[..., SMALL_CHANNEL] - 5).max() <= scale
        assert np.abs(biased[..., DEAD_CHANNEL] + 300).max() <= scale


def test_case_29_float_inputs_and_outputs(made: Run, folder: Path) -> None:
    options = {"input": "float32", "output": "float32"}
    found = run(_recipe(folder, "float_ends", quantize=options, gates=GATES))
    assert found.report["verdict"] == "pass", found.error
    model = Tflite(found.int8_file)
    for detail in (*model.inputs.values(), *model.outputs.values()):
        assert detail["dtype"] == np.float32
    codes = operators(found.int8_file)
    assert codes.count("DEQUANTIZE") == len(HEADS)
    assert codes.index("CONV_2D") >= 1 and codes[0] == "QUANTIZE"
    judged = _judge(folder, found.int8_file)
    assert min(judged.values()) > 25, judged


@pytest.mark.parametrize("side", ["input", "output"])
def test_case_29_one_float_side(side: str, made: Run, folder: Path) -> None:
    found = run(_recipe(folder, f"float_{side}", quantize={side: "float32"}))
    assert found.report["verdict"] == "pass", found.error
    model = Tflite(found.int8_file)
    types = {
        "input": {np.dtype(d["dtype"]).name for d in model.inputs.values()},
        "output": {np.dtype(d["dtype"]).name for d in model.outputs.values()},
    }
    other = {"input": "output", "output": "input"}[side]
    assert types == {side: {"float32"}, other: {"int8"}}
    assert min(_judge(folder, found.int8_file).values()) > 25


def test_case_29_tensor_parameters_decide(made: Run) -> None:
    manifest = json.loads((made.out / "bundle/manifest.json").read_text())
    model = Tflite(made.int8_file)
    for side, details in (("inputs", model.inputs), ("outputs", model.outputs)):
        for spec in manifest["signature"][side]:
            scale, zero = details[spec["name"]]["quantization"]
            assert spec["quantization"] == {"scale": pytest.approx(scale), "zero_point": zero}
    assert {s["quantization"]["zero_point"] for s in manifest["signature"]["inputs"]} != {-128}


def test_case_30_runtime_and_kernels_are_recorded(made: Run) -> None:
    manifest = json.loads((made.out / "bundle/manifest.json").read_text())
    assert manifest["golden"]["kernels"] == "reference"
    assert "ai-edge-litert" in manifest["toolchain"]
    for gate in made.report["gates"]:
        assert gate["runtime"].startswith("ai-edge-litert ")


def test_case_31_samples_by_another_name_or_type(folder: Path) -> None:
    recipe = _recipe(folder, "renamed")
    data = samples(SHAPES, 8, seed=1)
    data["left"] = data.pop("b/left:0")
    np.savez(folder / "renamed_calibration.npz", **data)
    found = run(recipe)
    assert found.report["exit_code"] != 0
    assert "'left'" in found.error and "'b/left:0'" in found.error
    integers = {name: (v * 9).astype(np.int32) for name, v in samples(SHAPES, 8, seed=1).items()}
    np.savez(folder / "renamed_calibration.npz", **integers)
    assert "int32, not float32" in run(recipe).error


def test_case_31_float64_samples_are_rounded_to_float32(made: Run, folder: Path) -> None:
    recipe = _recipe(folder, "three64", gates=GATES)
    calibration = samples(SHAPES, 40, seed=1)
    wider = {name: value.astype(np.float64) for name, value in calibration.items()}
    np.savez(folder / "three64_calibration.npz", **wider)
    found = run(recipe)
    assert found.int8_file.read_bytes() == made.int8_file.read_bytes()


def test_case_32_int8_slower_than_the_limit(made: Run, folder: Path) -> None:
    latency = {"max_ratio_to_float": 0.001, "processes": 2, "rounds": 10}
    found = run(_recipe(folder, "slow", gates={**GATES, "latency": latency}))
    assert found.report["exit_code"] == 1
    assert "gate_latency: ratio to float" in found.error
    assert "ai-edge-litert 2" in found.error
    (gate,) = (g for g in found.report["gates"] if g["name"] == "latency")
    assert {"runtime", "kernels", "threads"} <= set(gate["figures"]["conditions"])
    assert not (found.out / "bundle").exists()
