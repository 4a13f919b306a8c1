"""A module within a budget: the same gradients and statistics, peaks measured, refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgefuse.errors import EdgefuseError, GateFailed, StageError, UsageError
from edgefuse.memory.remat import compare_step, peak_bytes, rematerialise
from edgefuse.memory.remat.chain import Keep, predict
from edgefuse.memory.remat.wrap import Study


class Residual(nn.Module):
    def __init__(self, channels: int = 4, wide: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(inplace=True),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Observed(nn.Module):
    """Fake quantisation with a moving range: running it twice would move the range twice."""

    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.low.add_(0.1 * (x.min() - self.low))
            self.high.copy_(self.high + 0.1 * (x.max() - self.high))
        scale = float(self.high - self.low) / 255
        return torch.fake_quantize_per_tensor_affine(x, scale, 128, 0, 255)


class Net(nn.Module):
    """A chain with something before it and after it."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.features = nn.Sequential(*(Residual() for _ in range(4)), *more)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.stem(x)).mean((2, 3)))


pytestmark = pytest.mark.usefixtures("seeded")


X = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def loss(y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(y, torch.arange(len(y)))


def steps(net: nn.Module, count: int = 2) -> dict[str, Tensor]:
    """What some steps leave behind: parameters, gradients, buffers."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(count):
        optimiser.zero_grad()
        loss(net(X)).backward()
        optimiser.step()
    grads = {f"grad {n}": p.grad for n, p in net.named_parameters() if p.grad is not None}
    return {**dict(net.state_dict()), **grads}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_the_meter_says_the_same_bytes_every_time(capfd: pytest.CaptureFixture[str]) -> None:
    net = Net()

    def peak() -> int:
        net.zero_grad()
        return peak_bytes(lambda: loss(net(X)).backward())

    assert len({peak() for _ in range(3)}) == 1
    held = torch.zeros(250_000)
    assert peak_bytes(lambda: held.clone()) == 1_000_000
    # And a number or two as tensors.
    assert 2_000_000 <= peak_bytes(lambda: (held + 1) * 2) < 2_000_100
    assert "USDT" not in capfd.readouterr().err


@pytest.mark.parametrize("more", [(), (Observed(), nn.Conv2d(4, 4, 1))], ids=["plain", "observed"])
def test_budgets_are_kept_and_nothing_else_changes(more: tuple[nn.Module, ...]) -> None:
    torch.manual_seed(0)
    net = Net(*copy.deepcopy(more))
    before = copy.deepcopy(net.state_dict())
    random = torch.get_rng_state()
    study = Study(net, X, loss)
    assert same(before, dict(net.state_dict())) and torch.equal(random, torch.get_rng_state())
    assert study.chain.path == "features"
    wanted = steps(copy.deepcopy(net))
    peaks, shares = [], (1.0, 0.8, 0.6, 0.4)
    for share in shares:
        found = study.rematerialise(share)
        assert found.peak_bytes <= found.budget_bytes == int(share * study.eager_peak_bytes)
        assert found.peak_bytes <= found.predicted_peak_bytes <= found.budget_bytes
        assert study.peak_bytes() == found.peak_bytes
        ours = copy.deepcopy(before)
        assert same(wanted, steps(net)), share
        net.load_state_dict(ours)
        net.zero_grad()
        found.remove()
        peaks.append(found.peak_bytes)
    assert peaks == sorted(peaks, reverse=True) and peaks[-1] < peaks[0]
    assert study.peak_bytes() == study.eager_peak_bytes


def test_below_the_least_it_is_refused_with_the_figure() -> None:
    net = Net()
    study = Study(net, X, loss)
    with pytest.raises(GateFailed, match="the least reachable is") as caught:
        study.rematerialise(0.05)
    assert caught.value.exit_code == 1
    least = int(caught.value.message.split("(")[1].split(" bytes")[0].replace(",", ""))
    assert study.rematerialise(least).peak_bytes <= least
    assert not any("forward" in vars(m) for m in Net().modules())


class Counts(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sigmoid(x) * self.calls


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (nn.Dropout(0.5), "it draws random numbers"),
        (Counts(), "it changes its attribute calls"),
    ],
)
def test_what_may_not_run_twice_is_kept_by_name(block: nn.Module, reason: str) -> None:
    net = Net(block, Residual())
    plain = copy.deepcopy(net)
    found = rematerialise(net, X, budget=0.6, loss=loss)
    ((name, said),) = found.kept
    assert name == "features.4" and said.startswith(reason)
    assert "features.4" not in found.recomputed
    torch.manual_seed(5)
    wanted = steps(plain)
    torch.manual_seed(5)
    assert isinstance(block, Counts) or same(wanted, steps(net))


def test_what_writes_over_its_input_runs_again_with_what_made_it() -> None:
    """The flat networks of old: every ReLU works in place."""
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
        ]
    net = Net()
    net.features = nn.Sequential(*layers)
    study = Study(net, X, loss)
    in_place = [k for k, block in enumerate(study.blocks) if block.in_place]
    assert len(in_place) == 5 and not any(block.kept_because for block in study.blocks)
    wanted = steps(copy.deepcopy(net))
    found = study.rematerialise(0.6)
    assert found.peak_bytes <= found.budget_bytes
    assert {study.blocks[k].name for k in in_place} & set(found.recomputed)
    assert same(wanted, steps(net))


def test_a_buffer_that_two_blocks_share_keeps_both() -> None:
    shared = nn.BatchNorm2d(4)
    first, second = Residual(), Residual()
    first.body[7] = second.body[7] = shared
    net = nn.Sequential(nn.Conv2d(3, 4, 1), first, second)
    study = Study(net, X)
    kept = [block.name for block in study.blocks if block.kept_because]
    assert kept == ["1", "2"]


def random_net() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout(0.1)) for _ in range(3)))


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(x + self.one(x)) + x


@pytest.mark.parametrize(
    ("net", "budget", "kind", "message"),
    [
        (random_net, 0.5, GateFailed, "the training step is random"),
        (Skips, 0.5, UsageError, "no chain of blocks found"),
        (Net, 1.5, UsageError, "no share in"),
        (Net, 0, UsageError, "no number of bytes"),
    ],
)
def test_bad_input_has_one_message(
    net: Callable[[], nn.Module], budget: Any, kind: type[EdgefuseError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        rematerialise(net(), X, budget=budget)


@pytest.mark.parametrize("moved", ["module", "input"])
def test_another_device_than_the_cpu_is_refused(moved: str) -> None:
    net = nn.Sequential(Residual(), Residual())
    x = torch.randn(2, 4, 8, 8)
    if moved == "module":
        net.to("meta")
    else:
        x = x.to("meta")
    what = "0.body.0.weight" if moved == "module" else "input 0"
    for way in (
        lambda: rematerialise(net, x, budget=0.5),
        lambda: compare_step(net, x, budgets=(0.5,), rounds=0, compiled=False),
    ):
        with pytest.raises(UsageError, match=f"{what} lies on meta") as caught:
            way()
        assert caught.value.exit_code == 2 and '.to("cpu")' in (caught.value.hint or "")


def test_what_repeats_nothing_is_not_said_to_run_twice() -> None:
    net = nn.Sequential(*(Residual() for _ in range(3)))
    study = Study(net, torch.randn(8, 4, 48, 48))
    grouped = [[m.name for m in block.modes].index("keep, in groups") for block in study.blocks]
    for block, mode in zip(study.blocks, grouped):
        plain, other = block.modes[0], block.modes[mode]
        assert other.cost == 0 and other.saved_bytes == plain.saved_bytes
        assert other.backward_bytes < plain.backward_bytes
    items = tuple(Keep(place, mode) for place, mode in enumerate(grouped))
    peak = predict(study.blocks, items, study.around)
    assert peak < study.eager_peak_bytes
    found = study.rematerialise(peak)
    assert found.peak_bytes <= peak
    assert found.cost_share == 0 and found.recomputed == () and found.lightened == ()


def test_the_plan_holds_for_its_shapes_only() -> None:
    net = Net()
    rematerialise(net, X, budget=0.6, loss=loss)
    net(X[:1]).sum().backward()
    with torch.no_grad():
        net(torch.cat([X, X]))
    with pytest.raises(StageError, match="at most"):
        net(torch.cat([X, X]))
    with pytest.raises(UsageError, match="replaced already"):
        rematerialise(net, X, budget=0.6)


def test_a_step_beside_others() -> None:
    net = Net()
    before = copy.deepcopy(net.state_dict())
    told: list[tuple[int, int, str]] = []
    rows = compare_step(
        *(net, X), budgets=(0.5, 0.01), loss=loss, rounds=2, compiled=False,
        progress=lambda *said: told.append(said),
    )  # fmt: skip
    assert [said[:2] for said in told if said[2] == "ways"] == [(k, 4) for k in (1, 2, 3, 4)]
    assert [said[:2] for said in told if said[2] == "timed steps"] == [(k, 6) for k in range(6)]
    assert [row.name for row in rows] == [
        "eager", "checkpoint each block", "edgefuse 50%", "edgefuse 1%",
    ]  # fmt: skip
    eager, checkpoint, ours, refused = rows
    assert eager.peak_bytes and checkpoint.peak_bytes and ours.peak_bytes and ours.budget_bytes
    assert ours.peak_bytes <= ours.budget_bytes < eager.peak_bytes
    assert checkpoint.peak_bytes < eager.peak_bytes
    assert eager.time_ms and ours.spread_ms and ours.spread_ms[0] <= ours.spread_ms[1]
    assert refused.refused and refused.peak_bytes is None and refused.time_ms is None
    assert same(before, dict(net.state_dict()))
    assert ours.to_json()["peak_bytes"] == ours.peak_bytes
