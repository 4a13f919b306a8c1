"""One int8 layer with weights: the second moments of its inputs, its rounding, its new constants.

Rows of inputs x are what one output position reads: for a dense or pointwise convolution and a
fully connected layer [N, K] with one covariance [K, K]; for a depthwise convolution one covariance
of the kernel's K = h * w places a channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.quant.weights.gptq import round_channels, round_rows

if TYPE_CHECKING:
    from torch import Tensor

    from edgefuse.quant.weights.network import Step
    from edgefuse.quant.weights.simulation import Simulation

#: How far a weight may be rounded from its nearest integer.
MOST_STEPS = 4
_CODES = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
# Of a bias; int16 activations go with int64, of which the kernels use 48 bits.
_LARGEST = {"int32": 2**31 - 1, "int64": 2**47 - 1}


@dataclass(frozen=True)
class Moments:
    """Mean [..., K] and centred covariance [..., K, K] of a layer's inputs."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True)
class Layer:
    """A layer whose weights and bias are constants of the int8 file.

    Attributes:
        input, weight, bias: tensor indices of the float file; bias -1 when there is none.
    """

    simulation: Simulation
    step: Step
    input: int
    weight: int
    bias: int

    @property
    def _depthwise(self) -> bool:
        return self.step.operator.code == "DEPTHWISE_CONV_2D"

    def _rows(self, values: Tensor) -> Tensor:
        """Weights, or anything of their shape, as [outputs, K]."""
        if self._depthwise:
            return values.permute(3, 0, 1, 2).reshape(values.shape[3], -1)
        return values.reshape(values.shape[0], -1)

    def _shape(self, rows: Tensor) -> Tensor:
        """The reverse of :meth:`_rows`."""
        like = self.simulation.network.constants[self.weight]
        if self._depthwise:
            return rows.reshape(like.shape[3], 1, *like.shape[1:3]).permute(1, 2, 3, 0)
        return rows.reshape(like.shape)

    def _weights(self) -> Tensor:
        return self._rows(self.simulation.network.constants[self.weight])

    def _scales(self) -> Tensor:
        """[outputs]; one scale for all is repeated."""
        import torch

        held = torch.tensor(self.simulation.twins[self.weight].scales)
        return held.expand(self._weights().shape[0]) if held.numel() == 1 else held

    def nearest(self) -> Tensor:
        """[outputs, K] integers, each the nearest to its weight."""
        import torch

        return torch.clamp(torch.round(self._weights() / self._scales()[:, None]), -127, 127)

    def rounded(self, moments: Moments, damping: float) -> Tensor:
        """[outputs, K] integers by GPTQ; where that is no better on the moments, the nearest.

        None is farther than MOST_STEPS from the nearest: what few samples do not see would let a
        weight go anywhere.
        """
        import torch

        weights, scales = self._weights(), self._scales()
        rule = round_channels if self._depthwise else round_rows
        found = rule(weights, self._hessian(moments), scales, damping).float()
        plain = self.nearest()
        found = torch.clamp(found, plain - MOST_STEPS, plain + MOST_STEPS).clamp(-127, 127)
        worse = self._error(found, moments) > self._error(plain, moments)
        return torch.where(worse[:, None], plain, found)

    def _error(self, integers: Tensor, moments: Moments) -> Tensor:
        """[outputs]: E[((W - s q) x)^2], about its mean where there is a bias."""
        import torch

        off = (self._weights() - integers * self._scales()[:, None]).double()
        form = "ok,okl,ol->o" if self._depthwise else "ok,kl,ol->o"
        return torch.einsum(form, off, self._hessian(moments), off)

    def _hessian(self, moments: Moments) -> Tensor:
        """What an error of the weights costs: its mean nothing where a bias takes it back."""
        if self.bias >= 0:
            return moments.covariance
        mean = moments.mean
        return moments.covariance + mean[..., :, None] * mean[..., None, :]

    def moments(self, inputs: Iterable[Tensor], rows: int) -> Moments:
        """Of the layer's inputs, batch by batch; ``rows`` of each sample at most, evenly spread."""
        unit = self._unit()
        shift: Tensor | None = None
        total: Tensor | None = None
        square: Tensor | None = None
        count = 0
        for values in inputs:
            part = self._read(values, rows) / unit
            # About a mean already, or float32 would lose the spread of inputs that vary little.
            shift = part.mean(-2, keepdim=True) if shift is None else shift
            part = part - shift
            count += part.shape[-2]
            summed = part.sum(-2).double()
            product = (part.transpose(-1, -2) @ part).double()
            total = summed if total is None else total + summed
            square = product if square is None else square + product
        assert shift is not None and total is not None and square is not None
        mean = total / count
        covariance = square / count - mean[..., :, None] * mean[..., None, :]
        return Moments((mean + shift.squeeze(-2).double()) * unit, covariance * unit**2)

    def _unit(self) -> float:
        """The power of two next to a step of the inputs: in it no square passes float32."""
        return 2.0 ** round(math.log2(self.simulation.grids[self.input].scale))

    def _read(self, values: Tensor, most: int) -> Tensor:
        """Rows [N, K], or [outputs, N, K] of a depthwise layer, at most ``most`` a sample."""
        import torch

        from edgefuse.quant.weights.operators import convolution_input

        weight = self.simulation.network.constants[self.weight]
        if self.step.operator.code == "FULLY_CONNECTED":
            rows = values.reshape(-1, weight.shape[1])
            return rows[torch.from_numpy(_spread(len(rows), most * values.shape[0]))]
        options = self.step.options
        height, width = (int(n) for n in weight.shape[1:3])
        padded = convolution_input(options, values, (height, width))
        samples, channels, above, across = padded.shape
        down = _starts(above, height, options.strideH, options.dilationHFactor)
        right = _starts(across, width, options.strideW, options.dilationWFactor)
        taken = _spread(down * right, most)
        first = taken // right * options.strideH * across + taken % right * options.strideW
        inside = np.add.outer(
            np.arange(height) * options.dilationHFactor * across,
            np.arange(width) * options.dilationWFactor,
        )
        places = torch.from_numpy(np.add.outer(first, inside.reshape(-1)).reshape(-1))
        # channels_last: rows of channels lie together.
        flat = padded.permute(0, 2, 3, 1).reshape(samples, above * across, channels)
        found = flat[:, places].reshape(-1, height * width, channels)
        if not self._depthwise:
            return found.reshape(-1, height * width * channels)
        return found.permute(2, 0, 1).repeat_interleave(weight.shape[3] // channels, 0)

    def replace(self, integers: Tensor, moments: Moments) -> dict[int, np.ndarray[Any, Any]]:
        """Put new weights, and the bias that keeps the mean, into the simulation.

        Returns:
            The same as constants of the int8 file, by its tensor index.
        """
        import torch

        simulation, scales = self.simulation, self._scales()
        twin = simulation.twins[self.weight]
        written = {twin.index: self._shape(integers).contiguous().to(torch.int8).numpy()}
        real = integers * scales[:, None]
        simulation.constants[self.weight] = self._shape(real).contiguous()
        if self.bias >= 0:
            off = (self._weights() - real).double()
            form = "ok,ok->o" if self._depthwise else "ok,k->o"
            moved = torch.einsum(form, off, moments.mean)
            bias = simulation.twins[self.bias]
            steps = torch.tensor(bias.scales, dtype=torch.float64)
            exact = simulation.network.constants[self.bias].double() + moved
            largest = _LARGEST[bias.dtype]
            held = torch.clamp(torch.round(exact / steps), -largest, largest)
            simulation.constants[self.bias] = (held * steps).float()
            kind = {"int32": torch.int32, "int64": torch.int64}[bias.dtype]
            written[bias.index] = held.to(kind).numpy()
        return written


def layer_of(simulation: Simulation, step: Step) -> Layer | None:
    """The layer that an operator is; None for others, and where something of it is not int8."""
    operator = step.operator
    if operator.code not in _CODES:
        return None
    data, weight, bias = (*operator.inputs, -1)[:3]
    readers = sum(weight in other.operator.inputs for other in simulation.network.steps)
    twin = simulation.twins.get(weight)
    known = data in simulation.grids and (bias < 0 or bias in simulation.twins)
    if twin is None or twin.dtype != "int8" or readers != 1 or not known:
        return None
    if any(_shared(simulation, index) for index in (weight, bias) if index >= 0):
        return None
    grouped = operator.code == "CONV_2D" and _grouped(simulation, data, weight)
    return None if grouped else Layer(simulation, step, data, weight, bias)


def _shared(simulation: Simulation, index: int) -> bool:
    """Whether the bytes of a constant of the int8 file are another's too."""
    buffer = simulation.twins[index].buffer
    return sum(t.buffer == buffer for t in simulation.int8_model.tensors) > 1


def _grouped(simulation: Simulation, data: int, weight: int) -> bool:
    model = simulation.network.model
    return model.tensors[data].shape[3] != model.tensors[weight].shape[3]


def _starts(extent: int, kernel: int, stride: int, dilation: int) -> int:
    """How many places a kernel has along an axis."""
    return (extent - (kernel - 1) * dilation - 1) // stride + 1


def _spread(count: int, most: int) -> np.ndarray[Any, Any]:
    """At most ``most`` of ``count`` places, at a stride that is odd."""
    stride = -(-count // most)
    stride += stride > 1 and stride % 2 == 0
    return np.arange(stride // 2, count, stride)
