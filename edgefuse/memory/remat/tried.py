"""A module tried once before anything is planned for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgefuse.errors import SourceError

if TYPE_CHECKING:
    from torch import Tensor, nn


def try_forward(module: nn.Module, inputs: Sequence[Tensor], where: str) -> None:
    """Run the module once: whatever is wrong then is the model's fault, not a plan's.

    Raises:
        SourceError: it fails on the recipe's inputs, or there is nothing to take a loss of.
    """
    import torch
    from torch.utils import _pytree

    from edgefuse.memory.remat.frozen import undisturbed

    try:
        with undisturbed(module), torch.no_grad():
            leaves = _pytree.tree_leaves(module(*inputs))
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300]
        raise SourceError(
            f"the model does not run on {len(inputs[0])} samples: {type(error).__name__}: {text}",
            where=where,
            hint="check model.inputs against forward()",
        ) from error
    if not any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in leaves):
        raise SourceError(
            "no output is a floating-point tensor: there is no loss to train by",
            where=where,
            hint="give a model whose forward() returns the scores themselves",
        )
