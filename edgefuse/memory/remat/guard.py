"""The forward of a module that runs by a plan: the plan where it holds, else one clear error.

A plan is for the modules, the shapes and the gradients of its example. Forwards without gradients
are the module's own. A larger input, gradients where the example had none, and modules that were
replaced, added or taken out since are refused: their step would not keep to the budget, or the
plan would run layers that are no longer there. Copies and pickles of a module run by the plan on
their own layers: what is put in place of a forward holds modules and numbers, no closures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgefuse.errors import StageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    Forward = Callable[[Tensor], Tensor]

_AGAIN = "remove() the plan and rematerialise anew"


class Guarded:
    """A plan's forward.

    Args:
        parent: whose forward it stands for.
        blocks: that it runs.
        example: what the parent was given.
    """

    def __init__(
        self, parent: nn.Module, blocks: Sequence[nn.Module], example: Tensor, forward: Forward
    ) -> None:
        self.parent, self.forward = parent, forward
        self.most_bytes = example.numel() * example.element_size()
        self.asked = example.requires_grad
        inside = set(parent.modules())
        self.roots = (parent, *(block for block in blocks if block not in inside))
        self.modules = self._modules()
        self.training = [module.training for module in self.modules]
        self.trainable = [_trainable(module) for module in self.modules]

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        if not torch.is_grad_enabled():
            found: Tensor = type(self.parent).forward(self.parent, x)
            return found
        size = x.numel() * x.element_size()
        if size > self.most_bytes:
            raise self._refused(
                f"the plan is for inputs of at most {self.most_bytes} bytes, and this one has "
                f"{size}",
                "rematerialise with an example of the largest shape",
            )
        if x.requires_grad and not self.asked:
            raise self._refused("planned for an input without a gradient, this one asks for one")
        now = self._modules()
        if now != self.modules:
            raise self._refused("its modules are others than those that were planned")
        for module, training, trainable in zip(now, self.training, self.trainable):
            if module.training and not training:
                raise self._refused(
                    f"planned in eval mode, the module now trains ({type(module).__name__})",
                    "call train() before rematerialise()",
                )
            if _trainable(module) > trainable:
                raise self._refused(
                    f"a parameter that was frozen when planned now trains ({type(module).__name__})"
                )
        return self.forward(x)

    def _modules(self) -> list[nn.Module]:
        return [module for root in self.roots for module in root.modules()]

    def _refused(self, message: str, hint: str = _AGAIN) -> StageError:
        return StageError(message, hint=hint, where=type(self.parent).__name__)


def _trainable(module: nn.Module) -> int:
    return sum(p is not None and p.requires_grad for p in module._parameters.values())
