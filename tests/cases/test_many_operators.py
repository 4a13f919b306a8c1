"""One graph of many heads: what each operator becomes, in float and in int8, by value.

It is converted once, by the command line, without a network where the system can take it away.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .onnx_graph import OnnxGraph
from .pipeline import (
    Array,
    Run,
    Tflite,
    batches,
    inputs,
    operators,
    run_onnx,
    samples,
    sqnr_db,
    write_recipe,
)

SHAPES = {"picture/in:0": (3, 16, 16), "cube": (4, 4, 4), "cube20": (20, 20, 20), "row": (6, 32)}
HEADS = {
    "max_pool_padded": "MAX_POOL_2D",
    "max_pool_of_relu": "MAX_POOL_2D",
    "average_pool_padding_counts": "AVERAGE_POOL_2D",
    "average_pool_padding_apart": "AVERAGE_POOL_2D",
    "depthwise": "DEPTHWISE_CONV_2D",
    "grouped": "CONV_2D",
    "transposed_2": "TRANSPOSE_CONV",
    "transposed_3": "TRANSPOSE_CONV",
    "transposed_groups": "TRANSPOSE_CONV",
    "residual_relu": "ADD",
    "sigmoid": "LOGISTIC",
    "hard_swish": "HARD_SWISH",
    "silu": "MUL",
    "tanh_of_sigmoid": "TANH",
    "joined": "CONCATENATION",
    "cube/conv:0": "CONV_2D",
    "cube_reshaped": "RESHAPE",
    "conv_1d": "CONV_2D",
    "sub": "SUB",
    "add": "ADD",
}


def _graph(path: Path) -> None:
    g = OnnxGraph()
    picture = g.input("picture/in:0", ["N", 3, 16, 16])
    cube, cube20 = g.input("cube", ["N", 4, 4, 4]), g.input("cube20", ["N", 20, 20, 20])
    row = g.input("row", ["N", 6, 32])
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    signed = g.conv(picture, 3, 8)
    relu = g.add("Relu", signed)
    g.add("MaxPool", signed, output="max_pool_padded", **window)
    g.add("MaxPool", relu, output="max_pool_of_relu", **window)
    counts, apart = "average_pool_padding_counts", "average_pool_padding_apart"
    g.add("AveragePool", relu, output=counts, count_include_pad=1, **window)
    g.add("AveragePool", relu, output=apart, **window)
    bias = g.weight(8)
    g.add("Conv", relu, g.weight(8, 1, 3, 3), bias, output="depthwise", group=8, pads=[1] * 4)
    g.add("Conv", relu, g.weight(6, 4, 3, 3), output="grouped", group=2, pads=[1] * 4)
    g.add("ConvTranspose", relu, g.weight(8, 5, 2, 2), output="transposed_2", strides=[2, 2])
    odd = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
    g.add("ConvTranspose", relu, g.weight(8, 5, 3, 3), g.weight(5), output="transposed_3", **odd)
    g.add("ConvTranspose", relu, g.weight(8, 3, 3, 3), output="transposed_groups", group=2)
    inner = g.conv(relu, 8, 8)
    residual = g.add("Relu", g.add("Add", inner, relu), output="residual_relu")
    sigmoid = g.add("Sigmoid", inner, output="sigmoid")
    g.add("HardSwish", inner, output="hard_swish")
    g.add("Mul", inner, g.add("Sigmoid", inner), output="silu")
    tanh = g.add("Tanh", sigmoid, output="tanh_of_sigmoid")
    g.add("Concat", inner, sigmoid, tanh, output="joined", axis=1)
    g.conv(cube, 4, 4, 1, output="cube/conv:0")
    reshaped = g.constant([1, 800, 10], np.int64)
    g.add("Reshape", g.conv(cube20, 20, 20, 1), reshaped, output="cube_reshaped")
    g.add("Conv", row, g.weight(8, 6, 3), g.weight(8), output="conv_1d", pads=[1, 1])
    flat = g.add("Flatten", g.add("GlobalAveragePool", residual))
    logits = g.dense(flat, 8, 10)
    other = g.constant(np.linspace(-1, 1, 10))
    g.add("Sub", logits, other, output="sub")
    g.add("Add", logits, other, output="add")
    g.output(*HEADS)
    g.save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("many")


@pytest.fixture(scope="module")
def made(folder: Path) -> Run:
    _graph(folder / "many.onnx")
    (folder / "many.onnx").chmod(0o400)
    recipe = write_recipe(
        folder,
        "many",
        {"onnx": {"path": "many.onnx"}, "inputs": inputs(SHAPES)},
        samples(SHAPES, 24, seed=1),
        samples(SHAPES, 12, seed=2),
    )
    main = "import sys; from edgefuse.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "run", str(recipe), "--out", str(folder / "out")]
    unshare = shutil.which("unshare")
    offline = [unshare, "-rn"] if unshare else []
    if offline and subprocess.run([*offline, "true"], capture_output=True).returncode:
        offline = []
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run([*offline, *command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(json.loads((folder / "out/report.json").read_text()), folder / "out")


@pytest.fixture(scope="module")
def feeds() -> list[dict[str, Array]]:
    return batches(samples(SHAPES, 12, seed=2))


@pytest.fixture(scope="module")
def reference(made: Run, folder: Path, feeds: list[dict[str, Array]]) -> dict[str, list[Array]]:
    rows = run_onnx(folder / "many.onnx", feeds)
    return {name: [row[name] for row in rows] for name in HEADS}


@pytest.fixture(scope="module")
def answers(made: Run, feeds: list[dict[str, Array]]) -> dict[str, dict[str, list[Array]]]:
    """By file, then by output, in ONNX's order of axes."""
    found = {}
    for name, path in (("float32", made.float_file), ("int8", made.int8_file)):
        rows = [Tflite(path)(feed) for feed in feeds]
        found[name] = {head: [row[head] for row in rows] for head in HEADS}
    return found


@pytest.mark.parametrize("head", HEADS)
def test_case_18_20_25_every_head_by_value(
    head: str, reference: dict[str, list[Array]], answers: dict[str, dict[str, list[Array]]]
) -> None:
    for file, limit_db in (("float32", 90.0), ("int8", 30.0)):
        assert sqnr_db(reference[head], answers[file][head]) > limit_db, (file, head)


def test_case_17_every_tensor_is_integer(made: Run) -> None:
    found = operators(made.int8_file)
    assert Tflite(made.int8_file).dtypes <= {"int8", "int32", "bool"}
    assert set(HEADS.values()) <= set(found)
    assert made.report["verdict"] == "pass"


def test_case_20_outputs_keep_names_and_order(made: Run) -> None:
    from edgefuse.tflite.read import read_model, signature_of

    for path in (made.float_file, made.int8_file):
        signature = signature_of(read_model(path))
        assert [spec.name for spec in signature.outputs] == list(HEADS)
        assert [spec.name for spec in signature.inputs] == list(SHAPES)
    manifest = json.loads((made.out / "bundle/manifest.json").read_text())
    for side in ("signature", "float_signature"):
        layouts = {spec["name"]: spec["layout"] for spec in manifest[side]["outputs"]}
        # The converter leaves this one as it was in ONNX.
        assert layouts.pop("residual_relu") == "NCHW"
        assert set(layouts.values()) == {"NHWC", "other"}


def test_case_21_the_given_file_is_untouched(made: Run, folder: Path) -> None:
    _graph(folder / "again.onnx")
    assert (folder / "many.onnx").read_bytes() == (folder / "again.onnx").read_bytes()


def test_case_22_the_converter_cannot_reach_the_network() -> None:
    code = (
        "import socket, sys, edgefuse.tflite.convert_worker as worker\n"
        "sys.modules['onnx2tf'] = None\n"
        "try:\n    worker.load()\n"
        "except ImportError: pass\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9))\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "no network" in done.stdout, done.stderr[-500:]


def test_case_25_no_padding_constant_ruins_a_range(made: Run) -> None:
    from edgefuse.tflite.inspect import check_int8
    from edgefuse.tflite.read import read_model

    model = read_model(made.int8_file)
    assert check_int8(model, (), read_model(made.float_file)) == []
    padding = [op for op in model.operators if op.code == "PADV2"]
    assert padding
    for operator in padding:
        before, result = (model.tensors[i] for i in (operator.inputs[0], operator.outputs[0]))
        constant = model.tensors[operator.inputs[2]]
        assert before.scales == result.scales == constant.scales
        assert int(model.constant(constant).item()) == -128


def test_case_28_relu_is_kept_or_its_range_is_the_same(made: Run) -> None:
    from edgefuse.tflite.inspect import clips_like
    from edgefuse.tflite.read import read_model

    float_model, int8_model = read_model(made.float_file), read_model(made.int8_file)
    wanted = [op for op in float_model.operators if op.activation == "RELU"]
    assert wanted
    kept = [
        op
        for op in int8_model.operators
        if op.activation == "RELU" or clips_like(int8_model.tensors[op.outputs[0]], "RELU")
    ]
    assert len(kept) >= len(wanted)
    assert all(row["ok"] for row in made.report["fusion"]["contract"])
