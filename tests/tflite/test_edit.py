"""Constants overwritten in place, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.errors import StageError
from edgefuse.tflite.edit import Edit, with_constants
from edgefuse.tflite.read import Tensor, TfliteModel, parse_model, read_model

from .conftest import Pair
from .tiny import Builder


def _model(pair: Pair) -> TfliteModel:
    return read_model(pair.int8_path)


def _constant(model: TfliteModel, code: str, place: int) -> Tensor:
    operator = next(op for op in model.operators if op.code == code)
    return model.tensors[operator.inputs[place]]


def test_a_weight_and_a_bias_change_and_nothing_else(pair: Pair) -> None:
    model = _model(pair)
    weight, bias = (_constant(model, "DEPTHWISE_CONV_2D", place) for place in (1, 2))
    values = {
        weight.index: -model.constant(weight),
        bias.index: model.constant(bias) + np.int32(7),
    }
    data = with_constants(model.data, values)
    assert len(data) == len(model.data)
    changed = parse_model(data)
    for tensor in model.tensors:
        if tensor.is_constant:
            expected = values.get(tensor.index, model.constant(tensor))
            assert np.array_equal(changed.constant(changed.tensors[tensor.index]), expected)
    assert changed.tensors == model.tensors and changed.operators == model.operators
    assert with_constants(data, {i: model.constant(model.tensors[i]) for i in values}) == model.data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.astype(np.int16), "is int8 of shape .* given int16"),
        (lambda v: v[..., :-1], "given int8 of shape"),
    ],
)
def test_another_dtype_or_shape_is_refused(pair: Pair, change, message: str) -> None:  # type: ignore[no-untyped-def]
    model = _model(pair)
    weight = _constant(model, "CONV_2D", 1)
    with pytest.raises(StageError, match=message):
        with_constants(model.data, {weight.index: change(model.constant(weight))})


def test_an_activation_and_a_tensor_that_is_not_there_are_refused(pair: Pair) -> None:
    model = _model(pair)
    with pytest.raises(StageError, match="'image' is not a constant"):
        with_constants(model.data, {model.inputs[0]: np.zeros(1, np.int8)})
    with pytest.raises(StageError, match="no tensor 999"):
        with_constants(model.data, {999: np.zeros(1, np.int8)})


def test_tensors_that_share_bytes_change_together_or_not_at_all() -> None:
    b = Builder()
    x, y, z = (b.tensor(name, (1, 3)) for name in "xyz")
    one, two = b.tensor("one", value=np.ones(3, np.float32)), b.tensor("two", (3,))
    b.graph.tensors[two].buffer = b.graph.tensors[one].buffer
    b.op("ADD", (x, one), (y,))
    b.op("ADD", (y, two), (z,))
    data = b.finish({"x": x}, {"z": z})
    value = np.arange(3, dtype=np.float32)
    with pytest.raises(StageError, match="'one' shares its bytes with 'two'"):
        with_constants(data, {one: value})
    with pytest.raises(StageError, match="shares its bytes"):
        with_constants(data, {one: value, two: value + 1})
    changed = parse_model(with_constants(data, {one: value, two: value}))
    assert np.array_equal(changed.constant(changed.tensors[two]), value)


def test_packing_again_changes_nothing_that_is_read(pair: Pair) -> None:
    model = _model(pair)
    again = parse_model(Edit(model.data).packed())
    assert again.operators == model.operators
    assert [(t.name, t.shape, t.dtype, t.scales) for t in again.tensors] == [
        (t.name, t.shape, t.dtype, t.scales) for t in model.tensors
    ]
