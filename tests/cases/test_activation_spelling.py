"""Activations spelt out as exporters do end as the fewest TFLite operators."""

from __future__ import annotations

from collections import Counter

import pytest

from .onnx_graph import OnnxGraph
from .pipeline import Run, Tflite, batches, inputs, operators, run, run_onnx, samples, write_recipe

SHAPES = {"x": (12,)}
HEADS = ("gelu", "gelu_tanh", "hard_swish", "silu", "hard_sigmoid")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("spelling")
    g = OnnxGraph()
    x = g.input("x", [1, 12])

    def scalar(number: float) -> str:
        return g.constant(number)

    # As torch's exporter writes GELU below operator set 20; TFLite knows another order only.
    a = g.dense(x, 12, 16)
    erf = g.add("Erf", g.add("Div", a, scalar(2.0**0.5)))
    half = g.add("Mul", scalar(0.5), g.add("Add", erf, scalar(1.0)))
    g.add("Mul", a, half, output="gelu")

    b = g.dense(x, 12, 16)
    cube = g.add("Mul", scalar(0.044715), g.add("Pow", b, scalar(3.0)))
    inner = g.add("Mul", scalar(0.7978845608028654), g.add("Add", b, cube))
    one = g.add("Add", g.add("Tanh", inner), scalar(1.0))
    g.add("Mul", b, g.add("Mul", scalar(0.5), one), output="gelu_tanh")

    # HardSwish came with operator set 14; this file is of set 13.
    c = g.dense(x, 12, 16)
    clip = g.add("Clip", g.add("Add", c, scalar(3.0)), scalar(0.0), scalar(6.0))
    g.add("Div", g.add("Mul", c, clip), scalar(6.0), output="hard_swish")

    d = g.dense(x, 12, 16)
    g.add("Mul", g.add("Sigmoid", d), d, output="silu")

    g.add("HardSigmoid", g.dense(x, 12, 16), output="hard_sigmoid", alpha=1 / 6, beta=0.5)
    g.output(*HEADS)
    g.save(folder / "spelling.onnx", opset=13)
    model = {"onnx": {"path": "spelling.onnx"}, "inputs": inputs(SHAPES)}
    data = samples(SHAPES, 8, seed=1)
    return run(write_recipe(folder, "spelling", model, data, data), until="convert")


def test_case_23_gelu_is_one_operator_in_every_spelling(converted: Run) -> None:
    counts = Counter(operators(converted.float_file))
    activations = {"GELU": 2, "HARD_SWISH": 1, "LOGISTIC": 1, "MUL": 2}
    assert counts == {"FULLY_CONNECTED": 5} | activations


def test_a_hard_sigmoid_is_a_clip_that_the_layer_takes_and_one_product(converted: Run) -> None:
    codes = operators(converted.float_file)
    assert "RELU_0_TO_1" not in codes and "ADD" not in codes


def test_the_numbers_are_those_of_the_given_file(converted: Run) -> None:
    feeds = batches(samples(SHAPES, 8, seed=2))
    reference = run_onnx(converted.out.parent / "spelling.onnx", feeds)
    answers = [Tflite(converted.float_file)(feed) for feed in feeds]
    for name in HEADS:
        for wanted, found in zip(reference, answers):
            assert abs(wanted[name] - found[name]).max() < 1e-5, name
