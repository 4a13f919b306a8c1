"""What of the int8 lowering needs no file: bounds of activations, landings of a trace."""

from __future__ import annotations

from edgefuse.artifact import Quantization
from edgefuse.cuda.lower.int8 import landings_of
from edgefuse.cuda.lower.integers import bounds


def test_activations_are_bounds_of_integers() -> None:
    assert bounds("NONE", Quantization(0.1, 5)) == (-128, 127)
    assert bounds("RELU", Quantization(0.1, -20)) == (-20, 127)
    assert bounds("RELU6", Quantization(0.1, -20)) == (-20, 40)
    assert bounds("RELU6", Quantization(6 / 255, -128)) == (-128, 127)
    assert bounds("RELU_N1_TO_1", Quantization(0.1, 0)) == (-10, 10)


def test_landings_of_a_trace() -> None:
    rows = [
        {"node": "a", "ends_in": ["PAD#3", "CONV_2D#4+RELU6"], "merged_into": ""},
        {"node": "b", "ends_in": ["CONV_2D#4+RELU6"], "merged_into": "a"},
        {"node": "c", "ends_in": [], "merged_into": ""},
    ]
    assert landings_of({"nodes": rows}) == {"a": (3, 4), "c": ()}
