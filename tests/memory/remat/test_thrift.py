"""Layers in fewer bytes at a time: torch's bits, lower peaks, torch's own way where in doubt."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgefuse.memory.remat import peak_bytes, thrift
from edgefuse.memory.remat.chain import Keep, Mode, Segment
from edgefuse.memory.remat.rows import covered, neighbours, rectifiers
from edgefuse.memory.remat.segments import runner
from edgefuse.memory.remat.thrift import Convolve, convolutions, rectify, replaced

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture
def one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of one sample, however small."""
    monkeypatch.setattr(thrift, "_GROUP_BYTES", 1)


def depthwise(**settings: Any) -> nn.Conv2d:
    return nn.Conv2d(16, 16, 3, padding=1, groups=16, **settings)


def layers() -> list[nn.Module]:
    return [
        nn.Conv2d(4, 16, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        depthwise(bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 4, 1),
    ]


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


@pytest.mark.usefixtures("one_sample")
@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"stride": 2}, {"dilation": 2}])
def test_a_convolution_in_groups_is_the_same_to_the_bit(settings: dict[str, Any]) -> None:
    layer, x = depthwise(**settings), torch.randn(3, 16, 20, 20)
    how = convolutions([layer], [x])[layer]
    assert [len(x[part]) for part in how.groups(x)] == [1, 1, 1]
    assert same(trained(layer, layer, x), trained(layer, how, x))
    other = torch.randn(2, 16, 20, 20)
    assert how.groups(other) == [slice(0, 2)]
    assert same(trained(layer, layer, other), trained(layer, how, other))
    turned = x.contiguous(memory_format=torch.channels_last)
    assert len(how.groups(turned)) == 1
    assert same(trained(layer, layer, turned), trained(layer, how, turned))
    layer.weight.requires_grad_(False)
    assert same(trained(layer, layer, x), trained(layer, how, x))


@pytest.mark.usefixtures("one_sample")
def test_its_peak_is_lower() -> None:
    layer, x = depthwise(), torch.randn(8, 16, 40, 40, requires_grad=True)
    how = convolutions([layer], [x])[layer]
    grad = torch.randn(8, 16, 40, 40)

    def peak(forward: Any) -> int:
        layer.zero_grad()
        return peak_bytes(lambda: torch.autograd.grad(forward(x), [x, layer.weight], grad))

    size = x.numel() * x.element_size()
    assert peak(how) < peak(layer) - size // 2


def test_under_autocast_torch_chooses_the_numbers() -> None:
    layer, x = depthwise(), torch.randn(2, 16, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = Convolve(layer, x.shape, 1)(x)
        assert y.dtype == torch.bfloat16 and torch.equal(y, layer(x))


@pytest.mark.usefixtures("one_sample")
def test_what_is_not_the_same_to_the_bit_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = depthwise(), torch.randn(3, 16, 12, 12)
    assert convolutions([layer], [x])
    right = torch.ops.aten.convolution

    def wrong(x: Tensor, *rest: Any) -> Tensor:
        y: Tensor = right(x, *rest)
        return y if len(x) > 1 else y * (1 + 2**-20)

    thrift._convolution.cache_clear()
    monkeypatch.setattr(torch.ops.aten, "convolution", wrong)
    assert not convolutions([layer], [x])
    thrift._convolution.cache_clear()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Conv2d(16, 16, 3, padding="same", groups=16),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, padding_mode="circular"),
        nn.Identity(),
    ],
)
def test_other_layers_are_left_alone(layer: nn.Module) -> None:
    assert not convolutions([layer], [torch.randn(2, 16, 8, 8)])


def test_a_watched_layer_is_left_alone() -> None:
    layer = depthwise()
    layer.register_forward_hook(lambda *_: None)
    assert not convolutions([layer], [torch.randn(2, 16, 8, 8)])
    row = layers()
    row[3] = layer
    assert rectifiers(neighbours(row), [row[1], row[4]]) == ([row[2], row[5]], {row[5]})
    assert covered(neighbours(row), [row[1], row[4]]) == {row[1]}


def test_what_is_used_twice_is_no_neighbour() -> None:
    conv, norm, shared = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()
    net = nn.Sequential(conv, norm, shared, nn.Conv2d(4, 4, 1), shared)
    assert neighbours([net]) == [(conv, norm)]


def test_a_rectifier_writes_over_its_gradient_alone() -> None:
    held, given = torch.randn(50_000, requires_grad=True), torch.randn(50_000)

    def run(relu: Any) -> Tensor:
        (found,) = torch.autograd.grad(relu(held * 2), held, given.clone())
        return found

    assert torch.equal(run(rectify), run(torch.relu))
    size = given.numel() * given.element_size()
    assert peak_bytes(lambda: run(rectify)) <= peak_bytes(lambda: run(torch.relu)) - size


@pytest.mark.usefixtures("one_sample")
@pytest.mark.parametrize(
    "items",
    [
        [Keep(k, 0) for k in range(7)],
        [Segment(0, 7, tuple(Keep(k, 0) for k in range(7)))],
        [Segment(0, 4, tuple(Keep(k, 0) for k in range(4))), *(Keep(k, 0) for k in (4, 5, 6))],
        [
            Segment(
                0,
                7,
                (
                    Segment(0, 4, tuple(Keep(k, 0) for k in range(4))),
                    Segment(4, 7, (Segment(4, 6, (Keep(4, 0), Keep(5, 0))), Keep(6, 0))),
                ),
            )
        ],
    ],
    ids=["kept", "one segment", "a part", "nested"],
)
def test_rows_of_such_layers_are_the_same_to_the_bit(items: list[Any]) -> None:
    """Norms write over the convolutions' results, at every depth, and only where nobody reads."""
    net, x = nn.Sequential(*layers()), torch.randn(3, 4, 20, 20)
    plain = copy.deepcopy(net)
    wanted = trained(plain, plain, x)
    row, inputs = list(net), [x]
    for layer in copy.deepcopy(row)[:-1]:
        inputs.append(layer(inputs[-1]).detach())
    others = replaced(row, inputs)
    assert set(others) == {row[2], row[3], row[5]}
    for layer, forward in others.items():
        layer.__dict__["forward"] = forward
    assert same(wanted, trained(net, runner(row, items), x))


def test_a_mode_is_beaten_only_where_it_is_no_better_at_all() -> None:
    plain = Mode("keep", 40, 2, 50, 20)
    assert plain.beaten_by(plain)
    assert not Mode("keep, with thrift", 40, 2, 48, 20).beaten_by(plain)
    assert not Mode("light", 10, 2, 60, 60, 5).beaten_by(plain)
    assert Mode("useless", 40, 2, 50, 20, 5).beaten_by(plain)
