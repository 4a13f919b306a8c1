"""Modes of a block that run a part of it twice.

In ``conv, bn, relu, conv`` the second convolution's input is one normalisation and one comparison
away from the first one's output. A segment ``bn, relu, conv`` that stops before its convolution
runs again costs little, and frees what relu made:

    kept   x, conv(x)          of   x, conv(x), bn(conv(x)), relu(bn(conv(x)))

A mode keeps the outputs of some of a block's heavy layers (convolutions, matrix products), and
computes everything before the last of them again, these layers themselves excepted. All choices are
weighed by the values that they keep and the work that they repeat, and those that no other choice
beats in both are offered. Of an inverted residual: all three convolutions; the depthwise one and
the projection, with the expansion repeated; the projection alone, a sixth of a wide tensor.

All modes, and one that repeats nothing, run in groups of samples where they can: see
:mod:`~.grouped`.

Scope: the nn.Sequential of a block with the most layers, nested ones unrolled, with at most four
heavy layers; of more, all or the narrowest. A layer that must not run twice ends a segment before
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError
from edgefuse.memory.remat.chain import Item, Keep, Segment
from edgefuse.memory.remat.frozen import Judged, judge
from edgefuse.memory.remat.segments import runner
from edgefuse.memory.remat.stages import watched

if TYPE_CHECKING:
    from torch import Tensor, nn

    Forward = Callable[[Tensor], Tensor]
    #: Its name, the modules in the block to run otherwise and how, and what it computes twice.
    Variant = tuple[str, tuple[tuple[nn.Module, Forward], ...], int]

_HEAVY_DIMENSIONS = 2
_MOST_HEAVY = 4


def variants(block: nn.Module, x: Tensor) -> Iterator[Variant]:
    """Other ways to run a block; none where it holds no Sequential, or nothing would be gained."""
    sequence = _longest(block)
    if sequence is None:
        return
    layers = _unrolled(sequence)
    inputs = _inputs(block, layers, x)
    if inputs is None:
        return
    judged = [judge(layer, given) for layer, given in zip(layers, inputs)]
    heavy = [k for k, layer in enumerate(layers) if _heavy(layer)]
    after = [inputs[k + 1] for k in range(len(layers) - 1)]
    paths = {id(module): path for path, module in block.named_modules()}
    kept = [Keep(place, 0) for place in range(len(layers))]
    forward = Unrolled(sequence, layers, runner(layers, kept, inputs))
    yield "keep, in groups", ((sequence, forward),), 0
    for ends in _choices([k for k in heavy if k < len(after)], [x.numel() for x in after], judged):
        items, cost = _planned(ends, judged)
        if any(isinstance(item, Segment) for item in items):
            name = "keeps " + ", ".join(paths[id(layers[k])] for k in ends)
            forward = Unrolled(sequence, layers, runner(layers, items, inputs))
            yield name, ((sequence, forward),), cost


class Unrolled:
    """The forward of a Sequential by a plan of its layers; without gradients, its own.

    Raises:
        StageError: it holds other layers than it did, or a Sequential in it is watched by now.
    """

    def __init__(
        self, sequence: nn.Sequential, layers: Sequence[nn.Module], forward: Forward
    ) -> None:
        self.sequence, self.layers, self.forward = sequence, list(layers), forward

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        if not torch.is_grad_enabled():
            found: Tensor = type(self.sequence).forward(self.sequence, x)
            return found
        if _unrolled(self.sequence) != self.layers:
            raise StageError(
                "its layers are others than those that were planned, or have hooks by now",
                hint="remove() the plan and rematerialise anew",
                where=type(self.sequence).__name__,
            )
        return self.forward(x)


def _choices(
    heavy: Sequence[int], sizes: Sequence[int], judged: Sequence[Judged]
) -> list[tuple[int, ...]]:
    """Heavy layers to keep the outputs of, from the least work repeated to the fewest values."""
    if len(heavy) > _MOST_HEAVY:
        subsets = [tuple(heavy), (min(heavy, key=lambda k: (sizes[k], -k)),)]
    else:
        subsets = [s for n in range(len(heavy), 0, -1) for s in combinations(heavy, n)]
    best: list[tuple[int, ...]] = []
    fewest = None
    weighed = [
        (_planned(s, judged)[1], sum(sizes[k] for k in s) + sum(sizes[s[-1] + 1 :]), s)
        for s in subsets
    ]
    for _, kept, ends in sorted(weighed):
        if fewest is None or kept < fewest:
            fewest = kept
            best.append(ends)
    return best


def _planned(ends: Sequence[int], judged: Sequence[Judged]) -> tuple[tuple[Item, ...], int]:
    """Segments that end with the layers ``ends``, which do not run twice themselves; the cost."""
    items: list[Item] = []
    cost, begin = 0, 0
    for end in ends:
        barred = [k for k in range(begin, end + 1) if judged[k].reason]
        first = barred[-1] + 1 if barred else begin
        while first < end and judged[first].in_place:
            first += 1
        first = min(first, end)
        items += [Keep(place, 0) for place in range(begin, first)]
        inner = tuple(Keep(k, 0) for k in range(first, end + 1))
        items += [Segment(first, end + 1, inner)] if len(inner) > 1 else inner
        cost += sum(judged[k].cost for k in range(first, end))
        begin = end + 1
    items += [Keep(place, 0) for place in range(begin, len(judged))]
    return tuple(items), cost


def _inputs(block: nn.Module, layers: Sequence[nn.Module], x: Tensor) -> list[Tensor] | None:
    """What each layer is given; None unless each runs once, in order, with one tensor."""
    found: list[tuple[int, Any]] = []

    def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
        found.append((id(layer), given[0].detach().clone() if len(given) == 1 else None))

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        block(x.clone())
    finally:
        for hook in hooks:
            hook.remove()
    if [place for place, _ in found] != [id(layer) for layer in layers]:
        return None
    return [given for _, given in found] if all(g is not None for _, g in found) else None


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

    return type(module).forward is nn.Sequential.forward and not watched(module)


def _unrolled(sequence: nn.Module) -> list[nn.Module]:
    from torch import nn

    layers: list[nn.Module] = []
    for child in sequence.children():
        plain = isinstance(child, nn.Sequential) and _is_plain(child)
        layers += _unrolled(child) if plain else [child]
    return layers
