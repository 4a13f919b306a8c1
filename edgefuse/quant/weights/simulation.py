"""The int8 file in torch: the float network with every activation and constant on its int8 grid.

    x' = (clip(round(x / scale) + zero_point) - zero_point) * scale

Scales and zero points are those of the int8 file, read from it by tensor name, so that what is
found here holds there. Sums are float32 where the kernels' are integers: single results differ by
one step in a few of a thousand, the output's noise does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.quant.weights.network import Network, load_network

if TYPE_CHECKING:
    from torch import Tensor

    from edgefuse.tflite.read import Tensor as FileTensor
    from edgefuse.tflite.read import TfliteModel

_LIMITS = {"int8": (-128, 127), "int16": (-32768, 32767), "uint8": (0, 255)}


@dataclass(frozen=True)
class Grid:
    """The values that a quantised activation can take."""

    scale: float
    zero_point: int
    low: int
    high: int

    def quantize_(self, x: Tensor) -> Tensor:
        """The integers of ``x``, float32, in its own memory unless that is a strided view."""
        x = x if x.is_contiguous() else x.contiguous()
        return x.mul_(1 / self.scale).round_().add_(self.zero_point).clamp_(self.low, self.high)

    def dequantize(self, integers: Tensor) -> Tensor:
        """Their real values, float32, in new memory."""
        import torch

        real = integers.to(torch.float32, copy=True)
        return real.sub_(self.zero_point).mul_(self.scale)


@dataclass(frozen=True)
class Simulation:
    """An int8 file in torch, beside the float network it was made from.

    Attributes:
        network: the float file.
        int8_model: the int8 file.
        grids: of each quantised activation, by the float file's tensor index.
        twins: the int8 file's tensor of each quantised constant, by the float file's index.
        constants: the quantised constants' real values; replaced while rounding goes on.
    """

    network: Network
    int8_model: TfliteModel
    grids: Mapping[int, Grid]
    twins: Mapping[int, FileTensor]
    constants: dict[int, Tensor]


def shaped(values: Tensor, like: FileTensor) -> Tensor:
    """One value a channel, shaped to broadcast over the constant ``like``."""
    if values.numel() == 1:
        return values.reshape(())
    shape = [1] * len(like.shape)
    shape[like.quantized_dimension] = values.numel()
    return values.reshape(shape)


def simulate(float_model: TfliteModel, int8_model: TfliteModel) -> Simulation:
    """The int8 file in torch.

    Raises:
        StageError: an operator that torch does not have here.
    """
    import torch

    network = load_network(float_model)
    by_name = {tensor.name: tensor for tensor in int8_model.tensors}
    grids, twins, constants = {}, {}, {}
    for tensor in float_model.tensors:
        twin = by_name.get(tensor.name)
        if twin is not None and int8_model.tensors[tensor.index].name == tensor.name:
            # Names need not be unique; places are kept by the quantiser.
            twin = int8_model.tensors[tensor.index]
        if twin is None or not tensor.is_float:
            continue
        twin = _inside(int8_model, twin)
        if not twin.scales:
            continue
        if tensor.is_constant:
            value = torch.from_numpy(int8_model.constant(twin).astype("float32"))
            scale = shaped(torch.tensor(twin.scales), twin)
            zero = shaped(torch.tensor(twin.zero_points or (0,), dtype=torch.float32), twin)
            twins[tensor.index] = twin
            constants[tensor.index] = (value - zero) * scale
        elif twin.dtype in _LIMITS:
            grids[tensor.index] = Grid(
                twin.scales[0], (twin.zero_points or (0,))[0], *_LIMITS[twin.dtype]
            )
    return Simulation(network, int8_model, grids, twins, constants)


def _inside(model: TfliteModel, tensor: FileTensor) -> FileTensor:
    """The int8 tensor behind a float input's QUANTIZE or before a float output's DEQUANTIZE."""
    for operator in model.operators:
        read, written = operator.inputs[0], operator.outputs[0]
        if operator.code == "QUANTIZE" and read == tensor.index and read in model.inputs:
            return model.tensors[written]
        if operator.code == "DEQUANTIZE" and written == tensor.index and written in model.outputs:
            return model.tensors[read]
    return tensor
