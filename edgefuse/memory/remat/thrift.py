"""Layers that do what torch's do, by its own kernels and to the bit, in fewer bytes.

Depthwise convolutions are where the peak of a block lies: the library lays out anew what it is
given, and autograd asks for both gradients in one call, with all the copies alive at once. Here

    dw = conv_backward(g, x)          first, and its copies are freed
    dx = conv_backward(g, w)          then

A ReLU between a BatchNorm and a layer with weights writes over what only it reads: forward the
norm's result, backward the gradient that the next layer made; see :func:`rectify`. Both save time
as well, less memory being touched.

Scope: grouped convolutions without hooks, and such ReLUs. Gradients of gradients are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from edgefuse.memory.remat.norm import norms
from edgefuse.memory.remat.rows import neighbours, rectifiers, watched

if TYPE_CHECKING:
    from torch import Tensor, nn


class Convolve:
    """The forward of a grouped convolution, whose backward makes one gradient after the other."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        module = self.module
        if x.dtype != module.weight.dtype or torch.is_autocast_enabled(x.device.type):
            result: Tensor = type(module).forward(module, x)
        else:
            result = _convolution().apply(x, module.weight, module.bias, self.settings())
        return result

    def settings(self) -> tuple[Any, ...]:
        """As torch's operators take them after the weight and the bias."""
        module = self.module
        zeros = [0] * len(module.stride)
        return (module.stride, module.padding, module.dilation, False, zeros, module.groups)


@cache
def _convolution() -> Any:
    import torch

    class Convolution(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]
        ) -> Tensor:
            ctx.save_for_backward(x, weight)
            ctx.settings = (None if bias is None else list(bias.shape), *settings)
            y: Tensor = torch.ops.aten.convolution(x, weight, bias, *settings)
            return y

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *grads: Tensor) -> Any:
            given = (*grads, *ctx.saved_tensors, *ctx.settings)
            wanted = list(ctx.needs_input_grad[:3])
            backward = torch.ops.aten.convolution_backward
            of_weight = of_bias = of_input = None
            if any(wanted[1:]):
                _, of_weight, of_bias = backward(*given, [False, *wanted[1:]])
            if wanted[0]:
                of_input, _, _ = backward(*given, [True, False, False])
            return of_input, of_weight, of_bias, None

    return Convolution


def _is_grouped(layer: Any) -> bool:
    from torch import nn

    return (
        type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        and layer.groups > 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and not watched(layer)
    )


@cache
def _rectifier() -> Any:
    import torch

    class Rectify(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            y = x.relu_()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *grads: Tensor) -> Any:
            (y,), (grad,) = ctx.saved_tensors, grads
            # The operator that autograd runs, told where to put its result.
            return torch.ops.aten.threshold_backward.grad_input(grad, y, 0, grad_input=grad)

    return Rectify


def rectify(x: Tensor) -> Tensor:
    """ReLU over its input; backward writes over its gradient. Nobody else may read the two."""
    result: Tensor = _rectifier().apply(x)
    return result


def replaced(layers: Sequence[nn.Module]) -> dict[nn.Module, Any]:
    """The forwards, of layers in a row, that need fewer bytes than torch's."""
    _, alone = rectifiers(neighbours(layers), norms(layers))
    grouped = {layer: Convolve(layer) for layer in layers if _is_grouped(layer)}
    return {**grouped, **dict.fromkeys(alone, rectify)}
