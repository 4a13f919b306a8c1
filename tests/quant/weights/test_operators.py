"""Operators in torch beside LiteRT's float kernels: every option that a kernel knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tflite.tiny import Builder

from edgefuse.errors import StageError
from edgefuse.quant.weights.network import load_network
from edgefuse.quant.weights.operators import OPERATORS
from edgefuse.tflite.read import parse_model, read_model
from edgefuse.tflite.runtime import open_model

Array = np.ndarray[Any, Any]
X = (1, 5, 6, 4)
SAME, VALID = 0, 1


class Case(NamedTuple):
    """One operator: operands in order, an activation by its shape, a constant by its value."""

    code: str
    operands: tuple[tuple[int, ...] | Array, ...]
    kind: str = ""
    options: Mapping[str, Any] = {}
    activation: str = "NONE"
    outputs: int = 1
    positive: bool = False
    shape: tuple[int, ...] = (1,)
    version: int = 0


def ints(*values: Any) -> Array:
    return np.array(values, np.int32)


def normal(*shape: int) -> Array:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def conv(
    size: int = 5, kernel: tuple[int, int] = (3, 3), depthwise: bool = False, channels: int = 6,
    read: int = 4, bias: bool = True, activation: str = "NONE", **options: Any,
) -> Case:  # fmt: skip
    options = {"strideH": 1, "strideW": 1, **options}
    weight = normal(1, *kernel, channels) if depthwise else normal(channels, *kernel, read)
    operands = ((1, size, size + 1, 4), weight, *((normal(channels),) if bias else ()))
    if depthwise:
        options["depthMultiplier"] = channels // 4
    kind = "DepthwiseConv2D" if depthwise else "Conv2D"
    code = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    return Case(code, operands, kind, options, activation)


def transposed(
    out: tuple[int, int], padding: int, stride: int = 2, kernel: int = 3, bias: bool = True,
    activation: str = "NONE",
) -> Case:  # fmt: skip
    operands = (ints(1, *out, 3), normal(3, kernel, kernel, 4), (1, 4, 5, 4))
    options = {"padding": padding, "strideH": stride, "strideW": stride}
    more = (normal(3),) if bias else ()
    return Case("TRANSPOSE_CONV", (*operands, *more), "TransposeConv", options, activation)


def pool(code: str, padding: int, size: int, stride: int, activation: str = "NONE") -> Case:
    options = {
        "padding": padding, "filterHeight": size, "filterWidth": size + 1,
        "strideH": stride, "strideW": stride,
    }  # fmt: skip
    return Case(code, (X,), "Pool2D", options, activation)


def resize(code: str, height: int, width: int, **options: bool) -> Case:
    kind = "ResizeBilinear" if code == "RESIZE_BILINEAR" else "ResizeNearestNeighbor"
    return Case(code, (X, ints(height, width)), kind, options)


def sliced(begin: Array, end: Array, stride: Array, **masks: int) -> Case:
    return Case("STRIDED_SLICE", (X, begin, end, stride), "StridedSlice", masks)


def reduced(code: str, axes: Array, keep: bool) -> Case:
    return Case(code, (X, axes), "Reducer", {"keepDims": keep})


CASES = [
    conv(padding=SAME),
    conv(padding=VALID),
    conv(6, padding=SAME, strideH=2, strideW=2),
    conv(5, padding=SAME, strideH=2, strideW=2),
    conv(7, padding=VALID, strideH=3, strideW=2),
    conv(6, (2, 4), padding=SAME),
    conv(9, padding=SAME, dilationHFactor=2, dilationWFactor=3),
    conv(9, padding=VALID, dilationHFactor=2, dilationWFactor=2),
    conv(7, padding=SAME, activation="RELU6"),
    conv(4, (1, 1), padding=SAME, strideH=2, strideW=2, activation="RELU_N1_TO_1"),
    conv(5, padding=SAME, read=2, activation="RELU"),
    conv(6, depthwise=True, channels=4, padding=SAME, strideH=2, strideW=2),
    conv(5, depthwise=True, channels=8, padding=SAME),
    conv(7, depthwise=True, channels=12, padding=VALID, strideH=2, strideW=2, activation="RELU"),
    conv(9, depthwise=True, channels=4, padding=SAME, dilationHFactor=2, dilationWFactor=2),
    transposed((8, 10), SAME),
    transposed((7, 9), SAME, bias=False),
    transposed((9, 11), VALID),
    transposed((10, 12), VALID, stride=2, kernel=4),
    transposed((8, 10), SAME, stride=2, kernel=2, activation="RELU"),
    transposed((4, 5), SAME, stride=1),
    transposed((12, 15), SAME, stride=3, kernel=2),
    transposed((10, 13), VALID, stride=3, kernel=1),
    Case("FULLY_CONNECTED", ((2, 7), normal(5, 7), normal(5)), "FullyConnected", {}, "RELU"),
    Case("FULLY_CONNECTED", ((1, 3, 2, 7), normal(5, 7)), "FullyConnected"),
    Case(
        "FULLY_CONNECTED",
        ((1, 3, 2, 7), normal(5, 7), normal(5)),
        "FullyConnected",
        {"keepNumDims": True},
    ),
    Case("FULLY_CONNECTED", ((1, 2, 3, 4), normal(5, 24), normal(5)), "FullyConnected"),
    *(
        Case(
            "BATCH_MATMUL",
            ((1, 2, *((4, 3) if x else (3, 4))), (1, 2, *((5, 4) if y else (4, 5)))),
            "BatchMatMul",
            {"adjX": x, "adjY": y},
        )
        for x in (False, True)
        for y in (False, True)
    ),
    Case("BATCH_MATMUL", ((2, 3, 4), (1, 4, 5)), "BatchMatMul"),
    *(
        pool(code, padding, size, stride)
        for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D")
        for padding in (SAME, VALID)
        for size, stride in ((2, 2), (3, 2), (3, 1))
    ),
    pool("AVERAGE_POOL_2D", SAME, 3, 2, "RELU"),
    *(
        resize(code, height, width, **options)
        for code in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
        for height, width in ((10, 12), (8, 9), (3, 4), (1, 1))
        for options in ({}, {"alignCorners": True}, {"halfPixelCenters": True})
    ),
    sliced(ints(0, 1, 0, 0), ints(1, 4, 6, 4), ints(1, 1, 2, 1)),
    sliced(ints(0, -4, -3, 1), ints(1, -1, 6, -1), ints(1, 2, 1, 1)),
    sliced(ints(9, 1, 9, 1), ints(0, 0, 2, 0), ints(1, 1, 1, 2), beginMask=5, endMask=11),
    sliced(ints(0, -1, 2, 0), ints(1, 0, 3, 4), ints(1, 1, 1, 1), shrinkAxisMask=6),
    sliced(ints(0, 4, 5, 0), ints(1, 0, -6, 4), ints(1, -1, -2, 1)),
    sliced(ints(0, 9, 9, 9), ints(1, 0, 0, 0), ints(1, -2, -1, -1), beginMask=14, endMask=14),
    sliced(ints(0, 0, 0, 0), ints(99, 99, 99, 2), ints(1, 1, 1, 1)),
    Case("SLICE", (X, ints(0, 1, 2, 0), ints(1, 3, -1, 2)), shape=(1, 3, 4, 2)),
    Case("PAD", (X, ints([0, 0], [1, 2], [3, 0], [0, 1])), "Pad"),
    Case("PADV2", (X, ints([0, 0], [1, 2], [3, 0], [0, 1]), np.float32(-7.5)), "PadV2"),
    *(Case(code, (X, X), f"{code.title()}", {}, "RELU6") for code in ("ADD", "SUB", "MUL", "DIV")),
    Case("ADD", (X, normal(1, 1, 1, 4)), "Add", {}, "RELU"),
    Case("MUL", (X, (1, 1, 1, 4)), "Mul"),
    Case("SUB", (normal(4), X), "Sub"),
    Case("POW", (X, X), "Pow", positive=True),
    Case("MAXIMUM", (X, normal(4)), "MaximumMinimum"),
    Case("MINIMUM", (X, X), "MaximumMinimum"),
    Case("SQUARED_DIFFERENCE", (X, X), "SquaredDifference"),
    Case("PRELU", (X, normal(1, 1, 4))),
    Case("PRELU", (X, normal(5, 6, 4))),
    Case("PRELU", (X, normal(1, 1, 1))),
    *(Case(c, (X,)) for c in ("ABS", "NEG", "EXP", "ELU", "SQUARE", "HARD_SWISH", "LOGISTIC")),
    *(Case(c, (X,)) for c in ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "TANH")),
    *(Case(c, (X,), positive=True) for c in ("LOG", "SQRT", "RSQRT")),
    Case("LEAKY_RELU", (X,), "LeakyRelu", {"alpha": 0.3}),
    Case("GELU", (X,), "Gelu", {"approximate": True}),
    Case("GELU", (X,), "Gelu", {"approximate": False}),
    Case("SOFTMAX", (X,), "Softmax", {"beta": 1.0}),
    Case("SOFTMAX", ((3, 7),), "Softmax", {"beta": 0.4}),
    Case("CONCATENATION", (X, (1, 5, 6, 3)), "Concatenation", {"axis": 3}),
    Case("CONCATENATION", (X, normal(1, 2, 6, 4)), "Concatenation", {"axis": -3}),
    Case("PACK", (X, X), "Pack", {"axis": 1, "valuesCount": 2}),
    Case("UNPACK", (X,), "Unpack", {"axis": 3, "num": 4}, outputs=4),
    Case("RESHAPE", (X, ints(1, 15, 8)), "Reshape"),
    Case("RESHAPE", (X, ints(1, -1)), "Reshape"),
    Case("RESHAPE", (X, ints(-1, 4)), "Reshape"),
    Case("RESHAPE", (X,), "Reshape", {"newShape": [1, 120]}),
    Case("TRANSPOSE", (X, ints(0, 3, 1, 2)), "Transpose"),
    Case("SQUEEZE", ((1, 5, 1, 4),), "Squeeze", {"squeezeDims": [2]}),
    Case("SQUEEZE", ((1, 5, 1, 4),), "Squeeze", {"squeezeDims": [-2]}),
    Case("SQUEEZE", ((1, 5, 1, 4),), "Squeeze", {"squeezeDims": []}),
    Case("EXPAND_DIMS", (X, ints(2)), "ExpandDims"),
    Case("EXPAND_DIMS", (X, ints(-1)), "ExpandDims"),
    Case("BROADCAST_TO", ((1, 1, 6, 4), ints(1, 5, 6, 4)), "BroadcastTo", version=2),
    Case("TILE", (X, ints(1, 2, 1, 3)), "Tile"),
    Case("GATHER", (X, ints([3, 0], [1, 1])), "Gather", {"axis": 2}),
    Case("GATHER", (X, ints(2, 0)), "Gather", {"axis": -1}),
    Case("SPLIT", (ints(3), X), "Split", {"numSplits": 2}, outputs=2),
    Case("SPLIT_V", (X, ints(1, 3), ints(3)), "SplitV", {"numSplits": 2}, outputs=2),
    Case("LOG_SOFTMAX", (X,), "LogSoftmax"),
    Case("DEPTH_TO_SPACE", ((1, 3, 5, 8),), "DepthToSpace", {"blockSize": 2}),
    Case("SPACE_TO_DEPTH", ((1, 4, 6, 3),), "SpaceToDepth", {"blockSize": 2}),
    Case("SPLIT", (ints(-2), X), "Split", {"numSplits": 3}, outputs=3),
    *(
        reduced(code, axes, keep)
        for code in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN")
        for axes, keep in ((ints(1, 2), False), (ints(-1), True), (np.int32(3), False))
    ),
]


def built(case: Case) -> tuple[bytes, dict[str, tuple[int, ...]]]:
    b, inputs, shapes = Builder(), {}, {}
    held = []
    for place, operand in enumerate(case.operands):
        if isinstance(operand, tuple):
            shapes[f"x{place}"] = operand
            inputs[f"x{place}"] = b.tensor(f"x{place}", operand)
            held.append(inputs[f"x{place}"])
        else:
            held.append(b.tensor(f"c{place}", value=operand))
    outputs = {f"y{k}": b.tensor(f"y{k}", case.shape) for k in range(case.outputs)}
    options = (f"{case.kind}Options", case.options) if case.kind else None
    b.op(case.code, held, list(outputs.values()), case.activation, options=options)
    if case.version:
        b.model.operatorCodes[0].version = case.version
    return b.finish(inputs, outputs), shapes


def said(case: Case) -> str:
    shapes = [str(o if isinstance(o, tuple) else list(o.shape)) for o in case.operands]
    told = [f"{k}={v}" for k, v in case.options.items() if v]
    return re.sub(r"[ \[\]']", "", "-".join([case.code, *shapes, *told, case.activation]))


@pytest.mark.parametrize("case", CASES, ids=said)
def test_an_operator_gives_what_the_kernel_gives(case: Case, tmp_path: Path) -> None:
    data, shapes = built(case)
    path = tmp_path / "one.tflite"
    path.write_bytes(data)
    random = np.random.default_rng(3)
    feed = {n: (2 * random.normal(size=s)).astype(np.float32) for n, s in shapes.items()}
    if case.positive:
        feed = {name: np.abs(value) + 0.1 for name, value in feed.items()}
    network = load_network(read_model(path))
    found = network.run(network.feeds(feed))
    wanted = open_model(path, kernels="builtin").run(feed)
    for name, index in network.model.signature_outputs:
        held = found[index].numpy()
        assert held.shape == wanted[name].shape
        np.testing.assert_allclose(held, wanted[name], 1e-5, 1e-5 * np.abs(wanted[name]).max())


def test_every_operator_is_tried() -> None:
    assert {case.code for case in CASES} == set(OPERATORS)


def test_an_unknown_operator_is_refused_by_name() -> None:
    b = Builder()
    x, y = b.tensor("x", X), b.tensor("y", X)
    b.op("L2_NORMALIZATION", (x,), (y,), options=("L2NormOptions", {}))
    with pytest.raises(StageError, match="L2_NORMALIZATION") as caught:
        load_network(parse_model(b.finish({"x": x}, {"y": y})))
    assert "quantize.rounding: nearest" in caught.value.hint


def test_an_unknown_custom_operator_is_refused_by_its_own_name() -> None:
    b = Builder()
    x, y = b.tensor("x", X), b.tensor("y", X)
    b.op("CUSTOM", (x,), (y,), custom="FlexErf")
    with pytest.raises(StageError, match="FlexErf"):
        load_network(parse_model(b.finish({"x": x}, {"y": y})))


@pytest.mark.parametrize(
    "case",
    [
        sliced(ints(0, 0), ints(0, 0), ints(1, 1), ellipsisMask=1),
        sliced(ints(0, 0, 0, 0), ints(1, 5, 6, 4), ints(1, 1, 1, 1), newAxisMask=1),
        Case("GATHER", (X, ints([0, 1])), "Gather", {"axis": 1, "batchDims": 1}),
    ],
    ids=["ellipsis", "new axis", "batched gather"],
)
def test_an_option_that_is_unknown_is_refused(case: Case) -> None:
    with pytest.raises(StageError, match=case.code) as caught:
        load_network(parse_model(built(case)[0]))
    assert "quantize.rounding: nearest" in caught.value.hint


def _folded(code: str, shape: tuple[int, ...], operand: Array, kind: str) -> bytes:
    """x [1, 4, 6] -> an operator -> RELU."""
    b = Builder()
    x, m, y = b.tensor("x", (1, 4, 6)), b.tensor("m", shape), b.tensor("y", shape)
    b.op(code, (x, b.tensor("c", value=operand)), (m,), options=(kind, {}))
    b.op("RELU", (m,), (y,))
    return b.finish({"x": x}, {"y": y})


@pytest.mark.parametrize(
    ("code", "shape", "operand", "batches"),
    [
        ("RESHAPE", (1, 24), ints(1, 24), True),
        ("RESHAPE", (1, 24), ints(1, -1), True),
        ("RESHAPE", (4, 6), ints(4, 6), True),
        ("TRANSPOSE", (4, 1, 6), ints(1, 0, 2), False),
        ("MEAN", (4, 6), ints(0), False),
    ],
)
def test_samples_go_together_only_where_they_are_not_mixed(
    code: str, shape: tuple[int, ...], operand: Array, batches: bool
) -> None:
    kind = "ReducerOptions" if code == "MEAN" else f"{code.title()}Options"
    network = load_network(parse_model(_folded(code, shape, operand, kind)))
    random = np.random.default_rng(0)
    feeds = [{"x": random.normal(size=(1, 4, 6)).astype(np.float32)} for _ in range(3)]
    together = {"x": np.concatenate([feed["x"] for feed in feeds])}
    ((_, output),) = network.model.signature_outputs
    held = network.run(network.feeds(together))[output]
    each = torch.cat([network.run(network.feeds(feed))[output] for feed in feeds])
    assert (held.shape == each.shape and torch.equal(held, each)) == batches
    assert network.batches == batches
