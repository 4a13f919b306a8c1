"""Every documented rule of the Edge TPU, with a model that breaks it and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.devices.edgetpu_rules import RULES, broken_rules
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import TfliteModel, parse_model, read_model

INT8 = {"dtype": "int8", "scales": [0.1]}


def one(
    code: str,
    shape: Sequence[int],
    result: Sequence[int],
    *constants: Any,
    options: tuple[str, Mapping[str, Any]] | None = None,
    activation: str = "NONE",
    first: bool = True,
    held: Mapping[str, Any] = INT8,
) -> TfliteModel:
    """A model of one operator: an activation, then constants (or the other way round)."""
    b = sys.modules["tiny_for_devices"].Builder()
    x, y = b.tensor("x", shape, **held), b.tensor("y", result, **held)
    others = []
    for value in constants:
        array = np.asarray(value)
        scales = {"scales": [0.1]} if array.dtype == np.int8 else {}
        others.append(b.tensor("constant", value=array, **scales))
    b.op(code, (x, *others) if first else (*others, x), (y,), activation, options=options)
    return parse_model(b.finish({"x": x}, {"y": y}))


def int32(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def int8(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.int8)


def with_computed_weight() -> TfliteModel:
    b = sys.modules["tiny_for_devices"].Builder()
    x, y = b.tensor("x", (1, 8), **INT8), b.tensor("y", (1, 4), **INT8)
    weight = b.tensor("w", (4, 8), **INT8)
    b.op("FULLY_CONNECTED", (x, weight, -1), (y,))
    return parse_model(b.finish({"x": x, "w": weight}, {"y": y}))


def with_open_size() -> TfliteModel:
    model = one("RELU", (1, 4, 4, 8), (1, 4, 4, 8))
    edit = Edit(model.data)
    edit.graph.tensors[0].shapeSignature = [-1, 4, 4, 8]
    return parse_model(edit.packed())


def pool(activation: str) -> TfliteModel:
    options = ("Pool2DOptions", {"strideW": 1, "strideH": 1, "filterWidth": 1, "filterHeight": 1})
    shape = (1, 4, 4, 8)
    return one("MAX_POOL_2D", shape, shape, options=options, activation=activation)


def conv(*dilation: int) -> TfliteModel:
    options = {"strideW": 1, "strideH": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    options |= dict(zip(("dilationHFactor", "dilationWFactor"), dilation))
    return one(
        *("CONV_2D", (1, 4, 4, 2), (1, 4, 4, 3), int8(3, 1, 1, 2), int32(0, 0, 0)),
        options=("Conv2DOptions", options),
    )


def dense(rows: int = 1, **options: int) -> TfliteModel:
    return one(
        *("FULLY_CONNECTED", (rows, 8), (rows, 4), int8(4, 8), int32(0, 0, 0, 0)),
        options=("FullyConnectedOptions", options),
    )


def reduced(code: str, shape: Sequence[int], axes: Sequence[int]) -> TfliteModel:
    result = [1 if k in axes else size for k, size in enumerate(shape)]
    return one(code, shape, result, int32(*axes), options=("ReducerOptions", {"keepDims": True}))


def sliced(stride: int = 1, **masks: int) -> TfliteModel:
    result = (1, -(-8 // stride))
    options = ("StridedSliceOptions", masks)
    return one(
        *("STRIDED_SLICE", (1, 8), result, int32(0, 0), int32(1, 8), int32(1, stride)),
        options=options,
    )


def padded(*widths: int) -> TfliteModel:
    """Its result is given a batch of 1, so that padding alone is wrong."""
    shape = (1, 4, 4, 2)
    return one("PAD", shape, shape, int32(widths, (0, 0), (0, 0), (0, 0)))


def joined(*constants: Any) -> TfliteModel:
    result = (1, 4, 4, 2 + sum(c.shape[-1] for c in constants))
    options = ("ConcatenationOptions", {"axis": 3})
    return one("CONCATENATION", (1, 4, 4, 2), result, *constants, options=options)


def packed(axis: int) -> TfliteModel:
    result = [4, 2]
    result.insert(axis, 1)
    options = ("PackOptions", {"axis": axis, "valuesCount": 1})
    return one("PACK", (4, 2), result, options=options)


def split(axis: int) -> TfliteModel:
    options = ("SplitOptions", {"numSplits": 1})
    shape = (1, 4, 4, 2)
    return one("SPLIT", shape, shape, np.int32(axis).reshape(()), options=options, first=False)


def like(code: str, *shape: int, **more: Any) -> TfliteModel:
    return one(code, shape, shape, **more)


BREAKING = {
    "operator_is_supported": lambda: like("FLOOR", 1, 8),
    "tensors_have_8_bits": lambda: like("RELU", 1, 8, held={"dtype": "int16", "scales": [0.1]}),
    "sizes_are_constant": with_open_size,
    "parameters_are_constant": with_computed_weight,
    "three_innermost_axes": lambda: like("RELU", 2, 4, 4, 8),
    "no_fused_activation": lambda: pool("RELU"),
    "constant_part_is_zero_padding": lambda: joined(int8(1, 4, 4, 2)),
    "dilation_is_square": lambda: conv(2, 1),
    "weights_have_default_format": lambda: dense(weightsFormat=1),
    "output_is_one_dimensional": lambda: dense(rows=3),
    "batch_is_not_reduced": lambda: reduced("SUM", (1, 4, 4, 2), (0, 1)),
    "mean_over_channels_in_fours": lambda: reduced("MEAN", (1, 4, 4, 6), (3,)),
    "batch_is_not_packed": lambda: packed(0),
    "batch_is_not_padded": lambda: padded(1, 0),
    "slope_is_one_dimensional": lambda: one("PRELU", (1, 4, 4, 2), (1, 4, 4, 2), int8(1, 4, 2)),
    "resize_is_three_dimensional": lambda: like("RESIZE_BILINEAR", 4, 4, 2),
    "softmax_is_small": lambda: like("SOFTMAX", 1, 16_001),
    "batch_is_not_split": lambda: split(0),
    "squeeze_drops_leading_ones": lambda: one("SQUEEZE", (5, 1, 10), (5, 10)),
    "slice_has_plain_strides": lambda: sliced(2),
}
KEEPING = {
    "no_fused_activation": lambda: pool("NONE"),
    "constant_part_is_zero_padding": lambda: joined(0 * int8(1, 4, 4, 2)),
    "dilation_is_square": lambda: conv(2, 2),
    "weights_have_default_format": dense,
    "batch_is_not_reduced": lambda: reduced("SUM", (1, 4, 4, 2), (1, 2)),
    "mean_over_channels_in_fours": lambda: reduced("MEAN", (1, 4, 4, 8), (3,)),
    "batch_is_not_packed": lambda: packed(1),
    "batch_is_not_padded": lambda: padded(0, 0),
    "slope_is_one_dimensional": lambda: one("PRELU", (1, 4, 4, 2), (1, 4, 4, 2), int8(1, 1, 2)),
    "resize_is_three_dimensional": lambda: one(
        "RESIZE_BILINEAR", (1, 4, 4, 2), (1, 4, 8, 2), int32(4, 8)
    ),
    "softmax_is_small": lambda: like("SOFTMAX", 1, 16_000),
    "batch_is_not_split": lambda: split(3),
    "squeeze_drops_leading_ones": lambda: one("SQUEEZE", (1, 5, 10), (5, 10)),
    "slice_has_plain_strides": sliced,
}


def test_every_rule_is_tested() -> None:
    assert BREAKING.keys() == RULES.keys()
    assert all(rule.message.endswith(".") for rule in RULES.values())


@pytest.mark.parametrize("name", BREAKING)
def test_broken(name: str, files: tuple[Path, Path]) -> None:
    (broken,) = broken_rules(BREAKING[name]())
    assert broken.rule == name
    assert broken.message == RULES[name].message
    assert broken.place.endswith("#0")


@pytest.mark.parametrize("name", KEEPING)
def test_kept(name: str, files: tuple[Path, Path]) -> None:
    assert broken_rules(KEEPING[name]()) == []


@pytest.mark.parametrize("masks", [{"ellipsisMask": 1}, {"newAxisMask": 1}])
def test_masks_of_a_slice(masks: dict[str, int], files: tuple[Path, Path]) -> None:
    (broken,) = broken_rules(sliced(**masks))
    assert broken.rule == "slice_has_plain_strides"


def test_whole_models(files: tuple[Path, Path]) -> None:
    floats = broken_rules(read_model(files[0]))
    assert {one.rule for one in floats} == {"tensors_have_8_bits"}
    assert broken_rules(read_model(files[1])) == []
