"""What a block may not do twice, and the state it is given when it runs again.

A block that runs again must compute what it computed before, and leave no trace:

    first forward:   note copies of its buffers, as they are before it
    forward again:   run on those copies, then put the real buffers back

BatchNorm runs again on the statistics of the first time instead: see :mod:`~.norm`.

So BatchNorm's statistics and its count, and the observers and ranges of quantisation-aware
training, are bit by bit what one forward made of them, and an observer's scale is the one of the
first time. Kept, and said by name, are blocks that draw random numbers, write over a
parameter or a tensor of others, change plain attributes, or read a buffer that another block
writes. A block that writes over its input runs again only together with the block that made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError

if TYPE_CHECKING:
    from torch import Tensor, nn

_GROUPED = 4

_Buffers = dict[tuple["nn.Module", str], "Tensor"]


def buffers_of(modules: Sequence[nn.Module]) -> _Buffers:
    """Every buffer once, by the module that holds it and its name there."""
    found: _Buffers = {}
    seen: set[int] = set()
    for root in modules:
        for module in root.modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            for name, value in module._buffers.items():
                if value is not None:
                    found[module, name] = value
    return found


def frozen(
    modules: Sequence[nn.Module],
) -> Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
    """Contexts for the forward of some blocks and for the same forward run again."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        from edgefuse.memory.remat.norm import Normalise, norms

        before: _Buffers = {}
        parameters = Given(_parameters(modules))
        training = {m: m.training for root in modules for m in root.modules()}
        statistics: dict[nn.Module, deque[Any]] = {module: deque() for module in norms(modules)}

        @contextmanager
        def noting() -> Iterator[None]:
            held = buffers_of(modules)
            before.update({k: v.clone() for k, v in held.items() if k[0] not in statistics})
            noted = {m: Normalise(m, noted=queue) for m, queue in statistics.items()}
            with _replaced("forward", noted):
                yield

        @contextmanager
        def replaying() -> Iterator[None]:
            parameters.check(_parameters(modules))
            real = {key: key[0]._buffers[key[1]] for key in before}
            for (module, name), held in before.items():
                module._buffers[name] = held.clone()
            given = {m: Normalise(m, given=queue.copy()) for m, queue in statistics.items()}
            try:
                with _replaced("forward", given), _replaced("training", training):
                    yield
            finally:
                for (module, name), value in real.items():
                    module._buffers[name] = value

        return _Anew(noting), _Anew(replaying)

    return contexts


class _Anew(AbstractContextManager[None]):
    """A context that is entered as often as one likes: a retained graph runs again each time."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self.make = make
        self.entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        now = self.make()
        now.__enter__()
        self.entered.append(now)

    def __exit__(self, *raised: Any) -> bool | None:
        return self.entered.pop().__exit__(*raised)


def _parameters(modules: Sequence[nn.Module]) -> list[Tensor]:
    return [p for root in modules for p in root.parameters()]


class Given:
    """Parameters of a forward, which is computed again with the same values or not at all."""

    def __init__(self, parameters: Sequence[Tensor | None]) -> None:
        self.held = [(p, _version(p)) for p in parameters]

    def check(self, now: Sequence[Tensor | None]) -> None:
        """Before the forward runs again.

        Raises:
            StageError: they were replaced or written over.
        """
        same = len(now) == len(self.held) and all(
            p is held and _version(p) == version for p, (held, version) in zip(now, self.held)
        )
        if not same:
            raise StageError(
                "a parameter was replaced or changed between a step's forward and its backward: "
                "what backward computes again would be another forward",
                hint="call backward() before the optimiser's step",
            )


def _version(p: Tensor | None) -> int:
    return 0 if p is None or p.is_inference() else p._version


@contextmanager
def _replaced(name: str, values: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Attributes of modules for a while."""
    outer = {module: vars(module).get(name) for module in values}
    for module, value in values.items():
        module.__dict__[name] = value
    try:
        yield
    finally:
        for module, value in outer.items():
            if value is None:
                module.__dict__.pop(name, None)
            else:
                module.__dict__[name] = value


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Try something with a module; its buffers, gradients and the random numbers stay as before."""
    import random

    import numpy as np
    import torch

    buffers = buffers_of([module])
    drawn = random.getstate(), np.random.get_state()
    copies = {key: value.clone() for key, value in buffers.items()}
    grads = [(p, p.grad) for p in module.parameters()]
    with torch.random.fork_rng(devices=()):
        try:
            for parameter, _ in grads:
                parameter.grad = None
            yield
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])
            for parameter, grad in grads:
                parameter.grad = grad
            with torch.no_grad():
                for key, value in buffers.items():
                    key[0]._buffers[key[1]] = value
                    if not _same(value, copies[key]):
                        value.copy_(copies[key])


def _same(one: Tensor, other: Tensor) -> bool:
    import torch

    return one.shape == other.shape and bool(torch.equal(one, other))


@dataclass(frozen=True)
class Judged:
    """What one run of a block shows.

    Attributes:
        reason: why it must not run twice; empty when it may.
        cost: of its forward.
        written: ids of the buffers that it changes or replaces.
        in_place: whether it writes over its input, or gives a view of it.
    """

    reason: str
    cost: int
    written: frozenset[int]
    in_place: bool


def judge(block: nn.Module, x: Tensor) -> Judged:
    """Run a block once on memory of its own, and see what it does.

    The cost follows from operators, not from a clock, so that plans do not change from run to
    run: bytes read and written, and floating-point operations, those of grouped convolutions
    fourfold, as CPUs take for them.
    """
    import torch

    versions = {name: p._version for name, p in block.named_parameters()}
    attributes = _attributes(block)
    random, others = torch.get_rng_state(), random_states()
    x = x.clone()
    version = x._version
    watch = _watch(block, x)
    held = {key: (value, value.clone()) for key, value in buffers_of([block]).items()}
    with watch.mode:
        y = block(x)
    written = frozenset(
        id(value)
        for (module, name), (value, copy) in held.items()
        if module._buffers[name] is not value or not _same(value, copy)
    )
    reason, now = "", _attributes(block)
    changed = sorted(k for k in attributes.keys() | now.keys() if attributes.get(k) != now.get(k))
    parameters = [n for n, p in block.named_parameters() if p._version != versions[n]]
    drawn = not torch.equal(random, torch.get_rng_state()) or others != random_states()
    if drawn or watch.random:
        reason = f"it draws random numbers ({', '.join(watch.random) or 'outside autograd'})"
    elif parameters:
        reason = f"it writes over its parameter {parameters[0]}"
    elif watch.foreign:
        reason = f"it writes over a tensor of others ({', '.join(watch.foreign)})"
    elif changed:
        reason = f"it changes its attribute {changed[0]}"
    # A view of the input counts: a later block may write over that.
    shares = isinstance(y, torch.Tensor) and _address(y) == _address(x)
    return Judged(reason, watch.cost, written, shares or x._version != version)


def _address(x: Tensor) -> int:
    return int(x.untyped_storage().data_ptr())


def random_states() -> tuple[Any, ...]:
    """Of the generators beside torch's that a forward may draw from: Python's and NumPy's."""
    import random

    import numpy as np

    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]


def _attributes(block: nn.Module) -> dict[str, Any]:
    """Plain values and tensors that modules hold as attributes, by their paths."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in block.named_modules()
        for name, value in attributes_of(module).items()
    }


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """A module's own plain values, and its tensors by what tells that they change."""
    import torch

    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if isinstance(value, bool | int | float | str):
            found[name] = value
        elif isinstance(value, torch.Tensor):
            found[name] = (id(value), value._version)
    return found


class _Watched:
    """What a block's operators did."""

    def __init__(self) -> None:
        self.mode: Any = None
        self.random: list[str] = []
        self.foreign: list[str] = []
        self.cost = 0


def _watch(block: nn.Module, x: Tensor) -> _Watched:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    watched = _Watched()
    own = [x, *block.parameters(), *block.buffers()]
    alive: list[Any] = []
    known = {t.untyped_storage().data_ptr() for t in own}

    def tensors(values: Any) -> list[Any]:
        return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            name = str(func)
            for argument, value in zip(func._schema.arguments, args):
                written = argument.alias_info is not None and argument.alias_info.is_write
                for t in tensors(value) if written else ():
                    if t.untyped_storage().data_ptr() not in known and name not in watched.foreign:
                        watched.foreign.append(name)
            if torch.Tag.nondeterministic_seeded in func.tags and name not in watched.random:
                watched.random.append(name)
            out = func(*args, **kwargs)
            made = tensors(out)
            alive.extend(made)
            known.update(t.untyped_storage().data_ptr() for t in made)
            if not func.is_view:
                touched = [*tensors(args), *tensors(kwargs), *made]
                watched.cost += sum(t.numel() * t.element_size() for t in touched)
                counted = flop_registry.get(func._overloadpacket)
                if counted is not None:
                    grouped = name.startswith("aten.convolution") and args[-1] > 1
                    slower = _GROUPED if grouped else 1
                    watched.cost += slower * int(counted(*args, **kwargs, out_val=out))
            return out

    watched.mode = Watch()
    return watched
