"""GPTQ's rounding against rounding to nearest and against every other choice."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from edgefuse.quant.weights.gptq import round_channels, round_rows

DAMPING = 0.01


def drawn(rows: int, columns: int, samples: int, seed: int, mixed: bool) -> tuple[Tensor, Tensor]:
    """Weights, and H = E[x x^T] of inputs that go together where ``mixed``."""
    source = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, columns, generator=source)
    inputs = torch.randn(samples, columns, generator=source, dtype=torch.float64)
    if mixed:
        # A few common causes, as channels of a picture have.
        few = max(1, columns // 8)
        causes = torch.randn(samples, few, generator=source, dtype=torch.float64)
        shares = torch.randn(few, columns, generator=source, dtype=torch.float64)
        inputs = causes @ shares + 0.3 * inputs
    return weights, inputs.T @ inputs / samples


def steps_of(weights: Tensor, bits: int = 4) -> Tensor:
    """A coarse grid, so that rounding matters."""
    return weights.abs().amax(-1) / (2 ** (bits - 1) - 1)


def nearest(weights: Tensor, scales: Tensor) -> Tensor:
    return torch.clamp(torch.round(weights.double() / scales[:, None]), -127, 127)


def error(weights: Tensor, integers: Tensor, scales: Tensor, hessian: Tensor) -> Tensor:
    off = weights.double() - integers.double() * scales.double()[:, None]
    if hessian.ndim == 3:
        return torch.einsum("ok,okl,ol->o", off, hessian, off)
    return torch.einsum("ok,kl,ol->o", off, hessian, off)


def is_integer(values: Tensor) -> bool:
    return bool((values == values.round()).all() and values.abs().max() <= 127)


@pytest.mark.parametrize("columns", [16, 63, 64, 65, 150])
def test_inputs_that_go_together_take_back_errors(columns: int) -> None:
    weights, hessian = drawn(24, columns, 4000, columns, mixed=True)
    scales = steps_of(weights)
    found = round_rows(weights, hessian, scales, DAMPING)
    assert is_integer(found)
    plain = error(weights, nearest(weights, scales), scales, hessian)
    held = error(weights, found, scales, hessian)
    assert held.sum() < 0.6 * plain.sum()
    assert (held < plain).double().mean() > 0.9


def test_a_block_does_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, hessian = drawn(8, 150, 1000, 3, mixed=True)
    scales = steps_of(weights)
    whole = round_rows(weights, hessian, scales, DAMPING)
    monkeypatch.setattr("edgefuse.quant.weights.gptq._BLOCK", 7)
    assert torch.equal(round_rows(weights, hessian, scales, DAMPING), whole)


def test_white_inputs_leave_rounding_to_nearest() -> None:
    weights, _ = drawn(16, 70, 1, 0, mixed=False)
    scales = steps_of(weights)
    power = torch.linspace(0.1, 9, 70, dtype=torch.float64)
    found = round_rows(weights, torch.diag(power), scales, DAMPING)
    assert torch.equal(found, nearest(weights, scales))


def test_one_column() -> None:
    weights = torch.tensor([[0.26], [-3.0]])
    scales = torch.tensor([0.1, 0.01])
    found = round_rows(weights, torch.full((1, 1), 2.0), scales, DAMPING)
    assert found.tolist() == [[3.0], [-127.0]]


def test_columns_keep_their_places_whatever_order_they_are_rounded_in() -> None:
    weights, hessian = drawn(6, 40, 500, 2, mixed=True)
    scales = steps_of(weights)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    whole = round_rows(weights, hessian, scales, DAMPING)
    moved = round_rows(weights[:, order], hessian[order][:, order], scales, DAMPING)
    assert torch.equal(moved, whole[:, order])


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_fewer_samples_than_columns(samples: int) -> None:
    weights, hessian = drawn(8, 48, samples, samples, mixed=False)
    scales = steps_of(weights)
    found = round_rows(weights, hessian, scales, DAMPING)
    assert is_integer(found)
    held = error(weights, found, scales, hessian)
    assert held.sum() < 0.5 * error(weights, nearest(weights, scales), scales, hessian).sum()


def test_inputs_that_are_always_zero_keep_nearest_weights() -> None:
    weights, hessian = drawn(8, 20, 400, 5, mixed=True)
    scales = steps_of(weights)
    for index in (0, 7, 19):
        hessian[index] = hessian[:, index] = 0
    found = round_rows(weights, hessian, scales, DAMPING)
    assert is_integer(found)
    dead = [0, 7, 19]
    assert torch.equal(found[:, dead], nearest(weights, scales)[:, dead])
    nothing = round_rows(weights, torch.zeros_like(hessian), scales, DAMPING)
    assert torch.equal(nothing, nearest(weights, scales))


def test_inputs_that_are_copies_of_each_other() -> None:
    weights, hessian = drawn(8, 10, 400, 6, mixed=False)
    twice = hessian.repeat(2, 2)
    both = torch.cat([weights, weights], 1)
    scales = steps_of(both)
    found = round_rows(both, twice, scales, DAMPING)
    assert is_integer(found)
    held = error(both, found, scales, twice).sum()
    # The second copy takes back what the first was off by.
    assert held < 0.5 * error(both, nearest(both, scales), scales, twice).sum()


def test_inputs_of_very_unequal_size() -> None:
    weights, hessian = drawn(8, 30, 400, 8, mixed=True)
    size = torch.logspace(-6, 6, 30, dtype=torch.float64)
    found = round_rows(weights, hessian * size[:, None] * size, steps_of(weights), DAMPING)
    assert is_integer(found)


def test_weights_beyond_the_grid_saturate() -> None:
    weights, hessian = drawn(4, 12, 400, 9, mixed=True)
    found = round_rows(100 * weights, hessian, torch.full((4,), 0.5), DAMPING)
    assert is_integer(found)
    assert (found.abs() == 127).any()


@pytest.mark.parametrize("columns", [4, 6])
def test_it_is_near_the_best_of_all_choices(columns: int) -> None:
    weights, hessian = drawn(20, columns, 500, columns, mixed=True)
    scales = steps_of(weights)
    low = torch.floor(weights.double() / scales[:, None])
    choices = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0, 2.0), repeat=columns)))
    tried = (low[:, None] + choices.double()) * scales.double()[:, None, None]
    off = weights.double()[:, None] - tried
    best = ((off @ hessian) * off).sum(-1).amin(1)
    plain = error(weights, nearest(weights, scales), scales, hessian)
    held = error(weights, round_rows(weights, hessian, scales, 1e-6), scales, hessian)
    assert best.sum() <= held.sum() + 1e-9
    # Half of what rounding can gain is gained.
    assert plain.sum() - held.sum() > 0.5 * (plain.sum() - best.sum())


def test_channels_are_rounded_each_on_its_own_inputs() -> None:
    drawings = [drawn(1, 9, 300, seed, mixed=True) for seed in range(12)]
    weights = torch.cat([w for w, _ in drawings])
    hessians = torch.stack([h for _, h in drawings])
    scales = steps_of(weights)
    found = round_channels(weights, hessians, scales, DAMPING)
    assert is_integer(found)
    for place, (row, hessian) in enumerate(drawings):
        alone = round_rows(row, hessian, scales[place : place + 1], DAMPING)
        assert torch.equal(found[place : place + 1], alone)
    plain = error(weights, nearest(weights, scales), scales, hessians)
    assert error(weights, found, scales, hessians).sum() < 0.7 * plain.sum()


def test_channels_of_one_place_and_of_dead_inputs() -> None:
    weights = torch.tensor([[0.26], [0.5]])
    hessians = torch.tensor([[[0.0]], [[4.0]]], dtype=torch.float64)
    found = round_channels(weights, hessians, torch.tensor([0.1, 0.1]), DAMPING)
    assert found.tolist() == [[3.0], [5.0]]
