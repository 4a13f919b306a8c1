"""Small float .tflite networks with weights, written by hand, and their quantised twins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tflite.tiny import Builder

from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import choose
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.read import read_model

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]


class Net(Builder):
    """A builder that draws its weights: layers one after the other, by the name of their output."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.random = np.random.default_rng(seed)

    def weight(self, name: str, shape: Sequence[int], spread: float | Array = 1.0) -> int:
        fan = float(np.prod(shape[1:]))
        value = self.random.normal(size=shape) * spread * np.sqrt(2 / fan)
        return self.tensor(name, value=value.astype(np.float32))

    def bias(self, name: str, count: int) -> int:
        return self.tensor(name, value=self.random.normal(0, 0.2, count).astype(np.float32))

    def conv(
        self, name: str, x: int, shape: tuple[int, ...], kernel: int = 1, stride: int = 1,
        activation: str = "RELU", bias: bool = True, read: int = 0, spread: float | Array = 1.0,
    ) -> int:  # fmt: skip
        read = read or self.channels(x)
        y = self.tensor(name, shape)
        operands = [x, self.weight(f"{name}/w", (shape[-1], kernel, kernel, read), spread)]
        operands += [self.bias(f"{name}/b", shape[-1])] if bias else []
        kind = ("Conv2DOptions", {"strideW": stride, "strideH": stride})
        self.op("CONV_2D", operands, (y,), activation, options=kind)
        return y

    def depthwise(
        self, name: str, x: int, shape: tuple[int, ...], kernel: int = 3, stride: int = 1,
        activation: str = "RELU",
    ) -> int:  # fmt: skip
        y = self.tensor(name, shape)
        fan = np.sqrt(shape[-1] / 1.0)
        operands = (
            x,
            self.weight(f"{name}/w", (1, kernel, kernel, shape[-1]), fan),
            self.bias(f"{name}/b", shape[-1]),
        )
        options = {
            "strideW": stride,
            "strideH": stride,
            "depthMultiplier": shape[-1] // self.channels(x),
        }
        self.op(
            "DEPTHWISE_CONV_2D", operands, (y,), activation,
            options=("DepthwiseConv2DOptions", options),
        )  # fmt: skip
        return y

    def dense(
        self, name: str, x: int, outputs: int, activation: str = "NONE", bias: bool = True
    ) -> int:
        y = self.tensor(name, (1, outputs))
        operands = [x, self.weight(f"{name}/w", (outputs, self.channels(x)))]
        operands += [self.bias(f"{name}/b", outputs)] if bias else [-1]
        self.op("FULLY_CONNECTED", operands, (y,), activation)
        return y

    def simple(
        self, code: str, name: str, operands: Sequence[int], shape: tuple[int, ...],
        activation: str = "NONE", options: tuple[str, Mapping[str, Any]] | None = None,
    ) -> int:  # fmt: skip
        y = self.tensor(name, shape)
        self.op(code, operands, (y,), activation, options=options)
        return y

    def mean(self, name: str, x: int, keep: bool = False) -> int:
        channels = self.channels(x)
        axes = self.tensor(f"{name}/axes", value=np.array([1, 2], np.int32))
        shape = (1, 1, 1, channels) if keep else (1, channels)
        return self.simple(
            "MEAN", name, (x, axes), shape, options=("ReducerOptions", {"keepDims": keep})
        )

    def channels(self, index: int) -> int:
        return int(self.graph.tensors[index].shape[-1])


def classifier(seed: int = 0, *, bias: bool = True, size: int = 12) -> bytes:
    """input [1, size, size, 3] -> conv, depthwise, conv, add, mean, fully connected -> [1, 10]."""
    net, half = Net(seed), size // 2
    x = net.tensor("input", (1, size, size, 3))
    stem = net.conv("stem", x, (1, half, half, 8), kernel=3, stride=2, bias=bias)
    deep = net.depthwise("deep", stem, (1, half, half, 8), activation="RELU6")
    wide = net.conv("wide", deep, (1, half, half, 8), activation="NONE", bias=bias)
    joined = net.simple("ADD", "joined", (stem, wide), (1, half, half, 8), "RELU")
    last = net.conv("last", joined, (1, half, half, 16), kernel=1, bias=bias)
    y = net.dense("scores", net.mean("pooled", last), 10, bias=bias)
    return net.finish({"x": x}, {"y": y})


def feeds(
    data: bytes | Path, count: int, seed: int, draw: Callable[..., Array] | None = None
) -> list[Feed]:
    """Smooth random samples by signature name: neighbouring values go together, as in pictures."""
    from edgefuse.tflite.read import parse_model

    model = read_model(data) if isinstance(data, Path) else parse_model(data)
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        row = {}
        for name, index in model.signature_inputs:
            shape = model.tensors[index].shape
            value = random.normal(size=shape) if draw is None else draw(random, shape)
            if value.ndim == 4 and draw is None:
                for axis in (1, 2):
                    value = value + np.roll(value, 1, axis) + np.roll(value, 2, axis)
                value = value / 3 + 0.3 * random.uniform(-1, 1, (1, 1, 1, shape[-1]))
            row[name] = value.astype(np.float32)
        rows.append(row)
    return rows


def twin(source: Path, destination: Path, samples: Sequence[Feed], **options: Any) -> Path:
    """The quantised file, ranges by all of the values."""
    model = read_model(source)
    whole = {model.tensors[i].name for i in (*model.inputs, *model.outputs)}
    ranges = choose(calibrate(source, samples), "minmax", 0.0, whole)
    quantize_file(source, destination, ranges, **options)
    return destination
