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
raises an error; a smaller one runs, and is not measured: torch chooses kernels by shapes.
Forwards without gradients run as always. And it is for the CPU, where the meter's events are: a
module or an input on another device is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from edgefuse.errors import GateFailed, UsageError
from edgefuse.memory.remat.chain import Block, Keep, blocks_of, modes_of, predict
from edgefuse.memory.remat.plan import Planned, least_peak, plan

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgefuse.memory.remat.find import Found

    Loss = Callable[[Any], Tensor]
    Forward = Callable[[Tensor], Tensor]
    #: A module whose forward a mode replaces, and by what.
    Other = tuple[nn.Module, Forward]
    Others = tuple[Other, ...]

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
        lightened: blocks of which a part runs twice, and which: see :mod:`~.modes`.
        kept: blocks that must not run twice, and why.
        cost_share: estimated work done twice, in shares of the chain's forward.
    """

    module: nn.Module
    budget_bytes: int
    eager_peak_bytes: int
    predicted_peak_bytes: int
    peak_bytes: int
    recomputed: tuple[str, ...]
    lightened: tuple[tuple[str, str], ...]
    kept: tuple[tuple[str, str], ...]
    cost_share: float
    _forwards: Others = field(default=(), repr=False)

    def remove(self) -> None:
        """Give the module its own forward back."""
        _uninstall(self._forwards)

    @contextmanager
    def running(self) -> Iterator[None]:
        """After :meth:`remove`: the module runs by the plan meanwhile."""
        _install(self._forwards)
        try:
            yield
        finally:
            _uninstall(self._forwards)


class Study:
    """A module's step, measured once; for plans at any budget.

    Raises:
        UsageError: it holds no chain, runs by a plan already, or does not lie on the CPU.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensor | tuple[Tensor, ...],
        loss: Loss | None = None,
    ) -> None:
        self.module = module
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self.loss = loss or mean_square
        _on_cpu(module, self.inputs)
        # Of its own: a step may write over them, and leaves gradients.
        self.inputs = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in self.inputs)
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
        loss = self.loss(self.forward())
        if not loss.requires_grad:
            raise UsageError(
                "nothing trains: the loss asks for no gradient",
                hint="let parameters require gradients, and call this outside of torch.no_grad()",
                where=type(self.module).__name__,
            )
        loss.backward()

    def peak_bytes(self) -> int:
        """Of one step from no gradients, measured."""
        from edgefuse.memory.remat.frozen import undisturbed
        from edgefuse.memory.remat.meter import peak_bytes

        with undisturbed(self.module):
            self._clear()
            return peak_bytes(self.step)

    def _clear(self) -> None:
        for value in (*self.module.parameters(), *self.inputs):
            value.grad = None

    def bytes_of(self, budget: int | float) -> int:
        """A budget in bytes: a float is a share of the eager peak.

        Raises:
            UsageError: it is neither.
        """
        number = isinstance(budget, int | float) and not isinstance(budget, bool)
        if not number or not 0 < budget <= (1 if isinstance(budget, float) else math.inf):
            raise UsageError(
                f"a budget of {budget!r} is no number of bytes and no share in (0, 1]",
                hint="give bytes as a whole number, or 0.4 for 40% of the eager peak",
            )
        return int(budget * self.eager_peak_bytes) if isinstance(budget, float) else budget

    def rematerialise(self, budget: int | float) -> Rematerialised:
        """Plan for a budget, verify, and leave the plan in the module."""
        wanted = self.bytes_of(budget)
        slack = self.slack
        if self.eager_peak_bytes <= wanted:
            kept = tuple(Keep(place, 0) for place in range(len(self.blocks)))
            held = self.eager_peak_bytes
            return self._made(Planned(kept, 0, held), wanted, 0, held)
        for _ in range(_TRIES):
            planned = plan(self.blocks, wanted - slack, self.around)
            if planned is None:
                break
            with self.running(planned):
                found = self.peak_bytes()
            if found <= wanted:
                made = self._made(planned, wanted, slack, found)
                _install(made._forwards)
                return made
            slack += max(1, found - planned.peak_bytes - slack)
        raise self._refusal(wanted, slack)

    @contextmanager
    def running(self, planned: Planned) -> Iterator[None]:
        """The module runs by a plan meanwhile."""
        forwards = self._forwards(planned)
        _install(forwards)
        try:
            yield
        finally:
            _uninstall(forwards)

    def _made(self, planned: Planned, wanted: int, slack: int, found: int) -> Rematerialised:
        blocks = self.blocks
        other = [k for k in modes_of(planned.items) if blocks[k.block].modes[k.mode].cost]
        return Rematerialised(
            self.module,
            wanted,
            self.eager_peak_bytes,
            planned.peak_bytes + slack,
            found,
            tuple(blocks[place].name for place in blocks_of(planned.items)),
            tuple((blocks[k.block].name, blocks[k.block].modes[k.mode].name) for k in other),
            tuple((block.name, block.kept_because) for block in blocks if block.kept_because),
            planned.cost / max(1, sum(block.cost for block in blocks)),
            self._forwards(planned),
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
            f"{_mib(least)} ({least:,} bytes where {wanted:,} are allowed, {share:.1f}% of the "
            "eager peak)" + (f"; not recomputed: {reasons}" if reasons else ""),
            hint="raise the budget, or lower the batch",
            where=name,
        )

    def _forwards(self, planned: Planned) -> Others:
        """What a plan replaces."""
        from edgefuse.memory.remat.guard import Guarded
        from edgefuse.memory.remat.segments import runner

        if all(isinstance(item, Keep) and not item.mode for item in planned.items):
            return ()
        others = [self.others[k.block, k.mode] for k in modes_of(planned.items) if k.mode]
        parent, example = self.chain.parent, self.chain.inputs[0]
        forward = runner(self.chain.blocks, planned.items)
        guarded = Guarded(parent, self.chain.blocks, example, forward)
        return *chain.from_iterable(others), (parent, guarded)


def rematerialise(
    module: nn.Module,
    inputs: Tensor | tuple[Tensor, ...],
    *,
    budget: int | float,
    loss: Loss | None = None,
) -> Rematerialised:
    """Make a module's training step keep to a budget.

    Args:
        inputs: an example, of the largest shapes to come.
        budget: bytes, or a share of the eager peak as a float in (0, 1].
        loss: of the module's output; without it the mean square.

    Raises:
        UsageError: no chain of blocks is found, the budget is no budget, or module or inputs
            lie on another device than the CPU.
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


def _on_cpu(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Refuse other devices: their bytes are none of the meter's events."""
    held = [*module.named_parameters(), *module.named_buffers()]
    held += [(f"input {place}", x) for place, x in enumerate(inputs)]
    for name, value in held:
        if value.device.type != "cpu":
            raise UsageError(
                f"{name} lies on {value.device}: a training step is planned and measured on the "
                "CPU alone",
                hint='move the module and its inputs there first: .to("cpu")',
                where=type(module).__name__,
            )


def _measured(chain: Found) -> tuple[list[Block], dict[tuple[int, int], Others]]:
    """The blocks of a chain, and how those with another mode run in it."""
    from edgefuse.memory.remat.frozen import buffers_of, judge
    from edgefuse.memory.remat.measure import measured, mode_of
    from edgefuse.memory.remat.modes import variants

    judged = [judge(block, x) for block, x in zip(chain.blocks, chain.inputs)]
    blocks: list[Block] = []
    others: dict[tuple[int, int], Others] = {}
    for place, (block, name, x) in enumerate(zip(chain.blocks, chain.names, chain.inputs)):
        reason = judged[place].reason
        read = {id(value) for value in buffers_of([block]).values()}
        if any(read & other.written for k, other in enumerate(judged) if k != place):
            reason = reason or "it reads a buffer that another block writes"
        found = measured(block, name, x, judged[place].cost, reason)
        found = replace(found, in_place=judged[place].in_place)
        for kind, forwards, again in () if reason else variants(block, x):
            _install(forwards)
            try:
                mode = mode_of(kind, block, x, again)
            finally:
                _uninstall(forwards)
            if not any(mode.beaten_by(known) for known in found.modes):
                others[place, len(found.modes)] = forwards
                found = replace(found, modes=(*found.modes, mode))
        blocks.append(found)
    return blocks, others


def _install(forwards: Sequence[Other]) -> None:
    for module, forward in forwards:
        module.__dict__["forward"] = forward


def _uninstall(forwards: Sequence[Other]) -> None:
    """Where a module runs otherwise by now, it goes on to."""
    for module, forward in forwards:
        if vars(module).get("forward") is forward:
            del module.__dict__["forward"]


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
