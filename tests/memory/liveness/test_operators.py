"""Files that no runtime runs are refused by the operator at fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tflite.tiny import Builder

from edgefuse.errors import StageError
from edgefuse.memory.arenas.litert import predicted_arena
from edgefuse.memory.arenas.tflite_micro import predicted_head
from edgefuse.memory.shrink.multiply_adds import multiply_adds
from edgefuse.memory.shrink.order import best_order
from edgefuse.tflite.read import TfliteModel, parse_model


def _one(code: str, inputs: Sequence[int], rank: int = 4) -> TfliteModel:
    """One operator over x (0); 2 is a constant of rank 1."""
    b = Builder()
    shape = (1, 4, 4, 2)[:rank]
    x, y = b.tensor("x", shape), b.tensor("y", shape)
    b.tensor("k", value=np.ones(4, np.float32))
    b.op(code, inputs, (y,))
    return parse_model(b.finish({"x": x}, {"y": y}))


@pytest.mark.parametrize(
    ("code", "inputs", "rank", "message"),
    [
        ("CONV_2D", (0,), 4, "CONV_2D#0 has no input 1"),
        ("CONV_2D", (0, -1), 4, "CONV_2D#0 has no input 1"),
        ("CONV_2D", (0, 2), 4, r"input 1 of shape \[4\], not of rank 4"),
        ("DEPTHWISE_CONV_2D", (0, 2), 2, "input 0 of shape"),
        ("TRANSPOSE_CONV", (0, 0), 4, "no input 2"),
        ("FULLY_CONNECTED", (0, 2), 4, "not of rank 2"),
        ("MEAN", (0,), 4, "MEAN#0 has no input 1"),
        ("RESHAPE", (-1,), 4, "RESHAPE#0 has no input 0"),
        ("ADD", (0, 1), 4, "ADD#0 reads 'y', which nothing before it makes"),
        ("RELU", (1,), 4, "RELU#0 reads 'y', which nothing before it makes"),
    ],
)
def test_refused(code: str, inputs: Sequence[int], rank: int, message: str) -> None:
    model = _one(code, inputs, rank)
    with pytest.raises(StageError, match=message) as caught:
        predicted_head(model)
    assert caught.value.hint
    with pytest.raises(StageError, match=message):
        predicted_arena(model)
    with pytest.raises(StageError, match=message):
        best_order(model, "litert")


def test_an_operator_without_inputs_is_none_of_these() -> None:
    model = _one("RELU", ())
    assert predicted_head(model).arena_bytes == 256
    assert multiply_adds(model) == 0 and best_order(model, "litert") == (0,)


def test_a_transposed_convolution_of_unsigned_integers() -> None:
    b = Builder()
    x, y = (b.tensor(n, (1, 4, 4, 2), "uint8", scales=[0.1]) for n in "xy")
    size = b.tensor("size", value=np.array([1, 4, 4, 2], np.int32))
    kernel = b.tensor("k", value=np.ones((2, 1, 1, 2), np.uint8), scales=[0.1])
    b.op("TRANSPOSE_CONV", (size, kernel, x), (y,))
    head = predicted_head(parse_model(b.finish({"x": x}, {"y": y})))
    assert head.arena_bytes == 32 + 32 + 4 * 32
