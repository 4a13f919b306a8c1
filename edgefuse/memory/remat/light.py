"""The light mode of a block: between its convolutions everything is computed again.

In ``conv, bn, relu, conv`` the second convolution's input is one normalisation and one comparison
away from the first one's output, which is kept. A segment ``bn, relu, conv`` that stops before its
convolution runs again costs next to nothing, and frees what relu made:

    kept   x, conv(x)          of   x, conv(x), bn(conv(x)), relu(bn(conv(x)))

Scope: the nn.Sequential of a block with the most layers, nested ones unrolled; layers that draw
random numbers or change state that cannot be put back end a segment before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgefuse.memory.remat.chain import Item, Keep, Segment
from edgefuse.memory.remat.frozen import reason_to_keep
from edgefuse.memory.remat.segments import runner

if TYPE_CHECKING:
    from torch import Tensor, nn

_HEAVY_DIMENSIONS = 2


def light(
    block: nn.Module, x: Tensor
) -> tuple[nn.Sequential, Callable[[Tensor], Tensor], int] | None:
    """The Sequential in a block to run otherwise, how, and the cost; None when there is nothing."""
    sequence = _longest(block)
    if sequence is None:
        return None
    layers = _unrolled(sequence)
    inputs: dict[int, list[Any]] = {}
    hooks = []
    for layer in layers:

        def note(called: nn.Module, given: tuple[Any, ...]) -> None:
            inputs.setdefault(id(called), []).append(given[0].detach().clone())

        hooks.append(layer.register_forward_pre_hook(note))
    try:
        block(x.clone())
    finally:
        for hook in hooks:
            hook.remove()
    if any(len(inputs.get(id(layer), ())) != 1 for layer in layers):
        return None
    judged = [reason_to_keep(layer, inputs[id(layer)][0]) for layer in layers]
    items: list[Item] = []
    cost, begin = 0, 0

    def close(end: int, recomputed: bool) -> None:
        nonlocal begin
        keeps = tuple(Keep(place, 0) for place in range(begin, end))
        items.extend([Segment(begin, end, keeps)] if recomputed and len(keeps) > 1 else keeps)
        begin = end

    for place, layer in enumerate(layers):
        if judged[place][0]:
            close(place, False)
            close(place + 1, False)
        elif _heavy(layer):
            cost += sum(judged[k][1] for k in range(begin, place))
            close(place + 1, True)
    close(len(layers), False)
    if not any(isinstance(item, Segment) for item in items):
        return None
    return sequence, runner(layers, items), cost


def _heavy(layer: nn.Module) -> bool:
    return any(p.ndim >= _HEAVY_DIMENSIONS for p in layer.parameters())


def _longest(block: nn.Module) -> nn.Sequential | None:
    """The outermost Sequential with the most layers."""
    from torch import nn

    found = [m for m in block.modules() if isinstance(m, nn.Sequential) and _is_plain(m)]
    return max(found, key=lambda each: len(_unrolled(each)), default=None)


def _is_plain(module: nn.Module) -> bool:
    """Whether it does what nn.Sequential does, unseen by anybody."""
    from torch import nn

    watched = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module).forward is nn.Sequential.forward and not watched


def _unrolled(sequence: nn.Module) -> list[nn.Module]:
    from torch import nn

    layers: list[nn.Module] = []
    for child in sequence.children():
        plain = isinstance(child, nn.Sequential) and _is_plain(child)
        layers += _unrolled(child) if plain else [child]
    return layers
