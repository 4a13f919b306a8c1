"""BatchNorm that runs again without its sums: mean and deviation of the first time are kept.

    first    y, mean, invstd = batch_norm(x)         the running statistics move, once
    again    y = x * (w * invstd) + (b - mean * w * invstd)

The sums over the batch are most of what BatchNorm costs (on one core 6 of 9 ms for 10 MB); two
numbers a channel keep them. The first time it writes over the result of a convolution that nobody
else reads. Backward is torch's own in both cases. Scope: BatchNorm1d, 2d and 3d
in training on the CPU, in float32 or float64, with weights; others run again as a whole, on copies
of their buffers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    #: Of an input: the result, mean and 1/deviation of every channel.
    Take = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
    Statistics = deque[tuple[Tensor, Tensor]]


def norms(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The BatchNorms among these and inside of them that can run again without their sums."""
    from torch import nn

    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    found = {id(m): m for root in modules for m in root.modules() if type(m) in kinds}
    return [module for module in found.values() if _known(module)]


def _known(module: Any) -> bool:
    import torch

    weight = module.weight
    return (
        weight is not None
        and module.bias is not None
        and module.training
        and module.momentum is not None
        and weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.float64)
    )


def given_statistics(
    module: Any, x: Tensor, mean: Tensor, invstd: Tensor, into: Tensor | None = None
) -> Tensor:
    """The result of a BatchNorm whose sums are known, in torch's bits. Without gradients."""
    import torch

    if x.dtype != module.weight.dtype or not x.is_contiguous():
        # Autocast's halves and other layouts have kernels that round in their own ways.
        own = (x, module.weight, module.bias, None, None, True, 0.0, module.eps)
        y: Tensor = torch.native_batch_norm(*own)[0]
        return y if into is None else into.copy_(y)
    shape = [1, -1] + [1] * (x.ndim - 2)
    scale = module.weight * invstd
    # Rounded as torch's kernel rounds: the same bits where it multiplies and adds in one.
    shift = torch.addcmul(module.bias, mean, scale, value=-1)
    terms = (shift.reshape(shape), x, scale.reshape(shape))
    return torch.addcmul(*terms) if into is None else torch.addcmul(*terms, out=into)


class Normalise:
    """The forward of a BatchNorm in a segment.

    Args:
        noted: where its statistics are put down.
        given: where they are taken from, instead of being computed.
    """

    def __init__(
        self,
        module: Any,
        *,
        noted: Statistics | None = None,
        given: Statistics | None = None,
    ) -> None:
        outer = vars(module).get("forward")
        self.module, self.noted, self.given = module, noted, given
        # No bound method of its own: what it notes is to be freed with the step, not by the
        # garbage collector some day.
        self.outer = outer if isinstance(outer, Normalise) else None

    def __call__(self, x: Tensor) -> Tensor:
        module = self.module
        result: Tensor = _function().apply(x, module.weight, module.bias, module.eps, self.take)
        return result

    def take(self, x: Tensor, *, over: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Without gradients; ``over``: the result lies where ``x`` lay."""

        if self.given is not None:
            mean, invstd = self.given.popleft()
            y = given_statistics(self.module, x, mean, invstd, x.detach() if over else None)
            return y, mean, invstd
        y, mean, invstd = (
            self._first(x, over=over) if self.outer is None else self.outer.take(x, over=over)
        )
        if self.noted is not None:
            self.noted.append((mean, invstd))
        return y, mean, invstd

    def _first(self, x: Tensor, *, over: bool) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        module = self.module
        module._check_input_dim(x)
        if x.numel() <= x.shape[1]:
            # One value a channel has no deviation: torch says so.
            type(module).forward(module, x)
        statistics = (None, None)
        if module.track_running_stats:
            statistics = (module.running_mean, module.running_var)
            if module.num_batches_tracked is not None:
                module.num_batches_tracked.add_(1)
        given = (x, module.weight, module.bias, *statistics, True, module.momentum, module.eps)
        if not over:
            y, mean, invstd = torch.native_batch_norm(*given)
            return y, mean, invstd
        mean, invstd = torch.empty_like(module.weight), torch.empty_like(module.weight)
        torch.ops.aten.native_batch_norm.out(
            *given, out=x.detach(), save_mean=mean, save_invstd=invstd
        )
        return x.detach(), mean, invstd


@cache
def _function() -> Any:
    """BatchNorm in training whose forward is given."""
    import torch

    class Given(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, take: Take
        ) -> Tensor:
            y, mean, invstd = take(x)
            ctx.save_for_backward(x, weight, mean, invstd)
            ctx.eps = eps
            return y

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            x, weight, mean, invstd = ctx.saved_tensors
            wanted = list(ctx.needs_input_grad[:3])
            found = torch.ops.aten.native_batch_norm_backward(
                grads[0], x, weight, None, None, mean, invstd, True, ctx.eps, wanted
            )
            return *found, None, None

    return Given
