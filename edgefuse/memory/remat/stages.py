"""Layers in a row as stages: a convolution, and what its input goes through before.

    [BatchNorm] [ReLU or ReLU6] convolution

A stage is what backward can take back with torch's own kernels from two tensors: the stage's
input, for BatchNorm, and what the convolution reads, for ReLU and the convolution.

Scope: convolutions with zeros around, BatchNorms of :mod:`~.norm`, ReLU and ReLU6, none of them
watched by hooks or twice in the row. Other layers are no part of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.memory.remat.norm import Normalise, norms

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Stage:
    """A convolution, and the layers that its input goes through.

    Attributes:
        norm: a BatchNorm, or None.
        most: where the activation ends: infinity for ReLU; None without one.
        conv: the convolution.
    """

    norm: Any
    most: float | None
    conv: Any

    @property
    def parameters(self) -> list[Tensor | None]:
        modules = [self.conv] if self.norm is None else [self.norm, self.conv]
        return [p for module in modules for p in (module.weight, module.bias)]

    def activate(self, x: Tensor) -> None:
        """Over its input."""
        import torch

        if self.most is not None:
            torch.clamp_(x, 0.0, self.most) if self.most < math.inf else torch.relu_(x)

    def convolve(self, z: Tensor) -> Tensor:
        import torch

        given = (z, self.conv.weight, self.conv.bias, *self._settings())
        found: Tensor = torch.ops.aten.convolution(*given)
        return found

    def of_weights(self, grad: Tensor, z: Tensor, asked: Sequence[bool]) -> list[Tensor | None]:
        """Gradients of the convolution's weight and bias."""
        return list(self._convolve_back(grad, z, [False, *asked])[1:]) if any(asked) else [None] * 2

    def of_input(self, grad: Tensor, z: Tensor, place: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient of what the activation reads.

        Args:
            grad: of the result.
            z: what the convolution reads.
            place: where the gradient of an activation's input is put, given that of its result.
        """
        import torch

        of_z: Tensor = self._convolve_back(grad, z, [True, False, False])[0]
        if self.most is None:
            return of_z
        # The operators that autograd runs, told where to put their results.
        back: Any
        given: tuple[float, ...]
        if self.most == math.inf:
            back, given = torch.ops.aten.threshold_backward.grad_input, (0,)
        else:
            back, given = torch.ops.aten.hardtanh_backward.grad_input, (0.0, self.most)
        found: Tensor = back(of_z, z, *given, grad_input=place(of_z))
        return found

    def _convolve_back(self, grad: Tensor, z: Tensor, asked: Sequence[bool]) -> Any:
        import torch

        bias = None if self.conv.bias is None else list(self.conv.bias.shape)
        given = (grad, z, self.conv.weight, bias, *self._settings(), list(asked))
        return torch.ops.aten.convolution_backward(*given)

    def _settings(self) -> tuple[Any, ...]:
        """As torch's operators take them after the weight and the bias."""
        c = self.conv
        return c.stride, c.padding, c.dilation, False, [0] * len(c.stride), c.groups


def stages_of(layers: Sequence[nn.Module]) -> tuple[Stage, ...] | None:
    """Layers in a row as stages; None where something is left over."""
    if len({id(layer) for layer in layers}) < len(layers) or any(map(watched, layers)):
        return None
    if any("forward" in vars(layer) and not _normalises(layer) for layer in layers):
        return None
    known = {id(module) for module in norms(layers)}
    stages: list[Stage] = []
    norm, most = None, None
    for layer in layers:
        if id(layer) in known and norm is None and most is None:
            norm = layer
        elif most is None and (end := _activation(layer)) is not None:
            most = end
        elif convolves(layer) and (norm is None or norm.weight.dtype == layer.weight.dtype):
            stages.append(Stage(norm, most, layer))
            norm, most = None, None
        else:
            return None
    return tuple(stages) if stages and norm is None and most is None else None


def _activation(layer: nn.Module) -> float | None:
    """Where it ends."""
    from torch import nn

    return {nn.ReLU: math.inf, nn.ReLU6: 6.0}.get(type(layer))


def convolves(layer: Any) -> bool:
    from torch import nn

    return (
        type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _normalises(layer: Any) -> bool:
    """Whether its forward is replaced by a segment's, which a row takes part in."""
    return isinstance(vars(layer).get("forward"), Normalise)


def watched(module: nn.Module) -> bool:
    """Whether somebody has put hooks onto it, or onto all modules."""
    from torch.nn.modules import module as modules

    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any(own) or bool(module._backward_pre_hooks) or modules._has_any_global_hook()
