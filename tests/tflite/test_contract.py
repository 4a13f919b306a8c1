from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edgefuse.tflite.contract import check_contract
from edgefuse.tflite.read import TfliteModel, parse_model, read_model

from .conftest import Pair
from .tiny import Weights, float_file, int8_file


@dataclass(frozen=True)
class Group:
    name: str
    ops: tuple[str, ...]
    module: str
    weight: np.ndarray | None
    activation: str
    residual: int = -1


def groups(held: Weights) -> list[Group]:
    """The tiny model's groups with the weights in ONNX's layouts."""

    def group(name: str, op: str, weight: np.ndarray, activation: str) -> Group:
        return Group(name, (op,), f"net.{name}", weight, activation)

    twin = held.twin.transpose(0, 3, 1, 2)
    return [
        group("stem", "Conv", held.stem.transpose(0, 3, 1, 2), "RELU6"),
        group("deep", "Conv", held.depthwise.transpose(3, 0, 1, 2), "RELU6"),
        group("twin_a", "Conv", twin, "RELU"),
        group("twin_b", "Conv", twin.copy(), "NONE"),
        group("head", "Gemm", held.head.T, "NONE"),
    ]


def models(pair: Pair) -> tuple[TfliteModel, TfliteModel]:
    return read_model(pair.float_path), read_model(pair.int8_path)


def altered(model: TfliteModel, operator: int, **changes: object) -> TfliteModel:
    operators = list(model.operators)
    operators[operator] = replace(operators[operator], **changes)  # type: ignore[arg-type]
    return replace(model, operators=tuple(operators))


def retyped(model: TfliteModel, tensor: int, **changes: object) -> TfliteModel:
    tensors = list(model.tensors)
    tensors[tensor] = replace(tensors[tensor], **changes)  # type: ignore[arg-type]
    return replace(model, tensors=tuple(tensors))


def test_every_group_is_one_operator(pair: Pair) -> None:
    rows = check_contract(*models(pair), groups(pair.held))
    assert [(r.group, r.int8_operator, r.int8_code, r.activation_found) for r in rows] == [
        ("stem", 0, "CONV_2D", "RELU6"),
        ("deep", 1, "DEPTHWISE_CONV_2D", "RELU6"),
        ("twin_a", 2, "CONV_2D", "RELU"),
        ("twin_b", 3, "CONV_2D", "NONE"),
        ("head", 6, "FULLY_CONNECTED", "NONE"),
    ]
    assert all(row.ok and not row.reason for row in rows)
    assert rows[0].module == "net.stem"


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w * np.float32(1.01),
        lambda w: w[::-1].copy(),
        lambda w: np.where(w == w.max(), np.nan, w),
        lambda w: w[:, :, :2],
    ],
    ids=["one percent", "swapped channels", "nan", "shape"],
)
def test_other_weights_are_not_found(pair: Pair, change: Callable[..., np.ndarray]) -> None:
    listed = groups(pair.held)
    listed[0] = replace(listed[0], weight=change(listed[0].weight))
    row, *rest = check_contract(*models(pair), listed)
    assert not row.ok and row.reason == "no operator of the float file holds these weights"
    assert all(other.ok for other in rest)


def test_dropped_activation(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    for place, wanted in ((0, "RELU6"), (2, "RELU")):
        output = int8_model.operators[place].outputs[0]
        dropped = altered(int8_model, place, activation="NONE")
        wide = retyped(dropped, output, scales=(0.1,), zero_points=(0,))
        row = check_contract(float_model, wide, groups(pair.held))[place]
        assert not row.ok
        assert row.reason == f"{wanted} was lost between the float and the int8 file"
        clipped = retyped(dropped, output, scales=(6 / 255,), zero_points=(-128,))
        row = check_contract(float_model, clipped, groups(pair.held))[place]
        assert row.ok and row.reason == f"{wanted} dropped: the output's range clips alike"


def test_activation_never_fused(pair: Pair) -> None:
    listed = groups(pair.held)
    listed[3] = replace(listed[3], activation="RELU_N1_TO_1")
    row = check_contract(*models(pair), listed)[3]
    assert not row.ok and row.reason == "RELU_N1_TO_1 is not fused into CONV_2D#3 (found NONE)"
    listed[3] = replace(listed[3], activation="HARD_SWISH")
    row = check_contract(*models(pair), listed)[3]
    assert row.ok and "cannot fuse HARD_SWISH" in row.reason
    listed[2] = replace(listed[2], activation="NONE")
    row = check_contract(*models(pair), listed)[2]
    assert row.ok and row.reason.startswith("the converter fused RELU")
    changed = altered(models(pair)[1], 3, activation="RELU")
    row = check_contract(models(pair)[0], changed, groups(pair.held))[3]
    assert not row.ok and row.reason == "RELU appeared in the int8 file only"


def test_int8_weights_of_another_model(pair: Pair, tmp_path: Path) -> None:
    held = replace(pair.held, stem=pair.held.stem * np.float32(1.01))
    held.stem[:, 0, 0, 0] += np.float32(0.1)
    (tmp_path / "f.tflite").write_bytes(float_file(held))
    other = parse_model(int8_file(tmp_path / "f.tflite"))
    row, *rest = check_contract(models(pair)[0], other, groups(pair.held))
    assert not row.ok and "steps off (limit 0.5)" in row.reason
    assert all(r.ok for r in rest)
    assert check_contract(models(pair)[0], other, groups(pair.held), 200.0)[0].ok


def test_another_operator_order_is_matched_by_value(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    shorter = replace(int8_model, operators=int8_model.operators[1:])
    rows = check_contract(float_model, shorter, groups(pair.held))
    assert not rows[0].ok and "no int8 operator holds the weights" in rows[0].reason
    assert [row.int8_operator for row in rows] == [-1, 1, 2, 3, 6]
    assert all(row.ok for row in rows[1:])


def test_types(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    stem, head = int8_model.operators[0], int8_model.operators[6]

    def reason(changed: TfliteModel, place: int) -> tuple[bool, str]:
        row = check_contract(float_model, changed, groups(pair.held))[place]
        return row.ok, row.reason

    bias = retyped(int8_model, stem.inputs[2], dtype="int64")
    assert reason(bias, 0) == (False, "bias 'bias0' is int64, not int32")
    activation = retyped(int8_model, stem.outputs[0], dtype="int16")
    assert reason(activation, 0) == (False, "activation 'map0' is int16, not int8")
    scales = int8_model.tensors[stem.inputs[1]].scales
    tensor = retyped(int8_model, stem.inputs[1], scales=(max(scales),), zero_points=(0,))
    ok, text = reason(tensor, 0)
    assert not ok and "per-tensor" in text
    scales = int8_model.tensors[head.inputs[1]].scales
    dense = retyped(int8_model, head.inputs[1], scales=scales[:1], zero_points=(0,))
    row = check_contract(float_model, dense, groups(pair.held), max_weight_steps=1000.0)[4]
    assert (row.ok, row.reason) == (True, "the weights are per-tensor, not per-channel")
    assert reason(float_model, 0)[0] is False


def residual(pair: Pair, activation: str, *ops: str) -> list[Group]:
    """The tiny model's groups, ``twin_b`` and the ADD behind it being one."""
    listed = groups(pair.held)
    listed[3] = replace(listed[3], ops=("Conv", "Add", *ops), activation=activation, residual=1)
    return listed


def test_a_residual_add_is_reported_with_its_convolution(pair: Pair) -> None:
    row = check_contract(*models(pair), residual(pair, "NONE"))[3]
    assert row.ok and not row.reason
    assert (row.float_operator, row.float_add, row.int8_operator, row.int8_add) == (3, 4, 3, 4)
    assert row.operator == "CONV_2D#3 + ADD#4"


def test_the_activation_of_a_residual_belongs_to_the_add(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    listed = residual(pair, "RELU", "Relu")
    float_model = altered(float_model, 4, activation="RELU")
    row = check_contract(float_model, altered(int8_model, 4, activation="RELU"), listed)[3]
    assert row.ok and not row.reason and row.activation_found == "RELU"

    wide = retyped(int8_model, int8_model.operators[4].outputs[0], scales=(0.1,), zero_points=(0,))
    row = check_contract(float_model, wide, listed)[3]
    assert not row.ok and row.activation_found == "NONE"
    assert row.reason == "RELU was lost between the float and the int8 file"

    row = check_contract(models(pair)[0], wide, listed)[3]
    assert row.reason == "RELU is not fused into ADD#4 (found NONE)"

    moved = altered(wide, 3, activation="RELU")
    row = check_contract(float_model, moved, listed)[3]
    assert not row.ok and row.reason.startswith("RELU appeared in the int8 file only")


def test_a_residual_without_its_add(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    row = check_contract(float_model, altered(int8_model, 4, code="SUB"), residual(pair, "NONE"))[3]
    assert not row.ok and row.int8_add == -1 and row.activation_found == ""
    assert "no ADD reads the result of CONV_2D#3 in the int8 file" in row.reason


def test_a_residual_add_in_other_types(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    output = int8_model.operators[4].outputs[0]
    row = check_contract(
        float_model, retyped(int8_model, output, dtype="int16"), residual(pair, "NONE")
    )[3]
    assert (row.ok, row.reason) == (False, "activation 'map4' is int16, not int8")


def test_an_activation_before_the_residual_belongs_to_the_convolution(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    listed = groups(pair.held)
    listed[3] = replace(listed[3], ops=("Conv", "Relu", "Add"), activation="RELU", residual=2)
    float_model = altered(float_model, 3, activation="RELU")
    row = check_contract(float_model, altered(int8_model, 3, activation="RELU"), listed)[3]
    assert row.ok and not row.reason and row.activation_found == "RELU"
    assert row.operator == "CONV_2D#3 + ADD#4"

    wide = retyped(int8_model, int8_model.operators[3].outputs[0], scales=(0.1,), zero_points=(0,))
    row = check_contract(float_model, wide, listed)[3]
    assert not row.ok and row.activation_found == "NONE"
    assert row.reason == "RELU was lost between the float and the int8 file"

    moved = altered(wide, 4, activation="RELU")
    row = check_contract(float_model, moved, listed)[3]
    assert not row.ok and "RELU appeared in the int8 file only" in row.reason

    listed[3] = replace(listed[3], ops=("Conv", "Sigmoid", "Add"), activation="SIGMOID")
    row = check_contract(*models(pair), listed)[3]
    assert row.ok and row.int8_add == -1
    assert row.reason == "TFLite cannot fuse SIGMOID: it is an operator of its own"


def test_the_add_of_a_spelt_out_activation_is_no_residual(pair: Pair) -> None:
    listed = groups(pair.held)
    listed[2] = replace(
        listed[2], ops=("Conv", "Add", "Clip", "Mul", "Mul"), activation="HARDSWISH"
    )
    row = check_contract(*models(pair), listed)[2]
    assert row.ok and row.int8_add == -1
    assert row.reason == "TFLite cannot fuse HARDSWISH: it is an operator of its own"


def test_a_bias_that_stayed_an_add_carries_the_activation(pair: Pair) -> None:
    float_model, int8_model = models(pair)
    listed = residual(pair, "RELU", "Relu")
    listed[3] = replace(listed[3], ops=("MatMul", "Add", "Relu"), residual=-1)

    def without_bias(model: TfliteModel, activation: str) -> TfliteModel:
        layer, add = model.operators[3], model.operators[4]
        constant = layer.inputs[1]
        bare = altered(model, 3, code="BATCH_MATMUL", inputs=layer.inputs[:2])
        return altered(bare, 4, inputs=(add.inputs[0], constant), activation=activation)

    assert int8_model.operators[4].inputs[0] == int8_model.operators[3].outputs[0]
    found = without_bias(float_model, "RELU"), without_bias(int8_model, "RELU")
    row = check_contract(*found, listed)[3]
    assert "the bias of BATCH_MATMUL#3 is ADD#4, an operator of its own" in row.reason
    assert row.activation_found == "RELU"
