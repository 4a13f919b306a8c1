"""Find the chain in a module: the children through which everything goes, one after the other.

A module holds a chain when, in its forward, its children run once each, every child gets exactly
the tensor that the one before gave, the first one the module's own input, and the last one's
result is the module's; and its forward does nothing else: no operator, no random number, no
attribute changed. So is nn.Sequential by construction, others when it turns out so. Of all chains
that hold most of the step's bytes, the one with the most blocks is taken.

Left alone: what lies around the chain. It runs as always, and its bytes count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgefuse.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Of the bytes that a forward leaves, what a chain holds to be worth planning.
_MOST_OF_IT = 0.8


@dataclass(frozen=True)
class Found:
    """A chain.

    Attributes:
        parent: the module whose children are the blocks; its path, empty for the whole.
        names: paths of the blocks.
        inputs: of each block, as the example gives them.
    """

    parent: nn.Module
    path: str
    names: tuple[str, ...]
    blocks: tuple[nn.Module, ...]
    inputs: tuple[Tensor, ...]


@dataclass
class _Call:
    """One call of a module."""

    module: nn.Module
    inputs: tuple[Any, ...]
    output: Any = None
    children: list[_Call] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    does_more: bool = False


def find_chain(module: nn.Module, forward: Callable[[], object]) -> Found:
    """The chain of a module, found in a run of its forward.

    Raises:
        UsageError: there is none.
    """
    from edgefuse.memory.remat.meter import levels

    calls = _traced(module, forward)
    counts: dict[int, int] = {}
    for call in calls:
        counts[id(call.module)] = counts.get(id(call.module), 0) + 1
    paths = {id(m): path for path, m in module.named_modules()}
    chains = [call for call in calls if _is_chain(call, counts)]
    if not chains:
        raise UsageError(
            "no chain of blocks found: no module of the model hands one tensor from child to child "
            "and does nothing else",
            hint="put the blocks into an nn.Sequential",
            where=type(module).__name__,
        )
    growth: dict[int, int] = {}
    hooks = _marking([call.module for call in chains])
    try:
        watched = levels(forward)
    finally:
        for hook in hooks:
            hook.remove()
    for name, held, _ in watched.marks:
        kind, place = name.split()
        growth[int(place)] = held - growth.get(int(place), 0) if kind == "out" else held
    most = max(growth.values())
    large = [k for k in range(len(chains)) if growth[k] >= _MOST_OF_IT * most]
    best = chains[max(large, key=lambda k: (len(chains[k].children), -k))]
    path = paths[id(best.module)]
    return Found(
        best.module,
        path,
        tuple(paths[id(child.module)] for child in best.children),
        tuple(child.module for child in best.children),
        tuple(_copies(best, forward)),
    )


def _traced(module: nn.Module, forward: Callable[[], object]) -> list[_Call]:
    """Every call of a module in one forward; tensors are held, so that none passes for another."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from edgefuse.memory.remat.frozen import attributes_of, random_states

    calls: list[_Call] = []
    open_calls: list[_Call] = []

    random = random_states()

    def own_draws() -> None:
        """What was drawn since the last call began or ended, by the call that is open."""
        nonlocal random
        before, random = random, random_states()
        if before != random and open_calls:
            open_calls[-1].does_more = True

    class Operators(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if open_calls:
                open_calls[-1].does_more = True
            return func(*args, **(kwargs or {}))

    def enter(called: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        own_draws()
        call = _Call(called, inputs if not named else (*inputs, named))
        call.attributes = attributes_of(called)
        calls.append(call)
        if open_calls:
            open_calls[-1].children.append(call)
        open_calls.append(call)

    def leave(called: nn.Module, inputs: Any, output: Any) -> None:
        own_draws()
        call = open_calls.pop()
        call.output = output
        call.does_more |= call.attributes != attributes_of(called)

    hooks = []
    for each in module.modules():
        # Outside of all other hooks, which are the called module's.
        hooks.append(each.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
        hooks.append(each.register_forward_hook(leave))
    try:
        with Operators():
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _is_chain(call: _Call, counts: dict[int, int]) -> bool:
    import torch

    if len(call.children) < 2 or counts[id(call.module)] != 1 or call.does_more:
        return False
    value: Any = call.inputs
    for child in call.children:
        alone = len(child.inputs) == 1 and isinstance(child.inputs[0], torch.Tensor)
        if not alone or counts[id(child.module)] != 1 or len(value) != 1:
            return False
        if child.inputs[0] is not value[0]:
            return False
        value = (child.output,)
    return call.output is value[0]


def _marking(modules: Sequence[nn.Module]) -> list[Any]:
    """Hooks that note the bytes held before and after each module."""
    from edgefuse.memory.remat.meter import mark

    def before(place: int) -> Callable[..., None]:
        return lambda *_: mark(f"in {place}")

    def after(place: int) -> Callable[..., None]:
        return lambda *_: mark(f"out {place}")

    hooks: list[Any] = []
    for place, module in enumerate(modules):
        hooks.append(module.register_forward_pre_hook(before(place)))
        hooks.append(module.register_forward_hook(after(place)))
    return hooks


def _copies(chain: _Call, forward: Callable[[], object]) -> list[Tensor]:
    """What each block of a chain is given, in memory of its own: later blocks may write over it."""
    found: dict[int, Tensor] = {}
    hooks = []
    for child in chain.children:

        def note(called: nn.Module, inputs: tuple[Any, ...]) -> None:
            given = inputs[0]
            copy = given.detach().clone()
            found[id(called)] = copy.requires_grad_(given.requires_grad)

        hooks.append(child.module.register_forward_pre_hook(note, prepend=True))
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return [found[id(child.module)] for child in chain.children]
