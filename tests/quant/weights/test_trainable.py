"""The int8 file under training has the int8 file's values, and gradients where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from edgefuse.quant.weights.simulation import Grid, Simulation, simulate
from edgefuse.quant.weights.trainable import trainable
from edgefuse.tflite.edit import with_constants
from edgefuse.tflite.read import read_model
from quant.weights.networks import Net, classifier, feeds, twin


def _simulation(folder: Path, data: bytes, **options: object) -> Simulation:
    source, int8 = folder / "float.tflite", folder / "int8.tflite"
    source.write_bytes(data)
    twin(source, int8, feeds(source, 8, seed=1), **options)
    return simulate(read_model(source), read_model(int8))


GRIDS = (
    Grid(0.25, 3, -128, 127),
    Grid(0.0237, -128, -128, 127),
    Grid(1.7e-3, -5, -128, 127),
    Grid(0.5, 0, 0, 255),
    Grid(3.1e-4, 0, -32768, 32767),
)


@pytest.mark.parametrize("grid", GRIDS)
def test_activations_are_quantised_as_the_simulation_does(tmp_path: Path, grid: Grid) -> None:
    simulation = _simulation(tmp_path, classifier())
    index = next(iter(simulation.grids))
    simulation.grids[index] = grid  # type: ignore[index]
    source = torch.Generator().manual_seed(0)
    span = grid.scale * (grid.high - grid.low)
    x = torch.randn(50_000, generator=source) * span / 3
    x[:200] = (torch.arange(200) - 100 + 0.5) * grid.scale  # ties
    x.requires_grad_()
    found = trainable(simulation).on_grid(index, x)
    assert torch.equal(found, grid.dequantize(grid.quantize_(x.detach().clone())))
    found.sum().backward()
    steps = torch.round(x.detach() / grid.scale) + grid.zero_point
    inside = (steps >= grid.low) & (steps <= grid.high)
    assert 0.3 < inside.float().mean() < 0.99
    assert x.grad is not None and torch.equal(x.grad, inside.float())


@pytest.mark.parametrize("per_tensor", [False, True])
def test_untrained_it_answers_as_the_int8_file(tmp_path: Path, per_tensor: bool) -> None:
    simulation = _simulation(tmp_path, classifier(), per_tensor_weights=per_tensor)
    student, network = trainable(simulation), simulation.network
    assert student.layers == 5
    assert {network.model.tensors[i].name for i in student.parameters} == {
        f"{layer}/{part}"
        for layer in ("stem", "deep", "wide", "last", "scores")
        for part in ("w", "b")
    }
    for index, parameter in student.parameters.items():
        torch.testing.assert_close(parameter.rounded(), simulation.constants[index])
    (feed,) = feeds(network.model.data, 1, seed=4)

    def on_grid(index: int, x: torch.Tensor) -> torch.Tensor:
        grid = simulation.grids[index]
        return grid.dequantize(grid.quantize_(x.clone()))

    given = {i: on_grid(i, x) for i, x in network.feeds(feed).items()}
    wanted = network.run(given, constants=simulation.constants, on_value=on_grid)
    (found,) = student.outputs(feed, network.model.outputs)
    step = simulation.grids[network.model.outputs[0]].scale
    assert (found - wanted[network.model.outputs[0]]).abs().max() <= 1.01 * step
    found.sum().backward()
    for change in student.changes():
        assert change.grad is not None and change.grad.abs().max() > 0


def test_it_begins_where_other_rounding_has_left_the_file(tmp_path: Path) -> None:
    simulation = _simulation(tmp_path, classifier())
    model, random = simulation.int8_model, np.random.default_rng(0)
    index, held = next((i, t) for i, t in simulation.twins.items() if t.name == "last/w")
    old = model.constant(held)
    new = np.where(np.abs(old) < 120, old + random.integers(-1, 2, old.shape), old).astype(np.int8)
    assert (new != old).mean() > 0.4
    other = tmp_path / "other.tflite"
    other.write_bytes(with_constants(model.data, {held.index: new}))
    again = simulate(simulation.network.model, read_model(other))
    parameter = trainable(again).parameters[index]
    torch.testing.assert_close(parameter.rounded(), again.constants[index])
    moved = (parameter.start - simulation.network.constants[index]).abs()
    scale = torch.tensor(held.scales).reshape(-1, 1, 1, 1)
    assert (moved <= 1.46 * scale).all() and (moved[torch.from_numpy(new == old)] < 0.06).all()


def test_float_layers_are_trained_as_float(tmp_path: Path) -> None:
    data = classifier()
    place = 2
    simulation = _simulation(tmp_path, data, keep_float=[place])
    operator = simulation.network.model.operators[place]
    parameter = trainable(simulation).parameters[operator.inputs[1]]
    assert parameter.floor is None
    assert torch.equal(parameter.rounded(), simulation.network.constants[operator.inputs[1]])


def test_scales_follow_the_weights(tmp_path: Path) -> None:
    simulation = _simulation(tmp_path, classifier())
    student = trainable(simulation)
    index = next(i for i, t in simulation.twins.items() if t.name == "wide/w")
    parameter = student.parameters[index]
    with torch.no_grad():
        parameter.change.mul_(0).add_(1.0)
    value, rounded = parameter.value().detach(), parameter.rounded().detach()
    scale = value.abs().amax([1, 2, 3], keepdim=True) / 127
    assert torch.equal(torch.round(rounded / scale), torch.round(value / scale))
    assert (scale.reshape(-1) > 1.2 * torch.tensor(simulation.twins[index].scales)).all()


def test_a_channel_of_zeros_stays_finite(tmp_path: Path) -> None:
    net = Net()
    x = net.tensor("input", (1, 6, 6, 3))
    spread = np.array([1.0, 0.0, 1.0, 1.0]).reshape(4, 1, 1, 1)
    y = net.conv("one", x, (1, 6, 6, 4), kernel=3, spread=spread)
    simulation = _simulation(tmp_path, net.finish({"x": x}, {"y": y}))
    student = trainable(simulation)
    (feed,) = feeds(simulation.network.model.data, 1, seed=4)
    (found,) = student.outputs(feed, (y,))
    found.square().sum().backward()
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(p.rounded()).all() for p in student.parameters.values())
    assert all(torch.isfinite(c.grad).all() for c in student.changes())
