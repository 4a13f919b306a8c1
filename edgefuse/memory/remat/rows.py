"""Neighbours in a row of layers, where one alone reads what the other made.

In ``conv, bn, relu, conv`` of an nn.Sequential, each layer's result goes to the next one and to
nobody else: it may be written over where no backward reads it, and so may its gradient.

Scope: children of nn.Sequential, and a row of modules given as such. Left alone: modules that are
used twice, or that somebody watches with hooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    #: Of :func:`neighbours`.
    Pairs = Sequence[tuple[nn.Module, nn.Module]]


def neighbours(modules: Sequence[nn.Module]) -> list[tuple[nn.Module, nn.Module]]:
    """Pairs of layers in a row of modules and inside of them, the first before the second."""
    from torch import nn

    rows = [list(modules)]
    for root in modules:
        plain = (m for m in root.modules() if type(m).forward is nn.Sequential.forward)
        rows += [list(m.children()) for m in plain]
    uses = Counter(id(m) for root in modules for _, m in root.named_modules(remove_duplicate=False))

    def alone(module: nn.Module) -> bool:
        return uses[id(module)] == 1 and not watched(module)

    pairs = {(id(a), id(b)): (a, b) for row in rows for a, b in pairwise(row)}
    return [(a, b) for a, b in pairs.values() if alone(a) and alone(b)]


def watched(module: nn.Module) -> bool:
    """Whether somebody has put hooks onto it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any(hooks) or bool(module._backward_pre_hooks)


def has_weights(layer: nn.Module) -> bool:
    """Whether it is one of torch's layers whose result, and whose input's gradient, are new."""
    from torch import nn

    return type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def covered(pairs: Pairs, norms: Sequence[nn.Module]) -> set[nn.Module]:
    """Those of ``norms`` whose input a layer with weights made for them alone."""
    among: set[Any] = set(norms)
    return {b for a, b in pairs if has_weights(a) and b in among}


def rectifiers(pairs: Pairs, norms: Sequence[nn.Module]) -> tuple[list[nn.Module], set[nn.Module]]:
    """Every ReLU behind one of ``norms``, and those of them before a layer with weights."""
    from torch import nn

    among = set(norms)
    behind = [b for a, b in pairs if a in among and type(b) is nn.ReLU]
    before = {a for a, b in pairs if has_weights(b)}
    return behind, before.intersection(behind)
