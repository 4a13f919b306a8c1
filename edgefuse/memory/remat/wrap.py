"""Put a plan into a module: its training step then keeps to a budget of peak bytes.

    found = rematerialise(net, x, budget=0.4, loss=loss)     # 40% of the eager peak
    loss(net(x)).backward()                                  # within found.budget_bytes
    found.remove()                                           # net is as it was

The chain is found, each block measured alone, the step measured as a whole, and the cheapest plan
taken whose predicted peak keeps to the budget. Then a step with the plan runs under the meter. If
it takes more than was predicted, the difference is added to all predictions and planned anew; what
still does not fit is refused. Parameters, buffers, gradients and random numbers are afterwards
what they were. Parameter names stay: only ``forward`` of the chain and of blocks in another mode
is replaced.

The promise is for the example's shapes: a larger input, or training where the example was not,
raises an error. Forwards without gradients run as always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgefuse.errors import GateFailed, StageError, UsageError
from edgefuse.memory.remat.chain import (
    Around,
    Block,
    Keep,
    Planned,
    blocks_of,
    least_peak,
    modes_of,
    plan,
    predict,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgefuse.memory.remat.find import Found

    Loss = Callable[[Any], Tensor]
    Inputs = Tensor | tuple[Tensor, ...]
    Forward = Callable[[Tensor], Tensor]
    #: A module whose forward a mode replaces, and by what.
    Other = tuple[nn.Module, Forward]

_TRIES = 4
_MIB = 2**20


@dataclass(frozen=True)
class Rematerialised:
    """A plan that a module runs by.

    Attributes:
        module: as given; it runs by the plan until :meth:`remove`.
        budget_bytes: of the peak of one step, by :mod:`~.meter`.
        eager_peak_bytes: without a plan.
        predicted_peak_bytes: by the planner.
        peak_bytes: of one step on the example, measured; never above the budget.
        recomputed: blocks that run twice.
        lightened: blocks of which all but convolutions and matrix products runs twice.
        kept: blocks that must not run twice, and why.
        cost_share: estimated work done twice, in shares of the chain's forward.
    """

    module: nn.Module
    budget_bytes: int
    eager_peak_bytes: int
    predicted_peak_bytes: int
    peak_bytes: int
    recomputed: tuple[str, ...]
    lightened: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    cost_share: float
    _replaced: tuple[nn.Module, ...] = ()

    def remove(self) -> None:
        """Give the module its own forward back."""
        _uninstall(self._replaced)


class Study:
    """A module's step, measured once; for plans at any budget.

    Raises:
        UsageError: it holds no chain, or runs by a plan already.
    """

    def __init__(self, module: nn.Module, inputs: Inputs, loss: Loss | None = None) -> None:
        self.module = module
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self.loss = loss or mean_square
        for path, each in module.named_modules():
            if "forward" in vars(each):
                raise UsageError(
                    "its forward is replaced already",
                    hint="remove() the plan it runs by first",
                    where=path or type(module).__name__,
                )
        from edgefuse.memory.remat.find import find_chain
        from edgefuse.memory.remat.frozen import undisturbed
        from edgefuse.memory.remat.measure import around

        with undisturbed(module):
            self.step()  # What is made once, in a first step, is no part of the others.
            self._clear()
            self.chain = find_chain(module, self.forward)
            self.blocks, self.others = _measured(self.chain)
            self._clear()
            self.around = around(self.chain.parent, self.step, self.blocks)
            self._clear()
            self.eager_peak_bytes = self.peak_bytes()
        keep_all = tuple(Keep(place, 0) for place in range(len(self.blocks)))
        predicted = predict(self.blocks, keep_all, self.around)
        self.slack = max(0, self.eager_peak_bytes - predicted)

    def forward(self) -> Any:
        return self.module(*self.inputs)

    def step(self) -> None:
        """One forward and backward on the example."""
        self.loss(self.forward()).backward()

    def peak_bytes(self) -> int:
        """Of one step from no gradients, measured."""
        from edgefuse.memory.remat.frozen import undisturbed
        from edgefuse.memory.remat.meter import peak_bytes

        with undisturbed(self.module):
            device = next((x.device for x in self.inputs), None)
            return peak_bytes(self.step, str(device or "cpu"))

    def _clear(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None

    def bytes_of(self, budget: int | float) -> int:
        """A budget in bytes: a float is a share of the eager peak.

        Raises:
            UsageError: it is neither.
        """
        if isinstance(budget, bool) or budget <= 0 or (isinstance(budget, float) and budget > 1):
            raise UsageError(
                f"a budget of {budget!r} is no number of bytes and no share in (0, 1]",
                hint="give bytes as a whole number, or 0.4 for 40% of the eager peak",
            )
        return int(budget * self.eager_peak_bytes) if isinstance(budget, float) else budget

    def rematerialise(self, budget: int | float) -> Rematerialised:
        """Plan for a budget, verify, and leave the plan in the module."""
        wanted = self.bytes_of(budget)
        slack = self.slack
        for _ in range(_TRIES):
            planned = plan(self.blocks, wanted - slack, self.around)
            if planned is None:
                break
            replaced = self._install(planned)
            try:
                found = self.peak_bytes()
            except BaseException:
                _uninstall(replaced)
                raise
            if found <= wanted:
                return self._made(planned, wanted, slack, found, replaced)
            _uninstall(replaced)
            slack += max(1, found - planned.peak_bytes - slack)
        raise self._refusal(wanted, slack)

    def _made(
        self, planned: Planned, wanted: int, slack: int, found: int, replaced: Sequence[nn.Module]
    ) -> Rematerialised:
        blocks = self.blocks
        other = [keep for keep in modes_of(planned.items) if keep.mode]
        return Rematerialised(
            self.module,
            wanted,
            self.eager_peak_bytes,
            planned.peak_bytes + slack,
            found,
            tuple(blocks[place].name for place in blocks_of(planned.items)),
            tuple(blocks[keep.block].name for keep in other),
            tuple((block.name, block.kept_because) for block in blocks if block.kept_because),
            planned.cost / max(1, sum(block.cost for block in blocks)),
            tuple(replaced),
        )

    def _refusal(self, wanted: int, slack: int) -> GateFailed:
        kept = [block for block in self.blocks if block.kept_because]
        name = type(self.module).__name__
        if len(kept) == len(self.blocks):
            return GateFailed(
                f"the training step is random, or changes what it reads: no block may run twice "
                f"({kept[0].name}: {kept[0].kept_because}), and keeping all takes "
                f"{_mib(self.eager_peak_bytes)}, above the budget of {_mib(wanted)}",
                hint="take Dropout out of the blocks, or raise the budget",
                where=name,
            )
        least = least_peak(self.blocks, self.around) + slack
        reasons = "; ".join(f"{block.name}: {block.kept_because}" for block in kept)
        share = 100 * least / self.eager_peak_bytes
        return GateFailed(
            f"no plan keeps the training step within {_mib(wanted)}: the least reachable is "
            f"{_mib(least)} ({least} bytes, {share:.1f}% of the eager peak)"
            + (f"; not recomputed: {reasons}" if reasons else ""),
            hint="raise the budget, or lower the batch",
            where=name,
        )

    def _install(self, planned: Planned) -> list[nn.Module]:
        from edgefuse.memory.remat.segments import runner

        replaced: list[nn.Module] = []
        if planned.cost == 0:
            return replaced
        for keep in modes_of(planned.items):
            if keep.mode:
                module, forward = self.others[keep.block]
                _install(module, forward)
                replaced.append(module)
        parent = self.chain.parent
        forward = runner(self.chain.blocks, planned.items)
        _install(parent, _guarded(parent, self.chain.inputs[0], forward))
        return [*replaced, parent]


def rematerialise(
    module: nn.Module, inputs: Inputs, *, budget: int | float, loss: Loss | None = None
) -> Rematerialised:
    """Make a module's training step keep to a budget.

    Args:
        inputs: an example, of the largest shapes to come.
        budget: bytes, or a share of the eager peak as a float in (0, 1].
        loss: of the module's output; without it the mean square.

    Raises:
        UsageError: no chain of blocks is found, or the budget is no budget.
        GateFailed: no plan keeps to it; the message has the least reachable.
    """
    return Study(module, inputs, loss).rematerialise(budget)


def mean_square(output: Any) -> Tensor:
    """A loss for those who only measure: of all floating tensors of an output."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    floats = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
    losses: list[Tensor] = [x.square().mean() for x in floats]
    return sum(losses[1:], losses[0])


def _measured(chain: Found) -> tuple[list[Block], dict[int, Other]]:
    """The blocks of a chain, and how those with another mode run in it."""
    from edgefuse.memory.remat.frozen import buffers_of, reason_to_keep, written_buffers
    from edgefuse.memory.remat.light import light
    from edgefuse.memory.remat.measure import measured, mode_of

    written = [
        written_buffers(block, lambda block=block, x=x: block(x.clone()))
        for block, x in zip(chain.blocks, chain.inputs)
    ]
    blocks: list[Block] = []
    others: dict[int, Other] = {}
    for place, (block, name, x) in enumerate(zip(chain.blocks, chain.names, chain.inputs)):
        reason, work = reason_to_keep(block, x.clone())
        read = {id(value) for value in buffers_of([block]).values()}
        if any(read & found for k, found in enumerate(written) if k != place):
            reason = reason or "it reads a buffer that another block writes"
        found, mode = measured(block, name, x, work, reason)
        other = None if reason else light(block, x)
        if other is not None:
            module, forward, again = other
            _install(module, forward)
            try:
                lighter = mode_of("light", block, x, again)
            finally:
                _uninstall([module])
            if lighter.saved_bytes < mode.saved_bytes:
                found = replace(found, modes=(mode, lighter))
                others[place] = (module, forward)
        blocks.append(found)
    return blocks, others


def _guarded(parent: nn.Module, example: Tensor, forward: Forward) -> Forward:
    """The plan's forward where it holds, the module's own without gradients, else an error."""
    import torch

    own = type(parent).forward
    most, training = example.numel() * example.element_size(), parent.training

    def guarded(x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            found: Tensor = own(parent, x)
            return found
        size = x.numel() * x.element_size()
        if size > most:
            raise StageError(
                f"the plan is for inputs of at most {most} bytes, and this one has {size}",
                hint="rematerialise with an example of the largest shape",
                where=type(parent).__name__,
            )
        if parent.training and not training:
            raise StageError(
                "planned in eval mode, the module now trains",
                hint="call train() before rematerialise()",
                where=type(parent).__name__,
            )
        return forward(x)

    return guarded


def _install(module: nn.Module, forward: Forward) -> None:
    module.__dict__["forward"] = forward


def _uninstall(modules: Sequence[nn.Module]) -> None:
    for module in modules:
        module.__dict__.pop("forward", None)


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
