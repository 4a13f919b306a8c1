"""Small int8 nets with strides, padding and a residual, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tflite.tiny import Builder

from edgefuse.tflite.read import parse_model
from edgefuse.tflite.runtime import open_model

Array = np.ndarray[Any, Any]


class Net:
    """A chain of operators over one picture; each method adds one and returns its tensor."""

    def __init__(self, size: tuple[int, int], channels: int = 3, *, integer: bool = True) -> None:
        self.b = Builder()
        self.random = np.random.default_rng(size[0] * 31 + size[1])
        self.integer = integer
        self.shapes: dict[int, tuple[int, int, int]] = {}
        self.image = self.made("image", (*size, channels))

    def made(self, name: str, shape: tuple[int, int, int], scale: float = 0.05) -> int:
        quantised: dict[str, Any] = {"dtype": "float32"}
        if self.integer:
            quantised = {"dtype": "int8", "scales": [scale], "zeros": [-7]}
        index = self.b.tensor(name, (1, *shape), **quantised)
        self.shapes[index] = shape
        return index

    def constant(self, shape: Sequence[int], axis: int) -> int:
        name = f"k{len(self.b.graph.tensors)}"
        if not self.integer:
            return self.b.tensor(name, value=self.random.standard_normal(shape).astype(np.float32))
        value = self.random.integers(-127, 128, shape, np.int8)
        usual = 2.5 / (73 * np.sqrt(value.size / shape[axis]))  # Of 73 is their deviation.
        scales = (usual * self.random.uniform(0.7, 1.4, shape[axis])).tolist()
        return self.b.tensor(name, value=value, scales=scales, axis=axis)

    def bias(self, weight: int, channels: int) -> int:
        name = f"b{len(self.b.graph.tensors)}"
        if not self.integer:
            return self.b.tensor(name, value=self.random.standard_normal(channels, np.float32))
        held = self.b.graph.tensors[weight].quantization.scale
        value = self.random.integers(-900, 900, channels, np.int32)
        return self.b.tensor(name, value=value, scales=[0.05 * s for s in held])

    def pad(self, source: int, rows: tuple[int, int], columns: tuple[int, int]) -> int:
        h, w, c = self.shapes[source]
        table = np.array([(0, 0), rows, columns, (0, 0)], np.int32)
        result = self.made(f"pad{source}", (h + sum(rows), w + sum(columns), c))
        paddings = self.b.tensor(f"p{result}", value=table)
        self.b.op("PAD", (source, paddings), (result,), options=("PadOptions", {}))
        return result

    def conv(
        self,
        source: int,
        channels: int = 0,
        kernel: int = 3,
        stride: int = 1,
        padding: str = "SAME",
        activation: str = "NONE",
        dilation: int = 1,
    ) -> int:
        """Depthwise without ``channels``."""
        h, w, c = self.shapes[source]
        reach = (kernel - 1) * dilation
        if padding == "VALID":
            h, w = h - reach, w - reach
        shape = (-(-h // stride), -(-w // stride), channels or c)
        result = self.made(f"map{source}_{len(self.b.graph.tensors)}", shape)
        settings: dict[str, Any] = {"strideW": stride, "strideH": stride}
        settings |= {"padding": int(padding == "VALID")}
        settings |= {"dilationWFactor": dilation, "dilationHFactor": dilation}
        if channels:
            weight = self.constant((channels, kernel, kernel, c), 0)
            options = ("Conv2DOptions", settings)
        else:
            weight = self.constant((1, kernel, kernel, c), 3)
            options = ("DepthwiseConv2DOptions", settings | {"depthMultiplier": 1})
        inputs = (source, weight, self.bias(weight, channels or c))
        code = "CONV_2D" if channels else "DEPTHWISE_CONV_2D"
        self.b.op(code, inputs, (result,), activation, options=options)
        return result

    def add(self, left: int, right: int) -> int:
        result = self.made(f"sum{left}_{right}", self.shapes[left])
        self.b.op("ADD", (left, right), (result,))
        return result

    def block(self, source: int, channels: int, stride: int = 1, *, padded: bool = True) -> int:
        """An inverted residual: expand, depthwise, project, and the sum where shapes agree."""
        wide = self.conv(source, 2 * self.shapes[source][2], 1, activation="RELU6")
        if stride == 2 and padded:
            wide = self.conv(self.pad(wide, (1, 1), (1, 1)), 0, 3, 2, "VALID", "RELU6")
        else:
            wide = self.conv(wide, 0, 3, stride, activation="RELU6")
        narrow = self.conv(wide, channels, 1)
        return self.add(source, narrow) if self.shapes[source] == self.shapes[narrow] else narrow

    def pooled(self, source: int) -> int:
        c = self.shapes[source][2]
        result = self.made(f"pooled{source}", (1, 1, c))
        axes = self.b.tensor("axes", value=np.array([1, 2], np.int32))
        self.b.op("MEAN", (source, axes), (result,), options=("ReducerOptions", {"keepDims": True}))
        return result

    def finish(self, *outputs: int) -> bytes:
        return self.b.finish(
            {"picture": self.image}, {f"out{k}": index for k, index in enumerate(outputs)}
        )


def mobile(size: tuple[int, int] = (16, 24), *, integer: bool = True) -> bytes:
    """A stem and four blocks, strides padded as PyTorch pads; a mean at the end."""
    net = Net(size, integer=integer)
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 8, 3, 2, "VALID", "RELU6")
    for channels, stride in ((8, 1), (12, 2), (12, 1), (16, 2)):
        x = net.block(x, channels, stride)
    return net.finish(net.pooled(x))


def pictures(data: bytes, count: int = 3) -> list[Array]:
    """Random inputs of the file's first input."""
    model = parse_model(data)
    tensor = model.tensors[model.inputs[0]]
    random = np.random.default_rng(5)
    if tensor.dtype == "int8":
        return [random.integers(-128, 128, tensor.shape, np.int8) for _ in range(count)]
    return [random.standard_normal(tensor.shape).astype(np.float32) for _ in range(count)]


def results(
    data: bytes, folder: Path, given: Sequence[Array], kernels: Any = "builtin"
) -> list[list[Array]]:
    """All outputs of each picture, by LiteRT."""
    path = folder / "model.tflite"
    path.write_bytes(data)
    model = open_model(path, kernels=kernels)
    name = model.source.signature_inputs[0][0]
    return [[value for _, value in sorted(model.run({name: picture}).items())] for picture in given]


def equal(left: Sequence[Sequence[Array]], right: Sequence[Sequence[Array]]) -> bool:
    """Bit by bit; also that the first results are no constants."""
    assert len({row[0].tobytes() for row in left}) == len(left)
    return all(
        np.array_equal(a, b) for rows in zip(left, right, strict=True) for a, b in zip(*rows)
    )
