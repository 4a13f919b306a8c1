"""Layers that do what torch's do, with its kernels and to the bit, in fewer bytes at a time.

Depthwise convolutions are where a block's peak lies: the library lays input, output and gradients
out anew, for the whole batch, and autograd asks for both gradients at once.

    forward     y[group] = conv(x[group])                     a few samples after the other
    backward    dw = conv_backward(g, x)                      the weight's gradient first
                dx[group] = conv_backward(g[group])           then the input's, in groups

What a group needs fits into the processor's cache, so that this is also faster. A ReLU between a
BatchNorm and a layer with weights writes over what only it reads, forward the norm's result,
backward the gradient that the next layer made: see :func:`rectify`.

Scope: grouped convolutions without hooks, in training on the CPU, and such ReLUs. Whether a
library computes a group as it computes the batch is no promise of anybody: every convolution is
tried on its example, and groups are used only for this shape and only if all results are the same
to the bit. Other shapes run as one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from edgefuse.memory.remat.norm import norms
from edgefuse.memory.remat.rows import neighbours, rectifiers, watched

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Bytes of a group's input, a thread: with its copies and its result it stays in the cache, and a
#: call is worth its while. Of 1.3 MB a sample, two at once took 0.71 of the batch's time, one 0.80.
_GROUP_BYTES = 3 * 2**20


class Convolve:
    """The forward of a grouped convolution.

    Args:
        shape: of the inputs that run in groups.
        samples: of a group.
    """

    def __init__(self, module: Any, shape: Sequence[int], samples: int) -> None:
        self.module, self.shape, self.samples = module, tuple(shape), samples

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        module = self.module
        other = x.dtype != module.weight.dtype or torch.is_autocast_enabled(x.device.type)
        if other or not len(x):
            result: Tensor = type(module).forward(module, x)
        else:
            result = _convolution().apply(x, module.weight, module.bias, self)
        return result

    def groups(self, *given: Tensor) -> list[slice]:
        """Of samples; all of them where the first is of another shape, or one is no plain array."""
        count = len(given[0])
        tried = tuple(given[0].shape) == self.shape and all(x.is_contiguous() for x in given)
        samples = self.samples if tried else max(1, count)
        return [slice(begin, begin + samples) for begin in range(0, count, samples)]

    def settings(self) -> tuple[Any, ...]:
        """As torch's operators take them after the weight and the bias."""
        module = self.module
        zeros = [0] * len(module.stride)
        return (module.stride, module.padding, module.dilation, False, zeros, module.groups)


@cache
def _convolution() -> Any:
    """A convolution that works in groups of samples."""
    import torch

    forwards = torch.ops.aten.convolution
    backwards = torch.ops.aten.convolution_backward

    def joined(parts: Any, count: int) -> Tensor:
        """Parts of a batch, each freed when it is copied; one part alone is the result."""
        whole = None
        for part, y in parts:
            if len(y) == count:
                return y
            if whole is None:
                whole = y.new_empty((count, *y.shape[1:]))
            whole[part] = y
        assert whole is not None
        return whole

    class Convolution(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Convolve
        ) -> Tensor:
            ctx.save_for_backward(x, weight)
            ctx.how, ctx.bias_sizes = how, None if bias is None else list(bias.shape)
            parts = (
                (part, forwards(x[part], weight, bias, *how.settings())) for part in how.groups(x)
            )
            return joined(parts, len(x))

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *grads: Tensor) -> Any:
            (grad,), (x, weight), how = grads, ctx.saved_tensors, ctx.how
            settings = (ctx.bias_sizes, *how.settings())
            wanted = list(ctx.needs_input_grad[:3])
            of_weight = of_bias = of_input = None
            if any(wanted[1:]):
                _, of_weight, of_bias = backwards(grad, x, weight, *settings, [False, *wanted[1:]])
            if wanted[0]:
                alone = [True, False, False]
                parts = (
                    (part, backwards(grad[part], x[part], weight, *settings, alone)[0])
                    for part in how.groups(x, grad)
                )
                of_input = joined(parts, len(x))
            return of_input, of_weight, of_bias, None

    return Convolution


def convolutions(
    layers: Sequence[nn.Module], inputs: Sequence[Tensor]
) -> dict[nn.Module, Convolve]:
    """Those of a block's layers that can run in groups, and how, tried on their inputs."""
    found: dict[nn.Module, Convolve] = {}
    for layer, x in zip(layers, inputs):
        if _is_grouped(layer, x):
            how = Convolve(layer, x.shape, _samples(x))
            if _same_bits(layer, how, x):
                found[layer] = how
    return found


def _samples(x: Tensor) -> int:
    import torch

    most = _GROUP_BYTES * torch.get_num_threads()
    return max(1, int(most // max(1, x[:1].numel() * x.element_size())))


def _is_grouped(layer: Any, x: Tensor) -> bool:
    from torch import nn

    return (
        type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        and layer.groups > 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and x.ndim == layer.weight.ndim
        and x.is_contiguous()
        and x.device.type == "cpu"
        and not watched(layer)
    )


def _same_bits(layer: nn.Module, how: Convolve, x: Tensor) -> bool:
    """Whether output and gradients are those of torch."""
    import torch

    wanted = [p for p in layer.parameters() if p.requires_grad]

    def run(forward: Any) -> list[Tensor]:
        given = x.detach().requires_grad_(True)
        y = forward(given)
        # As different as the input's own values, and no random numbers are drawn.
        grad = torch.sin(y.detach() * 12.9898)
        return [y.detach(), *torch.autograd.grad(y, [given, *wanted], grad)]

    return all(torch.equal(a, b) for a, b in zip(run(layer), run(how), strict=True))


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


def replaced(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> dict[nn.Module, Any]:
    """The forwards, of layers in a row, that need fewer bytes than torch's."""
    _, alone = rectifiers(neighbours(layers), norms(layers))
    return {**convolutions(layers, inputs), **dict.fromkeys(alone, rectify)}
