"""Plans in other hands: copied, pickled, changed since, interrupted, refused."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgefuse.errors import StageError, UsageError
from edgefuse.memory.remat import rematerialise
from edgefuse.memory.remat.chain import Item, Keep, Segment
from edgefuse.memory.remat.find import find_chain
from edgefuse.memory.remat.frozen import judge, random_states, undisturbed
from edgefuse.memory.remat.grouped import Grouped, in_groups
from edgefuse.memory.remat.guard import Guarded
from edgefuse.memory.remat.segments import runner

pytestmark = pytest.mark.usefixtures("seeded")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(4, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.BatchNorm2d(16),
            nn.ReLU6(),
            nn.Conv2d(16, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


X = torch.randn(2, 4, 20, 20, generator=torch.Generator().manual_seed(3))


def chain() -> nn.Sequential:
    return nn.Sequential(Block(), Block(), Block())


def trained(net: nn.Module, x: Tensor = X) -> list[Tensor]:
    net.zero_grad()
    net(x).square().sum().backward()
    return [p.grad for p in net.parameters() if p.grad is not None] + list(net.buffers())


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


def pickled(net: nn.Module) -> nn.Module:
    found: nn.Module = pickle.loads(pickle.dumps(net))  # noqa: S301
    return found


@pytest.mark.parametrize("made", [copy.deepcopy, pickled])
def test_a_copy_runs_its_own_layers_by_the_plan(made: Callable[[nn.Module], nn.Module]) -> None:
    net = chain()
    plain = copy.deepcopy(net)
    rematerialise(net, X, budget=0.5)
    twin = made(net)
    guard = vars(twin)["forward"]
    assert isinstance(guard, Guarded) and guard.parent is twin
    assert same(trained(plain), trained(twin))
    assert all(p.grad is None for p in net.parameters())
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
        assert torch.equal(twin.eval()(X), X) and not torch.equal(net.eval()(X), X)


def double(net: nn.Module) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)


def swap(net: nn.Module) -> None:
    net.load_state_dict({k: 2 * v for k, v in net.state_dict().items()}, assign=True)


ONE_SEGMENT: list[Item] = [Segment(0, 3, (Keep(0, 0), Keep(1, 0), Keep(2, 0)))]


@pytest.mark.parametrize("change", [double, swap])
@pytest.mark.parametrize("kind", ["kept", "again in groups", "again"])
def test_parameters_that_change_before_backward_are_refused(kind: str, change: Any) -> None:
    """SiLU is no part of a row: the segment runs again as torch's checkpoint does."""
    row = [nn.Conv2d(4, 4, 1), nn.SiLU() if kind == "again" else nn.ReLU(), nn.Conv2d(4, 4, 1)]
    items = [Keep(k, 0) for k in range(3)] if kind == "kept" else ONE_SEGMENT
    net = nn.Sequential(*row)
    forward = runner(row, items, [X, X, X])
    total = forward(X).sum()
    change(net)
    with pytest.raises((StageError, RuntimeError), match=r"chang|modified"):
        total.backward()


def test_parameters_lent_for_one_call_are_refused() -> None:
    net = chain()
    rematerialise(net, X, budget=0.5)
    lent = {name: (2 * p.detach()).requires_grad_() for name, p in net.named_parameters()}
    total = torch.func.functional_call(net, lent, (X,)).sum()
    with pytest.raises(StageError, match="replaced or changed"):
        total.backward()


def append(net: nn.Sequential) -> None:
    net.append(Block())


def replace(net: Any) -> None:
    net[1].body[0][2] = nn.Identity()


def hook(net: Any) -> None:
    net[0].body[0].register_forward_hook(lambda *_: None)


def unfreeze(net: Any) -> None:
    net[0].body[1].weight.requires_grad_(True)


def norm_trains(net: Any) -> None:
    net[2].body[2].train()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (append, "its modules are others"),
        (replace, "its modules are others"),
        (hook, "or have hooks by now"),
        (unfreeze, "frozen when planned now trains"),
        (norm_trains, "planned in eval mode, the module now trains"),
    ],
)
def test_a_plan_is_for_the_modules_it_was_made_of(
    change: Callable[[nn.Sequential], None], said: str
) -> None:
    net: Any = chain()
    net[0].body[1].weight.requires_grad_(False)
    net[2].body[2].eval()
    found = rematerialise(net, X, budget=0.5)
    change(net)
    with pytest.raises(StageError, match=said):
        net(X)
    with torch.no_grad():
        wanted = net(X)
    found.remove()
    with torch.no_grad():
        assert wanted.shape == net(X).shape
    net(X).sum().backward()


def test_gradients_of_an_input_that_had_none_are_refused() -> None:
    net = chain()
    rematerialise(net, X, budget=0.5)
    with pytest.raises(StageError, match="this one asks for one"):
        net(X.clone().requires_grad_(True))


def test_a_removed_plan_leaves_the_next_one_in_place() -> None:
    net = chain()
    first = rematerialise(net, X, budget=0.8)
    first.remove()
    rematerialise(net, X, budget=0.5)
    held = vars(net)["forward"]
    first.remove()
    assert vars(net)["forward"] is held


@pytest.mark.parametrize("made", ["a norm of its own", "channels last", "eval meanwhile", "twice"])
def test_segments_run_again_to_the_bit(made: str) -> None:
    """What a row in groups does not serve, run again by torch's checkpoint."""
    own = nn.BatchNorm2d(4, momentum=None if made == "eval meanwhile" else 0.1)
    if made == "a norm of its own":
        own.track_running_stats = False
    row = [nn.Conv2d(4, 4, 3, padding=1), own, nn.SiLU()]
    x = X.contiguous(memory_format=torch.channels_last) if made == "channels last" else X
    net = nn.Sequential(*row)
    plain, forward = copy.deepcopy(net), runner(row, ONE_SEGMENT)
    for each, run in ((plain, plain), (net, forward)):
        total = run(x).square().sum()
        if made == "eval meanwhile":
            each.eval()
        for _ in range(2 if made == "twice" else 1):
            total.backward(retain_graph=True)
    grads = [[p.grad for p in each.parameters()] for each in (plain, net)]
    assert same(*grads) and same(list(plain.buffers()), list(net.buffers()))


def test_autocast_runs_again_to_the_bit() -> None:
    net = chain()
    plain = copy.deepcopy(net)
    assert rematerialise(net, X, budget=0.5).lightened
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(trained(plain), trained(net))


def test_a_checkpoint_around_a_plan() -> None:
    net = chain()
    plain = copy.deepcopy(net)
    rematerialise(net, X, budget=0.5)
    for each in (plain, net):
        checkpoint(each, X, use_reentrant=False).square().sum().backward()
    assert same([p.grad for p in plain.parameters()], [p.grad for p in net.parameters()])


def test_one_value_a_channel_is_refused_as_torch_does() -> None:
    row = [nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.SiLU()]
    forward = runner(row, ONE_SEGMENT)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        forward(torch.randn(1, 4, 1, 1))
    with pytest.raises(ValueError, match="expected 4D input"):
        forward(torch.randn(4, 4, 4))


def test_an_activation_in_place_writes_over_what_others_read() -> None:
    """x + body(x) reads the rectified x, if body begins so."""

    def kinds(*row: nn.Module) -> list[bool]:
        inputs = [torch.randn(2, 4, 8, 8) for _ in row]
        return [isinstance(step, Grouped) for step in in_groups(row, inputs)]

    def conv() -> nn.Module:
        return nn.Conv2d(4, 4, 1)

    assert kinds(nn.ReLU(), conv()) == [True]
    assert kinds(nn.ReLU(True), conv()) == [False, False]
    assert kinds(nn.Identity(), nn.ReLU(True), conv()) == [False, False, False]
    assert kinds(conv(), nn.ReLU(True), conv()) == [False, True]
    x = X.clone()
    row = [nn.ReLU(True), conv()]
    runner(row, [Keep(0, 0), Keep(1, 0)], [X, X])(x)
    assert torch.equal(x, X.relu())


def test_convolutions_of_one_sample_without_a_batch_run_as_they_do() -> None:
    conv = nn.Conv2d(4, 4, 3, groups=4)
    assert in_groups([conv], [torch.randn(4, 8, 8)]) == [conv]


def test_what_somebody_put_in_place_of_a_forward_runs() -> None:
    row = [nn.ReLU(), nn.Conv2d(4, 4, 1)]
    (step,) = in_groups(row, [X, X])
    row[1].__dict__["forward"] = lambda x: x
    assert torch.equal(step(X), X.relu())


def test_hooks_of_all_modules_are_called() -> None:
    row, seen = [nn.ReLU(), nn.Conv2d(4, 4, 1)], []
    (step,) = in_groups(row, [X, X])
    added = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))
    try:
        step(X)
    finally:
        added.remove()
    assert seen == row


class Draws(nn.Module):
    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x * float(self.draw())


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_of_others_bar_a_block_and_stay(draw: Callable[[], Any]) -> None:
    block = Draws(draw)
    before = random_states()
    with undisturbed(block):
        assert "draws random numbers" in judge(block, X).reason
        assert random_states() != before
    assert random_states() == before


class Does(nn.Module):
    """A chain, but for what its forward does beside."""

    calls = 0

    def __init__(self, more: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        if self.more == "an operator":
            torch.rand(())
        elif self.more == "a draw":
            random.random()
        elif self.more == "an attribute":
            self.calls += 1
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("more", ["an operator", "a draw", "an attribute", "nothing"])
def test_a_forward_that_does_more_is_no_chain(more: str) -> None:
    net = Does(more)
    found = find_chain(net, lambda: net(X))
    assert (found.parent is net) == (more == "nothing")


def frozen(net: nn.Sequential) -> nn.Module:
    return nn.Sequential(net.requires_grad_(False), nn.Conv2d(4, 4, 1))


@pytest.mark.parametrize(
    ("made", "budget", "message"),
    [
        (frozen, 0.5, "takes no part in the backward"),
        (lambda net: net.requires_grad_(False), 0.5, "nothing trains"),
        (lambda net: net, float("nan"), "no number of bytes"),
        (lambda net: net, "40%", "no number of bytes"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_sentence(
    made: Callable[[nn.Sequential], nn.Module], budget: Any, message: str
) -> None:
    net = made(chain())
    with pytest.raises(UsageError, match=message):
        rematerialise(net, X, budget=budget)
    assert not any("forward" in vars(module) for module in net.modules())


def test_the_example_stays_as_it_is() -> None:
    net = nn.Sequential(nn.SiLU(inplace=True), *chain())
    x = X.clone()
    rematerialise(net, x, budget=0.9).remove()
    assert torch.equal(x, X)
    leaf = X.clone().requires_grad_(True)
    rematerialise(chain(), leaf, budget=0.9)
    assert leaf.grad is None
