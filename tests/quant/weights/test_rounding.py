"""Weights and biases rewritten in a finished int8 file: better on samples that were not seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgefuse.errors import DataError, StageError
from edgefuse.quant.weights import rounding
from edgefuse.quant.weights.layer import MOST_STEPS, layer_of
from edgefuse.quant.weights.rounding import improve
from edgefuse.quant.weights.simulation import simulate
from edgefuse.tflite.read import TfliteModel, parse_model, read_model
from edgefuse.tflite.runtime import open_model
from quant.weights.networks import Feed, Net, classifier, feeds, twin

Array = np.ndarray[Any, Any]


def wide() -> bytes:
    """input [1, 8, 8, 3] -> three convolutions of 24 channels -> [1, 8, 8, 24]."""
    net = Net(3)
    x = net.tensor("input", (1, 8, 8, 3))
    one = net.conv("one", x, (1, 8, 8, 24), kernel=3)
    two = net.conv("two", one, (1, 8, 8, 24))
    y = net.conv("three", two, (1, 8, 8, 24), activation="NONE")
    return net.finish({"x": x}, {"y": y})


def dense() -> bytes:
    """input [1, 32] -> two fully connected layers without bias -> [1, 16]."""
    net = Net(4)
    x = net.tensor("input", (1, 32))
    hidden = net.dense("hidden", x, 48, "RELU", bias=False)
    y = net.dense("scores", hidden, 16, bias=False)
    return net.finish({"x": x}, {"y": y})


def common(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Few causes for many inputs, and a mean that is not 0."""
    causes = np.random.default_rng(0).normal(size=(4, shape[-1]))
    return random.normal(size=(*shape[:-1], 4)) @ causes + 2.0


def made(tmp_path: Path, data: bytes, count: int = 24, **options: Any) -> tuple[Path, Path]:
    source = tmp_path / "float.tflite"
    source.write_bytes(data)
    return source, twin(source, tmp_path / "int8.tflite", feeds(source, count, 1), **options)


def outputs(path: Path, samples: Sequence[Feed], kernels: Any = "reference") -> Array:
    model = open_model(path, kernels=kernels)
    return np.stack([next(iter(model.run_float(feed).values())) for feed in samples])


def sqnr_db(source: Path, int8: Path, samples: Sequence[Feed]) -> float:
    exact, held = outputs(source, samples), outputs(int8, samples)
    return float(10 * np.log10((exact**2).sum() / ((exact - held) ** 2).sum()))


def constants(model: TfliteModel) -> dict[str, Array]:
    return {t.name: model.constant(t).copy() for t in model.tensors if t.is_constant}


@pytest.mark.parametrize(
    ("data", "gain_db"), [(wide(), 0.4), (classifier(), 0.2), (dense(), 1.0)], ids=["w", "c", "d"]
)
def test_other_samples_gain(tmp_path: Path, data: bytes, gain_db: float) -> None:
    draw = common if len(read_shape(data)) == 2 else None
    source, other = tmp_path / "float.tflite", feeds(data, 32, 77, draw)
    source.write_bytes(data)
    samples = feeds(data, 64, 1, draw)
    options = {"output_type": "float32", "per_tensor_weights": True}
    int8 = twin(source, tmp_path / "int8.tflite", samples, **options)
    before = sqnr_db(source, int8, other)
    found = improve(source, int8, samples, rounding=True)
    assert sqnr_db(source, int8, other) > before + gain_db
    assert found.samples == 64
    assert 0.02 < found.changed_fraction < 0.9


def read_shape(data: bytes) -> tuple[int, ...]:
    model = parse_model(data)
    return model.tensors[model.inputs[0]].shape


def test_no_weight_goes_far(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, classifier())
    simulation = simulate(read_model(source), read_model(int8))
    before = {i: v.clone() for i, v in simulation.constants.items()}
    improve(source, int8, feeds(source, 24, 1), rounding=True)
    after = simulate(read_model(source), read_model(int8))
    moved = []
    for step in after.network.steps:
        if (layer := layer_of(after, step)) is not None:
            steps = float(np.max(after.twins[layer.weight].scales))
            off = (after.constants[layer.weight] - before[layer.weight]).abs().max()
            moved.append(float(off) / steps)
    assert len(moved) == 5
    assert 0 < max(moved) < MOST_STEPS + 0.01


@pytest.mark.parametrize("rounding", [True, False])
def test_means_of_channels_stay_those_of_the_float_layer(tmp_path: Path, rounding: bool) -> None:
    net = Net(5)
    x = net.tensor("input", (1, 8, 8, 3))
    y = net.conv("one", x, (1, 8, 8, 16), activation="NONE")
    source, int8 = made(tmp_path, net.finish({"x": x}, {"y": y}), per_tensor_weights=True)
    samples = [{"x": np.abs(feed["x"]) + 1} for feed in feeds(source, 24, 1)]
    int8 = twin(source, int8, samples, per_tensor_weights=True, output_type="float32")
    quantised = _on_input_grid(source, int8, samples)

    def drift() -> float:
        off = outputs(int8, samples) - outputs(source, quantised)
        return float(np.abs(off.mean(axis=(0, 1, 2, 3))).max())

    before = drift()
    improve(source, int8, samples, rounding=rounding)
    assert drift() < 0.25 * before


def _on_input_grid(source: Path, int8: Path, samples: Sequence[Feed]) -> list[Feed]:
    """The samples as the int8 file sees them."""
    simulation = simulate(read_model(source), read_model(int8))
    ((name, index),) = simulation.network.model.signature_inputs
    grid = simulation.grids[index]
    found = []
    for feed in samples:
        integers = grid.quantize_(torch.from_numpy(feed[name].copy()))
        found.append({name: grid.dequantize(integers).numpy()})
    return found


def test_nothing_but_weights_and_biases_changes(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, classifier())
    before = read_model(int8)
    found = improve(source, int8, feeds(source, 24, 1), rounding=True)
    after = read_model(int8)
    spans = [before.spans[before.tensors[index].buffer] for index in found.values]
    changed = np.flatnonzero(
        np.frombuffer(before.data, np.uint8) != np.frombuffer(after.data, np.uint8)
    )
    assert changed.size
    inside = np.zeros(len(before.data), bool)
    for begin, length in spans:
        inside[begin : begin + length] = True
    assert inside[changed].all()
    assert {after.tensors[i].dtype for i in found.values} == {"int8", "int32"}
    assert found.layers == 5


def test_biases_alone_keep_the_weights(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, classifier())
    before = constants(read_model(int8))
    found = improve(source, int8, feeds(source, 24, 1), rounding=False)
    after = constants(read_model(int8))
    assert found.changed_fraction == 0
    for name, value in before.items():
        if value.dtype == np.int8:
            assert np.array_equal(value, after[name])
    assert any(not np.array_equal(before[name], after[name]) for name in before)


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, classifier())
    given = int8.read_bytes()
    improve(source, int8, feeds(source, 24, 1), rounding=True)
    first = int8.read_bytes()
    int8.write_bytes(given)
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        improve(source, int8, feeds(source, 24, 1), rounding=True)
    finally:
        torch.set_num_threads(threads)
    assert int8.read_bytes() == first


def test_samples_are_taken_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, int8 = made(tmp_path, wide())
    monkeypatch.setattr(rounding, "SAMPLES", 5)
    taken = []

    def stream() -> Any:
        for feed in feeds(source, 24, 1):
            taken.append(feed)
            yield feed

    assert improve(source, int8, stream(), rounding=True).samples == 5
    assert len(taken) == 6


def test_a_batch_counts_by_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    x = net.tensor("input", (4, 6))
    y = net.tensor("output", (4, 5))
    net.op("FULLY_CONNECTED", (x, net.weight("w", (5, 6)), net.bias("b", 5)), (y,))
    source, int8 = made(tmp_path, net.finish({"x": x}, {"y": y}))
    monkeypatch.setattr(rounding, "SAMPLES", 10)
    assert improve(source, int8, feeds(source, 6, 1), rounding=True).samples == 8


def test_samples_that_may_not_go_together_go_alone(tmp_path: Path) -> None:
    net = Net()
    x = net.tensor("input", (1, 6, 8))
    turned = net.tensor("turned", (6, 1, 8))
    order = net.tensor("order", value=np.array([1, 0, 2], np.int32))
    net.op("TRANSPOSE", (x, order), (turned,), options=("TransposeOptions", {}))
    y = net.tensor("output", (6, 5))
    net.op("FULLY_CONNECTED", (turned, net.weight("w", (5, 8)), net.bias("b", 5)), (y,))
    source, int8 = made(tmp_path, net.finish({"x": x}, {"y": y}))
    assert improve(source, int8, feeds(source, 12, 1), rounding=True).samples == 12


def test_a_view_of_a_float_tensor_leaves_the_tensor_as_it_is(tmp_path: Path) -> None:
    """input float -> MUL stays float -> RESHAPE int8 and, later, a second reader of the MUL."""
    net = Net()
    x = net.tensor("input", (1, 4, 4, 4))
    scaled = net.simple(
        "MUL", "scaled", (x, net.tensor("k", value=np.float32(3.0))), (1, 4, 4, 4),
        options=("MulOptions", {}),
    )  # fmt: skip
    shape = net.tensor("shape", value=np.array([1, 16, 1, 4], np.int32))
    flat = net.simple("RESHAPE", "flat", (scaled, shape), (1, 16, 1, 4))
    one = net.conv("one", flat, (1, 16, 1, 4), activation="NONE")
    back = net.tensor("back", value=np.array([1, 4, 4, 4], np.int32))
    again = net.simple("RESHAPE", "again", (one, back), (1, 4, 4, 4))
    y = net.simple("ADD", "sum", (again, scaled), (1, 4, 4, 4))
    data = net.finish({"x": x}, {"y": y})
    source, int8 = made(tmp_path, data, keep_float={0})
    simulation = simulate(read_model(source), read_model(int8))
    assert scaled not in simulation.grids and flat in simulation.grids
    held = rounding._Held(simulation, feeds(source, 3, 1))
    exact = None
    with torch.inference_mode():
        for step in simulation.network.steps[:2]:
            held.advance(step)
            if exact is None:
                exact = torch.cat([v.clone() for v in held.values(scaled)])
        assert torch.equal(torch.cat(list(held.values(scaled))), exact)


def test_what_shares_its_weights_is_left_alone(tmp_path: Path) -> None:
    net = Net()
    x = net.tensor("input", (1, 6, 6, 4))
    one = net.conv("one", x, (1, 6, 6, 4))
    two = net.tensor("two", (1, 6, 6, 4))
    first = net.graph.operators[0]
    net.op("CONV_2D", (one, *first.inputs[1:]), (two,))
    y = net.conv("own", two, (1, 6, 6, 4))
    source, int8 = made(tmp_path, net.finish({"x": x}, {"y": y}))
    before = constants(read_model(int8))
    assert improve(source, int8, feeds(source, 12, 1), rounding=True).layers == 1
    after = constants(read_model(int8))
    assert np.array_equal(before["one/w"], after["one/w"])
    assert not np.array_equal(before["own/w"], after["own/w"])


@pytest.mark.parametrize("part", ["b", "w"])
def test_constants_that_share_their_bytes(tmp_path: Path, part: str) -> None:
    """Two tensors of one buffer, as converters write equal constants."""
    net = Net()
    x = net.tensor("input", (1, 6, 6, 4))
    two = net.conv("two", net.conv("one", x, (1, 6, 6, 4)), (1, 6, 6, 4))
    y = net.conv("own", two, (1, 6, 6, 4))
    by_name = {t.name.decode(): t for t in net.graph.tensors}
    by_name[f"two/{part}"].buffer = by_name[f"one/{part}"].buffer
    source, int8 = made(tmp_path, net.finish({"x": x}, {"y": y}), output_type="float32")
    others = feeds(source, 8, 5)
    before = sqnr_db(source, int8, others)
    improve(source, int8, feeds(source, 24, 1), rounding=True)
    assert sqnr_db(source, int8, others) > before - 0.1


def test_a_bias_that_two_layers_read(tmp_path: Path) -> None:
    net = Net()
    x = net.tensor("input", (1, 6, 6, 4))
    one = net.conv("one", x, (1, 6, 6, 4))
    two = net.tensor("two", (1, 6, 6, 4))
    bias = net.graph.operators[0].inputs[2]
    net.op("CONV_2D", (one, net.weight("two/w", (4, 1, 1, 4)), bias), (two,))
    data = net.finish({"x": x}, {"y": two})
    source, int8 = made(tmp_path, data, output_type="float32")
    others = feeds(source, 8, 5)
    before = sqnr_db(source, int8, others)
    improve(source, int8, feeds(source, 24, 1), rounding=True)
    assert sqnr_db(source, int8, others) > before - 0.1


def test_a_grouped_convolution_is_left_alone(tmp_path: Path) -> None:
    net = Net()
    x = net.tensor("input", (1, 6, 6, 4))
    one = net.conv("grouped", x, (1, 6, 6, 4), read=2)
    y = net.conv("own", one, (1, 6, 6, 4))
    source, int8 = made(tmp_path, net.finish({"x": x}, {"y": y}))
    before = constants(read_model(int8))
    assert improve(source, int8, feeds(source, 12, 1), rounding=True).layers == 1
    assert np.array_equal(before["grouped/w"], constants(read_model(int8))["grouped/w"])


def test_a_float_island_is_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "float.tflite"
    source.write_bytes(classifier())
    model = read_model(source)
    place = next(o.index for o in model.operators if model.tensors[o.outputs[0]].name == "wide")
    source, int8 = made(tmp_path, classifier(), keep_float={place}, output_type="float32")
    before = read_model(int8)
    others = feeds(source, 8, 5)
    quality = sqnr_db(source, int8, others)
    found = improve(source, int8, feeds(source, 24, 1), rounding=True)
    assert found.layers == 4
    after = constants(read_model(int8))
    assert np.array_equal(constants(before)["wide/w"], after["wide/w"])
    assert sqnr_db(source, int8, others) > quality


def test_int16_activations(tmp_path: Path) -> None:
    options = {"format": "int16x8", "input_type": "int16", "output_type": "int16"}
    source, int8 = made(tmp_path, wide(), **options)
    others = feeds(source, 8, 5)
    before = sqnr_db(source, int8, others)
    found = improve(source, int8, feeds(source, 24, 1), rounding=True)
    assert {read_model(int8).tensors[i].dtype for i in found.values} == {"int8", "int64"}
    assert sqnr_db(source, int8, others) > before + 1


@pytest.mark.parametrize("level", [0.0, 1.0, -40.0])
def test_inputs_that_never_change(tmp_path: Path, level: float) -> None:
    """No covariance at all: the nearest weights, and a bias that makes the output right."""
    net = Net()
    x = net.tensor("input", (1, 40))
    y = net.dense("scores", x, 12)
    source = tmp_path / "float.tflite"
    source.write_bytes(net.finish({"x": x}, {"y": y}))
    samples = [{"x": np.full((1, 40), level, np.float32)}] * 3
    int8 = twin(source, tmp_path / "int8.tflite", samples, output_type="float32")
    found = improve(source, int8, samples, rounding=True)
    assert found.changed_fraction == 0
    exact, held = outputs(source, samples), outputs(int8, samples)
    assert np.abs(exact - held).max() <= np.abs(exact).max() / 100


def test_a_single_sample(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, classifier(), output_type="float32")
    before = sqnr_db(source, int8, feeds(source, 8, 5))
    improve(source, int8, feeds(source, 1, 1), rounding=True)
    assert sqnr_db(source, int8, feeds(source, 8, 5)) > before - 3


def test_progress_tells_of_each_layer(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, wide())
    told: list[tuple[int, int]] = []
    improve(source, int8, feeds(source, 8, 1), rounding=True, progress=lambda *n: told.append(n))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_no_sample_is_an_error(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, wide())
    given = int8.read_bytes()
    with pytest.raises(DataError, match="no calibration samples"):
        improve(source, int8, [], rounding=True)
    assert int8.read_bytes() == given


def test_no_layer_is_an_error(tmp_path: Path) -> None:
    net = Net()
    x = net.tensor("input", (1, 4, 4, 2))
    y = net.simple("RELU", "output", (x,), (1, 4, 4, 2))
    source, int8 = made(tmp_path, net.finish({"x": x}, {"y": y}))
    with pytest.raises(StageError, match="no int8 convolution or fully connected") as caught:
        improve(source, int8, feeds(source, 4, 1), rounding=True)
    assert "quantize.rounding: nearest" in caught.value.hint


def test_all_layers_in_float_leave_nothing_to_do(tmp_path: Path) -> None:
    source, int8 = made(tmp_path, wide(), keep_float={0, 1, 2}, output_type="float32")
    given = int8.read_bytes()
    found = improve(source, int8, feeds(source, 4, 1), rounding=True, may_be_none=True)
    assert (found.layers, found.samples, found.changed_fraction) == (0, 0, 0)
    assert int8.read_bytes() == given


@pytest.mark.parametrize("size", [1e-20, 1e30])
def test_inputs_whose_squares_are_beyond_float32(tmp_path: Path, size: float) -> None:
    def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return random.normal(size=shape) * size

    net = Net()
    x = net.tensor("input", (1, 40))
    y = net.dense("scores", x, 12)
    source = tmp_path / "float.tflite"
    source.write_bytes(net.finish({"x": x}, {"y": y}))
    samples = feeds(source, 64, 1, drawn)
    int8 = twin(source, tmp_path / "int8.tflite", samples, output_type="float32")
    improve(source, int8, samples, rounding=True)
    exact, held = outputs(source, samples), outputs(int8, samples)
    assert np.abs(exact - held).max() <= np.abs(exact).max() / 50
