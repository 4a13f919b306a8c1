"""TFLite operators in torch: what the float kernels compute, on tensors as TFLite lays them out.

One function an operator, registered by its code. A function takes the operator's options (the
schema's table, or None), its operands (None where an optional one is absent) and gives the result
before the fused activation; a tuple where there are several. Convolutions take NHWC tensors: seen
as NCHW they are ``channels_last`` in memory, and nothing is copied. Padding is TFLite's: SAME puts
the odd row or column on the far side.

Source: the TFLite schema and the LiteRT kernels' documented behaviour. An operator that is not here
is refused by :mod:`edgefuse.quant.weights.network`, by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Function = Callable[[Any, Sequence[Any]], Any]
OPERATORS: dict[str, Function] = {}

_SAME = 0


def _operator(*codes: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for code in codes:
            OPERATORS[code] = function
        return function

    return register


def activated(x: Tensor, kind: str) -> Tensor:
    """The fused activation, by the schema's name.

    Raises:
        KeyError: none of TFLite's.
    """
    return _ACTIVATIONS[kind](x)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "NONE": lambda x: x,
    "RELU": torch.relu,
    "RELU6": lambda x: torch.clamp(x, 0.0, 6.0),
    "RELU_N1_TO_1": lambda x: torch.clamp(x, -1.0, 1.0),
    "TANH": torch.tanh,
}


def unknown_option(code: str, options: Any) -> str:
    """What of an operator's options is not computed here; empty when all is."""
    if code == "STRIDED_SLICE" and (options.ellipsisMask or options.newAxisMask):
        return "an ellipsis or a new axis"
    if code == "GATHER" and options.batchDims:
        return "batch_dims"
    return ""


def _first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _padded(
    x: Tensor, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int], kind: int,
    value: float = 0.0,
) -> Tensor:  # fmt: skip
    """NCHW with SAME padding added; unchanged for VALID."""
    if kind != _SAME:
        return x
    sides: list[int] = []
    for axis in (1, 0):
        extent = int(x.shape[2 + axis])
        reach = (size[axis] - 1) * dilation[axis] + 1
        total = max(0, (math.ceil(extent / stride[axis]) - 1) * stride[axis] + reach - extent)
        sides += [total // 2, total - total // 2]
    return functional.pad(x, sides, value=value) if any(sides) else x


def _window(options: Any) -> tuple[tuple[int, int], tuple[int, int], int]:
    size = (options.filterHeight, options.filterWidth)
    return size, (options.strideH, options.strideW), options.padding


def convolution_input(options: Any, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """The padded NCHW input that a (depthwise) convolution's kernel ``[h, w]`` slides over."""
    stride = (options.strideH, options.strideW)
    dilation = (options.dilationHFactor, options.dilationWFactor)
    return _padded(_first(x), kernel, stride, dilation, options.padding)


@_operator("CONV_2D")
def _conv_2d(options: Any, operands: Sequence[Any]) -> Tensor:
    x, weight, bias = (*operands, None)[:3]
    padded = convolution_input(options, x, weight.shape[1:3])
    groups = padded.shape[1] // weight.shape[3]
    stride = (options.strideH, options.strideW)
    dilation = (options.dilationHFactor, options.dilationWFactor)
    return _last(functional.conv2d(padded, _first(weight), bias, stride, 0, dilation, groups))


@_operator("DEPTHWISE_CONV_2D")
def _depthwise_conv_2d(options: Any, operands: Sequence[Any]) -> Tensor:
    x, weight, bias = (*operands, None)[:3]
    padded = convolution_input(options, x, weight.shape[1:3])
    stride = (options.strideH, options.strideW)
    dilation = (options.dilationHFactor, options.dilationWFactor)
    kernel = weight.permute(3, 0, 1, 2)
    return _last(functional.conv2d(padded, kernel, bias, stride, 0, dilation, padded.shape[1]))


@_operator("TRANSPOSE_CONV")
def _transpose_conv(options: Any, operands: Sequence[Any]) -> Tensor:
    shape, weight, x, bias = (*operands, None)[:4]
    stride = (options.strideH, options.strideW)
    full = functional.conv_transpose2d(_first(x), weight.permute(3, 0, 1, 2), bias, stride)
    height, width = int(shape[1]), int(shape[2])
    begin = [0, 0]
    if options.padding == _SAME:
        for axis, wanted in enumerate((height, width)):
            total = (int(x.shape[1 + axis]) - 1) * stride[axis] + int(weight.shape[1 + axis])
            begin[axis] = max(0, total - wanted) // 2
    missing = [max(0, b + n - int(s)) for b, n, s in zip(begin, (height, width), full.shape[2:])]
    if any(missing):
        at = 0.0 if bias is None else bias.reshape(1, -1, 1, 1)
        full = functional.pad(full - at, [0, missing[1], 0, missing[0]]) + at
    return _last(full[:, :, begin[0] : begin[0] + height, begin[1] : begin[1] + width])


@_operator("FULLY_CONNECTED")
def _fully_connected(options: Any, operands: Sequence[Any]) -> Tensor:
    x, weight, bias = (*operands, None)[:3]
    flat = x if options.keepNumDims else x.reshape(-1, weight.shape[1])
    return functional.linear(flat, weight, bias)


@_operator("BATCH_MATMUL")
def _batch_matmul(options: Any, operands: Sequence[Any]) -> Tensor:
    a, b = operands
    return (a.transpose(-1, -2) if options.adjX else a) @ (
        b.transpose(-1, -2) if options.adjY else b
    )


@_operator("AVERAGE_POOL_2D")
def _average_pool_2d(options: Any, operands: Sequence[Any]) -> Tensor:
    size, stride, kind = _window(options)
    x = _first(operands[0])
    total = functional.avg_pool2d(_padded(x, size, stride, (1, 1), kind), size, stride)
    if kind != _SAME:
        return _last(total)
    ones = torch.ones_like(x[:1, :1])
    return _last(
        total / functional.avg_pool2d(_padded(ones, size, stride, (1, 1), kind), size, stride)
    )


@_operator("MAX_POOL_2D")
def _max_pool_2d(options: Any, operands: Sequence[Any]) -> Tensor:
    size, stride, kind = _window(options)
    padded = _padded(_first(operands[0]), size, stride, (1, 1), kind, -math.inf)
    return _last(functional.max_pool2d(padded, size, stride))


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda _, operands: function(operands[0], operands[1])


def _unary(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda _, operands: function(operands[0])


OPERATORS |= {
    "ADD": _binary(torch.add),
    "SUB": _binary(torch.sub),
    "MUL": _binary(torch.mul),
    "DIV": _binary(torch.div),
    "POW": _binary(torch.pow),
    "MAXIMUM": _binary(torch.maximum),
    "MINIMUM": _binary(torch.minimum),
    "SQUARED_DIFFERENCE": _binary(lambda a, b: (a - b) ** 2),
    "PRELU": _binary(lambda x, slope: torch.where(x >= 0, x, x * slope)),
    "ABS": _unary(torch.abs),
    "NEG": _unary(torch.neg),
    "EXP": _unary(torch.exp),
    "LOG": _unary(torch.log),
    "SQRT": _unary(torch.sqrt),
    "RSQRT": _unary(torch.rsqrt),
    "SQUARE": _unary(torch.square),
    "RELU": _unary(torch.relu),
    "RELU6": _unary(_ACTIVATIONS["RELU6"]),
    "RELU_N1_TO_1": _unary(_ACTIVATIONS["RELU_N1_TO_1"]),
    "RELU_0_TO_1": _unary(lambda x: torch.clamp(x, 0.0, 1.0)),
    "ELU": _unary(functional.elu),
    "HARD_SWISH": _unary(functional.hardswish),
    "LOGISTIC": _unary(torch.sigmoid),
    "TANH": _unary(torch.tanh),
    "LEAKY_RELU": lambda o, xs: functional.leaky_relu(xs[0], o.alpha),
    "GELU": lambda o, xs: functional.gelu(xs[0], approximate="tanh" if o.approximate else "none"),
    "SOFTMAX": lambda o, xs: torch.softmax(xs[0] * o.beta, -1),
    "LOG_SOFTMAX": _unary(lambda x: torch.log_softmax(x, -1)),
    "CONCATENATION": lambda o, xs: torch.cat(list(xs), o.axis),
    "PACK": lambda o, xs: torch.stack(list(xs), o.axis),
    "UNPACK": lambda o, xs: torch.unbind(xs[0], o.axis),
    "RESHAPE": lambda o, xs: _reshaped(xs[0], o.newShape),
    "TRANSPOSE": lambda _, xs: xs[0].permute([int(n) for n in xs[1]]),
    "SQUEEZE": lambda o, xs: _squeezed(xs[0], o.squeezeDims),
    "EXPAND_DIMS": lambda _, xs: xs[0].unsqueeze(int(xs[1].reshape(-1)[0])),
    "BROADCAST_TO": lambda _, xs: torch.broadcast_to(xs[0], [int(n) for n in xs[1]]),
    "TILE": lambda _, xs: xs[0].repeat([int(n) for n in xs[1]]),
    "GATHER": lambda o, xs: _gathered(xs[0], xs[1], o.axis),
    "SPLIT": lambda o, xs: torch.chunk(xs[1], o.numSplits, int(xs[0].reshape(-1)[0])),
    "SPLIT_V": lambda _, xs: torch.split(xs[0], [int(n) for n in xs[1]], int(xs[2].reshape(-1)[0])),
    "MEAN": lambda o, xs: xs[0].mean(_axes(xs), keepdim=o.keepDims),
    "SUM": lambda o, xs: xs[0].sum(_axes(xs), keepdim=o.keepDims),
    "REDUCE_MAX": lambda o, xs: xs[0].amax(_axes(xs), keepdim=o.keepDims),
    "REDUCE_MIN": lambda o, xs: xs[0].amin(_axes(xs), keepdim=o.keepDims),
}


def _axes(operands: Sequence[Any]) -> list[int]:
    return [int(n) for n in operands[1].reshape(-1)]


def _reshaped(x: Tensor, shape: Any) -> Tensor:
    """To the file's static shape; the first axis takes what a larger batch brings."""
    wanted = [int(n) for n in shape]
    rest = math.prod(wanted[1:])
    if wanted and rest and x.numel() != wanted[0] * rest:
        wanted[0] = x.numel() // rest
    return x.reshape(wanted)


def _squeezed(x: Tensor, axes: Any) -> Tensor:
    if axes is None or not len(axes):
        axes = [axis for axis in range(x.ndim) if x.shape[axis] == 1]
    return x.squeeze(tuple(int(n) for n in axes))


def _gathered(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    taken = torch.index_select(x, axis, indices.reshape(-1).long())
    axis %= x.ndim
    return taken.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


@_operator("DEPTH_TO_SPACE")
def _depth_to_space(options: Any, operands: Sequence[Any]) -> Tensor:
    x, block = operands[0], options.blockSize
    samples, height, width, channels = x.shape
    parts = x.reshape(samples, height, width, block, block, channels // block**2)
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(samples, height * block, width * block, -1)


@_operator("SPACE_TO_DEPTH")
def _space_to_depth(options: Any, operands: Sequence[Any]) -> Tensor:
    x, block = operands[0], options.blockSize
    samples, height, width, channels = x.shape
    parts = x.reshape(samples, height // block, block, width // block, block, channels)
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(samples, height // block, width // block, -1)


@_operator("PAD", "PADV2")
def _pad(_: Any, operands: Sequence[Any]) -> Tensor:
    x, sides = operands[0], operands[1]
    value = float(operands[2]) if len(operands) > 2 else 0.0
    flat = [int(n) for pair in reversed(sides.tolist()) for n in pair]
    return functional.pad(x, flat, value=value)


@_operator("SLICE")
def _slice(_: Any, operands: Sequence[Any]) -> Tensor:
    x, begins, sizes = operands
    for axis, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist())):
        x = x.narrow(axis, begin, x.shape[axis] - begin if size < 0 else size)
    return x


@_operator("STRIDED_SLICE")
def _strided_slice(options: Any, operands: Sequence[Any]) -> Tensor:
    x, begins, ends, strides = operands
    drop = []
    for axis, (begin, end, stride) in enumerate(
        zip(begins.tolist(), ends.tolist(), strides.tolist())
    ):
        places = range(int(x.shape[axis]))
        if options.shrinkAxisMask >> axis & 1:
            taken = places[begin : begin + 1 or None]
            drop.append(axis)
        else:
            first = None if options.beginMask >> axis & 1 else begin
            taken = places[first : None if options.endMask >> axis & 1 else end : stride]
        if taken.step == 1:
            x = x.narrow(axis, taken.start, len(taken))
        else:
            x = x.index_select(axis, torch.tensor(taken, dtype=torch.long))
    return x.squeeze(tuple(drop)) if drop else x


@_operator("RESIZE_BILINEAR")
def _resize_bilinear(options: Any, operands: Sequence[Any]) -> Tensor:
    x = operands[0]
    for axis, wanted in enumerate((int(n) for n in operands[1].reshape(-1)), 1):
        extent = int(x.shape[axis])
        at = _source(extent, wanted, options).clamp(0, extent - 1)
        low = at.floor().long()
        high = (low + 1).clamp(max=extent - 1)
        share = (at - low).reshape([-1] + [1] * (x.ndim - 1 - axis))
        x = x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share
    return x


@_operator("RESIZE_NEAREST_NEIGHBOR")
def _resize_nearest(options: Any, operands: Sequence[Any]) -> Tensor:
    x = operands[0]
    for axis, wanted in enumerate((int(n) for n in operands[1].reshape(-1)), 1):
        extent = int(x.shape[axis])
        at = _source(extent, wanted, options) + (0.5 if options.halfPixelCenters else 0.0)
        at = torch.floor(at + 0.5) if options.alignCorners else torch.floor(at)
        x = x.index_select(axis, at.long().clamp(0, extent - 1))
    return x


def _source(extent: int, wanted: int, options: Any) -> Tensor:
    """Where each of ``wanted`` results lies in ``extent`` values."""
    places = torch.arange(wanted, dtype=torch.float32)
    if options.alignCorners and wanted > 1:
        return places * ((extent - 1) / (wanted - 1))
    if options.halfPixelCenters:
        return (places + 0.5) * (extent / wanted) - 0.5
    return places * (extent / wanted)
