"""Layers in groups of samples: torch's bits, lower peaks, torch's own way where in doubt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgefuse.memory.remat import grouped, peak_bytes
from edgefuse.memory.remat.chain import Item, Keep, Mode, Segment
from edgefuse.memory.remat.grouped import Grouped, again_in_groups, in_groups
from edgefuse.memory.remat.segments import runner
from edgefuse.memory.remat.stages import Stage, stages_of

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture
def one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of one sample, however small."""
    monkeypatch.setattr(grouped, "_GROUP_BYTES", 1)


def depthwise(**settings: Any) -> nn.Conv2d:
    return nn.Conv2d(16, 16, 3, **{"padding": 1, "groups": 16, **settings})


def layers(activation: type[nn.Module] = nn.ReLU) -> list[nn.Module]:
    return [
        nn.Conv2d(4, 16, 1, bias=False),
        nn.BatchNorm2d(16),
        activation(),
        depthwise(bias=False),
        nn.BatchNorm2d(16),
        activation(),
        nn.Conv2d(16, 4, 1),
    ]


def inputs_of(row: list[nn.Module], x: Tensor) -> list[Tensor]:
    found = [x]
    for layer in copy.deepcopy(row)[:-1]:
        found.append(layer(found[-1].clone()).detach())
    return found


def trained(net: nn.Module, forward: Any, x: Tensor) -> list[Tensor]:
    """Output, gradients and buffers of one step."""
    net.zero_grad()
    given = x.clone().requires_grad_(True)
    y = forward(given.clone())
    y.square().sum().backward()
    grads = [p.grad for p in net.parameters()]
    assert given.grad is not None
    return [y.detach(), given.grad, *(g for g in grads if g is not None), *net.buffers()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


def never(x: Tensor) -> Tensor:
    raise AssertionError("runs otherwise")


def ours(row: list[nn.Module], x: Tensor, otherwise: Callable[[Tensor], Tensor] = never) -> Grouped:
    found = again_in_groups(row, inputs_of(row, x), otherwise)
    assert isinstance(found, Grouped)
    return found


ROWS: dict[str, Callable[[], list[nn.Module]]] = {
    "an inverted residual": layers,
    "ReLU6": lambda: layers(nn.ReLU6),
    "begins with a norm": lambda: layers()[1:],
    "begins with an activation": lambda: layers()[2:],
    "without norms": lambda: [depthwise(), nn.ReLU(True), depthwise(), nn.ReLU6(), depthwise()],
    "without activations": lambda: [nn.Conv2d(4, 16, 1), nn.BatchNorm2d(16), depthwise(stride=2)],
    "one convolution": lambda: [depthwise(dilation=2)],
}  # fmt: skip


@pytest.mark.usefixtures("one_sample")
@pytest.mark.parametrize("kind", ROWS)
def test_what_is_computed_again_is_the_same_to_the_bit(kind: str) -> None:
    row = ROWS[kind]()
    net, channels = nn.Sequential(*row), 4 if isinstance(row[0], nn.Conv2d) else 16
    x = torch.randn(3, row[0].in_channels if isinstance(row[0], nn.Conv2d) else channels, 20, 20)
    plain = copy.deepcopy(net)
    forward = ours(row, x)
    assert forward.samples == 1 and len(list(forward.groups(3))) == 3
    for batch in (x, torch.randn_like(x), torch.randn_like(x)[:2]):
        assert same(trained(plain, plain, batch), trained(net, forward, batch))


@pytest.mark.usefixtures("one_sample")
@pytest.mark.parametrize("frozen", ["weights", "norms", "all but the last", "input"])
def test_only_gradients_that_are_asked_for(frozen: str) -> None:
    row, x = layers(), torch.randn(2, 4, 12, 12)
    net = nn.Sequential(*row)
    for place, layer in enumerate(row):
        for name, parameter in layer.named_parameters():
            norm = isinstance(layer, nn.BatchNorm2d)
            parameter.requires_grad_(
                {
                    "weights": norm or name == "bias",
                    "norms": not norm,
                    "all but the last": place == len(row) - 1,
                    "input": True,
                }[frozen]
            )
    plain, forward = copy.deepcopy(net), ours(row, x)
    if frozen != "input":
        assert same(trained(plain, plain, x), trained(net, forward, x))
    plain(x).sum().backward()
    forward(x).sum().backward()
    for p, q in zip(plain.parameters(), net.parameters()):
        assert (p.grad is None) == (q.grad is None) == (not p.requires_grad)
        if p.grad is not None and q.grad is not None:
            assert torch.equal(p.grad, q.grad)


@pytest.mark.usefixtures("one_sample")
def test_backward_twice_adds_twice() -> None:
    row, x = layers(), torch.randn(2, 4, 12, 12)
    net = nn.Sequential(*row)
    plain, forward = copy.deepcopy(net), ours(row, x)
    for each in (plain, forward):
        total = each(x).square().sum()
        total.backward(retain_graph=True)
        total.backward()
    assert same([p.grad for p in plain.parameters()], [p.grad for p in net.parameters()])
    assert same(list(plain.buffers()), list(net.buffers()))


@pytest.mark.usefixtures("one_sample")
def test_peaks_are_lower_and_less_is_held() -> None:
    row, x = layers(), torch.randn(8, 4, 40, 40)
    net, wide = nn.Sequential(*row), 8 * 16 * 40 * 40 * 4
    held = [peak_bytes(lambda forward=f: forward(x)) for f in (net, ours(row, x))]  # type: ignore[misc]
    assert held[1] < held[0] - 2 * wide
    conv = [depthwise()]
    given = inputs_of(layers(), x)[3].requires_grad_(True)
    kept, grad = in_groups(conv, [given.detach()])[0], torch.randn(8, 16, 40, 40)
    assert isinstance(kept, Grouped) and not kept.runs_again

    def step(forward: Any) -> int:
        conv[0].zero_grad()
        return peak_bytes(
            lambda: torch.autograd.grad(forward(given), [given, conv[0].weight], grad)
        )

    assert step(kept) < step(conv[0]) - wide // 2


def test_what_is_kept_writes_only_over_what_nobody_reads() -> None:
    row, x = layers(), torch.randn(3, 4, 20, 20)
    steps = in_groups(row, inputs_of(row, x))
    assert [type(step) for step in steps] == [
        nn.Conv2d,
        nn.BatchNorm2d,
        Grouped,
        nn.BatchNorm2d,
        Grouped,
    ]
    assert [step.over for step in steps if isinstance(step, Grouped)] == [row[1], row[4]]
    row[4].register_forward_hook(lambda *_: None)
    steps = in_groups(row, inputs_of(row, x))
    assert [step.over for step in steps if isinstance(step, Grouped)] == [row[1], None]
    alone = in_groups(row[2:4], inputs_of(row, x)[2:4])
    assert len(alone) == 1 and isinstance(alone[0], Grouped) and alone[0].over is None
    given = torch.randn(3, 16, 20, 20)
    copied = given.clone()
    alone[0](given)
    assert torch.equal(given, copied)


@pytest.mark.usefixtures("one_sample")
@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.SiLU])
@pytest.mark.parametrize(
    "items",
    [
        [Keep(k, 0) for k in range(7)],
        [Segment(0, 7, tuple(Keep(k, 0) for k in range(7)))],
        [Segment(0, 4, tuple(Keep(k, 0) for k in range(4))), *(Keep(k, 0) for k in (4, 5, 6))],
        [
            Keep(0, 0),
            Segment(1, 4, tuple(Keep(k, 0) for k in (1, 2, 3))),
            Segment(4, 7, tuple(Keep(k, 0) for k in (4, 5, 6))),
        ],
    ],
    ids=["kept", "one segment", "a part", "all convolutions kept"],
)  # fmt: skip
def test_plans_of_layers_are_the_same_to_the_bit(
    items: list[Item], activation: type[nn.Module]
) -> None:
    """In itself, and within a segment that runs again as a whole."""
    row, x = layers(activation), torch.randn(3, 4, 20, 20)
    net = nn.Sequential(*row)
    plain = copy.deepcopy(net)
    wanted = trained(plain, plain, x)
    before = copy.deepcopy(net.state_dict())
    forward = runner(row, items, inputs_of(row, x))
    assert same(wanted, trained(net, forward, x))
    net.load_state_dict(before)
    net.__dict__["forward"] = forward
    outer = runner([net], [Segment(0, 1, (Keep(0, 0),))])
    assert same(wanted, trained(net, outer, x))


def test_under_autocast_torch_chooses_the_numbers() -> None:
    row, x = layers(), torch.randn(2, 4, 8, 8)
    forward = ours(row, x, otherwise=nn.Sequential(*row))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = forward(x)
        assert y.dtype == torch.bfloat16 and torch.equal(y, nn.Sequential(*row)(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda row, x: x.contiguous(memory_format=torch.channels_last),
        lambda row, x: torch.cat([x, x]),
        lambda row, x: x[:, :, :-1].contiguous(),
        lambda row, x: (row[4].eval(), x)[1],
        lambda row, x: (row[2].register_forward_hook(lambda *_: None), x)[1],
        lambda row, x: (nn.utils.parametrizations.weight_norm(row[3]), x)[1],
    ],
    ids=[
        "layout",
        "more samples",
        "another shape",
        "a norm in eval",
        "a hook",
        "a parametrisation",
    ],
)
def test_what_changed_since_runs_as_torch_runs_it(change: Any) -> None:
    row, x = layers(), torch.randn(2, 4, 8, 8)
    called = []
    forward = ours(row, x, otherwise=lambda given: called.append(1) or nn.Sequential(*row)(given))  # type: ignore[func-returns-value]
    forward(change(row, x))
    assert called == [1]


@pytest.mark.usefixtures("one_sample")
def test_where_groups_give_other_bits_all_samples_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    row, x = layers(), torch.randn(3, 4, 12, 12)
    right = Stage.convolve
    monkeypatch.setattr(
        Stage, "convolve", lambda s, z: right(s, z) * (1 if len(z) == 3 else 1 + 2**-20)
    )
    net = nn.Sequential(*row)
    plain, forward = copy.deepcopy(net), ours(row, x)
    assert forward.samples == 3
    assert same(trained(plain, plain, x), trained(net, forward, x))


@pytest.mark.usefixtures("one_sample")
def test_what_is_not_the_same_to_the_bit_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    row, x = layers(), torch.randn(3, 4, 12, 12)
    right = Stage.convolve

    def wrong(stage: Stage, z: Tensor) -> Tensor:
        return right(stage, z) * (1 + 2**-20)

    monkeypatch.setattr(Stage, "convolve", wrong)
    assert again_in_groups(row, inputs_of(row, x), never) is never
    assert in_groups(row, inputs_of(row, x)) == row


def test_a_trial_leaves_the_statistics_alone() -> None:
    row, x = layers(), torch.randn(3, 4, 12, 12)
    given = inputs_of(row, x)
    before = copy.deepcopy(nn.Sequential(*row).state_dict())
    again_in_groups(row, given, never)
    in_groups(row, given)
    after = nn.Sequential(*row).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for layer in row for p in layer.parameters())


@pytest.mark.parametrize(
    "row",
    [
        [nn.Conv2d(16, 16, 3, padding="same", groups=16)],
        [depthwise(padding_mode="circular")],
        [nn.Identity(), depthwise()],
        [nn.BatchNorm2d(16), nn.BatchNorm2d(16), depthwise()],
        [nn.ReLU(), nn.BatchNorm2d(16), depthwise()],
        [nn.BatchNorm2d(16).eval(), depthwise()],
        [nn.BatchNorm2d(16, affine=False), depthwise()],
        [depthwise(), nn.BatchNorm2d(16)],
        [depthwise()] * 2,
        [],
    ],
)
def test_other_rows_are_no_stages(row: list[nn.Module]) -> None:
    assert stages_of(row) is None
    given = [torch.randn(2, 16, 8, 8) for _ in row]
    if row:
        assert again_in_groups(row, given, never) is never


def test_groups_fit_into_the_cache() -> None:
    """4 channels of what the first convolution reads, and four times 16: 272 bytes a pixel."""
    row, x = [*layers()[:-1], nn.Conv2d(16, 4, 1, bias=False)], torch.randn(64, 4, 32, 32)
    assert ours(row, x).samples == 3 * 2**20 // (272 * 32 * 32)
    assert ours(row, torch.randn(1, 4, 200, 200)).samples == 1


def test_a_mode_is_beaten_only_where_it_is_no_better_at_all() -> None:
    plain = Mode("keep", 40, 2, 50, 20)
    assert plain.beaten_by(plain)
    assert not Mode("keep, in groups", 40, 2, 48, 20).beaten_by(plain)
    assert not Mode("light", 10, 2, 60, 60, 5).beaten_by(plain)
    assert Mode("useless", 40, 2, 50, 20, 5).beaten_by(plain)
