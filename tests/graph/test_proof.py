import numpy as np
import onnx.parser

from edgefuse.graph.normalise import prepare
from edgefuse.graph.proof import judge, noise_of
from edgefuse.graph.snapshot import Snapshot

HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'
FEEDS = [{"x": np.linspace(0.1, 1.0, 8, dtype=np.float32)[None]}]


def snapshot(text: str) -> Snapshot:
    return Snapshot.of(prepare(onnx.parser.parse_model(HEADER + text)))


def steep(scale: float, shift: float = 0.0) -> Snapshot:
    return snapshot(
        f"""g (float[1,8] x) => (float[1,8] y) <float k = {{{scale}}}, float b = {{{shift}}}> {{
        a = Mul(x, k)
        c = Add(a, b)
        y = Sin(c) }}"""
    )


def test_noise_is_what_one_rounding_of_the_input_does() -> None:
    gentle, wild = steep(1.0), steep(10000.0)
    calm = noise_of(gentle, FEEDS, gentle.run(FEEDS))
    assert 1e-8 < calm < 1e-6
    assert noise_of(wild, FEEDS, wild.run(FEEDS)) > 100 * calm


def test_a_network_that_amplifies_roundings_is_not_held_against_a_pass() -> None:
    before, rounded = steep(10000.0), steep(10000.0, 0.0009)
    expected = before.run(FEEDS)
    noise = noise_of(before, FEEDS, expected)
    assert judge(before, rounded, expected, FEEDS, 1e-5, 0.0)[0] is not None
    assert judge(before, rounded, expected, FEEDS, 1e-5, noise)[0] is None
    assert judge(before, rounded, expected, FEEDS, 0.0, noise)[0] is not None, "structure only"
    wrong = judge(before, steep(10000.0, 0.1), expected, FEEDS, 1e-5, noise)[0]
    assert wrong is not None and wrong.kind == "numbers"


def test_values_that_both_graphs_have_keep_type_and_shape() -> None:
    one = snapshot("g (float[1,8] x) => (float[1,8] y) { a = Relu(x) y = Neg(a) }")
    other = snapshot(
        "g (float[1,8] x) => (float[1,8] y) { s = Relu(x) a = Shape(s) y = Reshape(s, a) }"
    )
    assert "'a' is int64[2], it was float[1, 8]" in one.difference_of_values(other)
    assert one.difference_of_values(one) == ""
    outputs = snapshot("g (float[1,8] x) => (float[1,8] z) { z = Relu(x) }")
    assert "outputs are ['z'], they were ['y']" in one.difference_of_values(outputs)
