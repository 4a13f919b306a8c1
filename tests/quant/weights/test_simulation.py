"""The int8 file in torch beside the int8 file on LiteRT's reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgefuse.quant.weights.simulation import Grid, Simulation, simulate
from edgefuse.tflite.read import read_model
from edgefuse.tflite.runtime import open_model
from quant.weights.networks import Net, classifier, feeds, twin

Array = np.ndarray[Any, Any]


def _integers(simulation: Simulation, feed: dict[str, Array]) -> dict[int, torch.Tensor]:
    """Of every quantised activation, from the sample to the output."""
    found: dict[int, torch.Tensor] = {}

    def on_grid(index: int, value: torch.Tensor) -> torch.Tensor:
        grid = simulation.grids.get(index)
        if grid is None:
            return value
        found[index] = grid.quantize_(value.clone())
        return grid.dequantize(found[index])

    network = simulation.network
    given = {i: on_grid(i, v) for i, v in network.feeds(feed).items()}
    network.run(given, constants=simulation.constants, on_value=on_grid)
    return found


def _classifier(tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    source = tmp_path / "float.tflite"
    source.write_bytes(classifier())
    return source, twin(source, tmp_path / "int8.tflite", feeds(source, 16, 1), **options)


def test_each_operator_is_the_kernel_within_a_step(tmp_path: Path) -> None:
    source, int8 = _classifier(tmp_path)
    simulation = simulate(read_model(source), read_model(int8))
    network, grids = simulation.network, simulation.grids
    model = open_model(int8, kernels="reference", preserve_all_tensors=True)
    equal: dict[str, list[float]] = {}
    for feed in feeds(source, 20, 9):
        model.run(feed)
        for step in network.steps:
            values = {
                i: grids[i].dequantize(torch.from_numpy(model.value(i)))
                for i in step.operator.inputs
                if i in grids
            }
            (result,) = network.apply(step, values, simulation.constants)
            (index,) = step.operator.outputs
            off = np.abs(model.value(index) - grids[index].quantize_(result).numpy())
            assert off.max() <= 1, step.operator.label
            equal.setdefault(step.operator.label, []).append(float((off == 0).mean()))
    assert len(equal) == 7
    for label, shares in equal.items():
        # The kernel of MEAN rounds the zero point's part by itself: 0.06 of a step on the mean.
        assert np.mean(shares) > (0.9 if "MEAN" in label else 0.98), label


@pytest.mark.parametrize("boundary", ["int8", "uint8", "float32"])
def test_the_outputs_are_the_files(tmp_path: Path, boundary: str) -> None:
    source, int8 = _classifier(tmp_path, input_type=boundary, output_type=boundary)
    float_model = read_model(source)
    simulation = simulate(float_model, read_model(int8))
    model = open_model(int8, kernels="reference")
    ((_, output),) = float_model.signature_outputs
    grid = simulation.grids[output]
    off = []
    for feed in feeds(source, 12, 9):
        real = model.run_float(feed)["y"] / grid.scale
        found = _integers(simulation, feed)[output].numpy() - grid.zero_point
        off.append(np.abs(np.round(real) - found))
    assert np.max(off) <= 2
    assert np.mean(off) < 0.5


@pytest.mark.parametrize("boundary", ["int8", "uint8", "float32"])
def test_the_boundary_has_the_grid_of_the_int8_tensor_inside(tmp_path: Path, boundary: str) -> None:
    source = tmp_path / "float.tflite"
    source.write_bytes(classifier())
    samples = feeds(source, 8, 1)
    plain = twin(source, tmp_path / "plain.tflite", samples)
    options = {"input_type": boundary, "output_type": boundary}
    other = twin(source, tmp_path / "other.tflite", samples, **options)
    float_model = read_model(source)
    wanted = simulate(float_model, read_model(plain)).grids
    found = simulate(float_model, read_model(other)).grids
    assert wanted.keys() == found.keys()
    for index, grid in wanted.items():
        assert found[index].scale == grid.scale
        # uint8 has 128 more on both sides.
        assert found[index].low - found[index].zero_point == grid.low - grid.zero_point


def test_int16_activations(tmp_path: Path) -> None:
    options = {"format": "int16x8", "input_type": "int16", "output_type": "int16"}
    source, int16 = _classifier(tmp_path, **options)
    simulation = simulate(read_model(source), read_model(int16))
    feed = feeds(source, 1, 9)[0]
    held = _integers(simulation, feed)
    ((_, output),) = simulation.network.model.signature_outputs
    ((name, real),) = open_model(int16, kernels="reference").run(feed).items()
    assert name == "y"
    assert np.abs(held[output].numpy() - real).max() <= 60  # of 65,536
    assert simulation.grids[output].high == 32767


def test_tensors_of_one_name_are_told_apart_by_their_place(tmp_path: Path) -> None:
    net = Net()
    x = net.tensor("input", (1, 6, 6, 4))
    first = net.conv("first", x, (1, 6, 6, 4))
    y = net.conv("second", first, (1, 6, 6, 4))
    data = net.graph.tensors
    for tensor in data:
        if tensor.name in (b"first/w", b"second/w"):
            tensor.name = b"w"
    source = tmp_path / "float.tflite"
    source.write_bytes(net.finish({"x": x}, {"y": y}))
    int8 = twin(source, tmp_path / "int8.tflite", feeds(source, 8, 1))
    simulation = simulate(read_model(source), read_model(int8))
    for step in simulation.network.steps:
        weight = step.operator.inputs[1]
        exact, held = simulation.network.constants[weight], simulation.constants[weight]
        assert torch.allclose(exact, held, atol=float(exact.abs().max()) / 200)


def test_a_float_island_has_no_grid(tmp_path: Path) -> None:
    source = tmp_path / "float.tflite"
    source.write_bytes(classifier())
    model = read_model(source)
    wide = next(o for o in model.operators if model.tensors[o.outputs[0]].name == "wide")
    int8 = twin(source, tmp_path / "int8.tflite", feeds(source, 8, 1), keep_float={wide.index})
    simulation = simulate(model, read_model(int8))
    assert wide.outputs[0] not in simulation.grids
    assert wide.inputs[1] not in simulation.twins


def test_a_grid_rounds_and_saturates() -> None:
    grid = Grid(0.5, 3, -128, 127)
    values = torch.tensor([-1000.0, -0.3, 0.0, 0.24, 0.26, 1000.0])
    assert grid.quantize_(values.clone()).tolist() == [-128.0, 2.0, 3.0, 3.0, 4.0, 127.0]
    assert grid.dequantize(torch.tensor([3, 5], dtype=torch.int8)).tolist() == [0.0, 1.0]
