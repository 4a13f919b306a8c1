"""The int8 file in torch, with gradients: what fine-tuning turns the weights of.

Forward, everything has the values that the int8 file will have (Jacob et al., 2018,
arXiv:1712.05877, section 3):

    activations  x' = s (clip(round(x / s) + z) - z),  s and z the int8 file's, never changed
    weights      w' = s round(w / s),  s = max|w| / 127, a channel or in all, of the moment
    biases       as they are

Backward, rounding is the identity, and a value outside its range has no gradient (straight-through
estimators). The weights' scales follow the weights, because the quantiser will take them so when it
writes the file. A step of a bias (input scale * weight scale) is so much finer than a step of the
output that rounding it would only cost time.

    w = w0 + u d,  the parameter is d, from 0

with u a channel's largest weight at the beginning; of a bias, half of the output's range. One
learning rate then suits all: the channels of a network with BatchNorm folded in differ by
thousands, and Adam's steps have the size of the learning rate whatever they are added to.

w0 is the float weight, moved as little as it takes to be rounded as the int8 file has it: what GPTQ
or bias correction gained is where training begins. Trained are weights and biases of convolutions
and fully connected layers, those of float layers as float. Left alone: all other constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from edgefuse.quant.weights.simulation import Simulation

#: Of the weights' axes, that of the outputs; the operand that is the bias.
_OUTPUT_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
_BIAS = {"TRANSPOSE_CONV": 3}
_MOST = 127
# Within half a step of its integer, with room for a scale that changes a little.
_INSIDE = 0.45
# A scale above what the weights ask for: the quantiser widened it, for a dead channel or the bias.
_WIDENED = 1.001


@dataclass(frozen=True)
class Parameter:
    """One constant under training.

    Attributes:
        start: its values at the beginning, w0.
        unit: u, shaped to broadcast over it.
        change: d, of the constant's shape, with gradient.
        axis: of the channels that have scales of their own; None for one scale.
        floor: least scale a channel; None for what stays float: biases, and weights of float
            layers.
    """

    start: Tensor
    unit: Tensor
    change: Tensor
    axis: int | None
    floor: Tensor | None

    def value(self) -> Tensor:
        """In float, as a file would hold it."""
        return self.start + self.unit * self.change

    def rounded(self) -> Tensor:
        """As the int8 file will have it."""
        import torch

        value = self.value()
        if self.floor is None:
            return value
        scale = torch.maximum(_peak(value.detach(), self.axis) / _MOST, self.floor)
        zero = torch.zeros(scale.shape, dtype=torch.int32)
        if self.axis is None:
            return torch.fake_quantize_per_tensor_affine(value, scale, zero, -_MOST, _MOST)
        return torch.fake_quantize_per_channel_affine(value, scale, zero, self.axis, -_MOST, _MOST)


@dataclass(frozen=True)
class Trainable:
    """An int8 file under training.

    Attributes:
        parameters: by the float file's tensor index.
        layers: how many layers they belong to.
    """

    simulation: Simulation
    parameters: Mapping[int, Parameter]
    layers: int

    def changes(self) -> Iterator[Tensor]:
        """What an optimiser turns."""
        return (parameter.change for parameter in self.parameters.values())

    def outputs(self, feed: Mapping[str, Any], judged: tuple[int, ...]) -> list[Tensor]:
        """The tensors ``judged`` for samples by signature name, on the int8 file's grids."""
        network = self.simulation.network
        trained = {index: p.rounded() for index, p in self.parameters.items()}
        given = {i: self.on_grid(i, x) for i, x in network.feeds(feed).items()}
        found = network.run(
            given,
            constants={**self.simulation.constants, **trained},
            on_value=self.on_grid,
            keep=frozenset(judged),
        )
        return [found[index] for index in judged]

    def values(self) -> dict[int, np.ndarray[Any, Any]]:
        """The float constants, by the float file's tensor index, in its types."""
        tensors = self.simulation.network.model.tensors
        return {
            index: parameter.value().detach().numpy().astype(tensors[index].dtype)
            for index, parameter in self.parameters.items()
        }

    def on_grid(self, index: int, x: Tensor) -> Tensor:
        """An activation as the int8 file has it, by the float file's tensor index."""
        import torch

        grid = self.simulation.grids.get(index)
        if grid is None:
            return x
        limits = grid.zero_point, grid.low, grid.high
        return torch.fake_quantize_per_tensor_affine(x, grid.scale, *limits)


def trainable(simulation: Simulation) -> Trainable:
    """Open the weights and biases of a simulated int8 file to training."""
    model = simulation.network.model
    parameters: dict[int, Parameter] = {}
    layers = 0
    for step in simulation.network.steps:
        operator = step.operator
        if operator.code not in _OUTPUT_AXES:
            continue
        place = _BIAS.get(operator.code, 2)
        weight = operator.inputs[1]
        bias = operator.inputs[place] if len(operator.inputs) > place else -1
        layers += weight in simulation.network.constants
        for index in (weight, bias):
            if index < 0 or index in parameters or not model.tensors[index].is_constant:
                continue
            if index == weight:
                parameters[index] = _weight(simulation, index, _OUTPUT_AXES[operator.code])
            else:
                parameters[index] = _bias(simulation, index, operator.outputs[0])
    return Trainable(simulation, parameters, layers)


def _weight(simulation: Simulation, index: int, axis: int) -> Parameter:
    import torch

    value = simulation.network.constants[index]
    unit = _positive(_broadcast(_peak(value, axis), value, axis))
    change = torch.nn.Parameter(torch.zeros_like(value))
    twin = simulation.twins.get(index)
    if twin is None or twin.dtype != "int8":
        return Parameter(value, unit, change, axis, None)
    held = torch.tensor(twin.scales)
    shared = None if held.numel() == 1 else axis
    held = held.reshape(()) if shared is None else held
    scale = _broadcast(held, value, shared)
    # Those that make the scale stay, and so does it.
    real, room = simulation.constants[index], _INSIDE * scale
    inside = torch.minimum(torch.maximum(value, real - room), real + room)
    start = torch.where(value.abs() > (_MOST - 0.5) * scale, value, inside)
    asked = _peak(value, shared) / _MOST
    floor = torch.where(held > _WIDENED * asked, held, torch.zeros_like(held))
    return Parameter(start.contiguous(), unit, change, shared, floor)


def _bias(simulation: Simulation, index: int, output: int) -> Parameter:
    import torch

    value = simulation.network.constants[index]
    grid = simulation.grids.get(output)
    if grid is not None:
        unit = torch.tensor(grid.scale * (grid.high - grid.low) / 2)
    else:
        unit = _positive(value.abs().max())
    start = simulation.constants.get(index, value)
    return Parameter(start, unit, torch.nn.Parameter(torch.zeros_like(value)), None, None)


def _peak(value: Tensor, axis: int | None) -> Tensor:
    """max|w|, one a place of ``axis``, or one in all."""
    if axis is None:
        return value.abs().max()
    return value.abs().amax([a for a in range(value.ndim) if a != axis])


def _broadcast(channels: Tensor, like: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        return channels.reshape(())
    shape = [1] * like.ndim
    shape[axis] = -1
    return channels.reshape(shape)


def _positive(unit: Tensor) -> Tensor:
    """A unit of 1 for what is 0 throughout."""
    import torch

    return torch.where(unit > 0, unit, torch.ones_like(unit))
