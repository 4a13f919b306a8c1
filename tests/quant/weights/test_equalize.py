"""Equalised channels: the same function, evener ranges, better int8; and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.errors import DataError
from edgefuse.quant.weights.equalize import equalize, groups
from edgefuse.quant.weights.network import load_network
from edgefuse.tflite.read import parse_model, read_model
from edgefuse.tflite.runtime import open_model
from quant.weights.networks import Net, classifier, feeds, twin

Array = np.ndarray[Any, Any]
Build = Callable[[Net, int], int]
X = (1, 8, 8, 8)
SPREAD = np.geomspace(0.05, 3, 8)


def built(body: Build, seed: int = 2) -> bytes:
    """input -> "first" 1x1 [1, 8, 8, 8], uneven channels -> ``body`` -> "last", the output."""
    net = Net(seed)
    x = net.tensor("input", (1, 8, 8, 3))
    first = uneven(net, "first", x)
    inner = body(net, first)
    y = net.conv("last", inner, (*net.graph.tensors[inner].shape[:3], 6), activation="NONE")
    return net.finish({"x": x}, {"y": y})


def uneven(net: Net, name: str, x: int, activation: str = "RELU") -> int:
    made = net.conv(name, x, X, activation=activation, spread=SPREAD.reshape(8, 1, 1, 1))
    held = net.model.buffers[net.graph.tensors[net.graph.operators[-1].inputs[2]].buffer]
    bias = np.frombuffer(held.data.tobytes(), np.float32) * SPREAD
    held.data = np.frombuffer(bias.astype(np.float32).tobytes(), np.uint8)
    return made


def names(data: bytes) -> list[set[str]]:
    """The tensors of every group."""
    model = parse_model(data)
    found = groups(load_network(model))
    return [{model.tensors[i].name for i in group.tensors} for group in found]


def ints(net: Net, *values: Any) -> int:
    return net.tensor(f"c{len(net.graph.tensors)}", value=np.array(values, np.int32))


def simple(code: str, activation: str = "NONE", **options: Any) -> Build:
    kind = "".join(part.title() for part in code.split("_")) + "Options"
    given = (kind, options) if options else None
    return lambda net, x: net.simple(code, "inner", (x,), X, activation, given)


def pooled(code: str) -> Build:
    options = {"filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2, "padding": 1}
    return lambda net, x: net.simple(
        code, "inner", (x,), (1, 4, 4, 8), options=("Pool2DOptions", options)
    )


def resized(net: Net, x: int) -> int:
    options = ("ResizeBilinearOptions", {"halfPixelCenters": True})
    return net.simple(
        "RESIZE_BILINEAR", "inner", (x, ints(net, 5, 6)), (1, 5, 6, 8), options=options
    )


def padded(net: Net, x: int) -> int:
    sides = ints(net, [0, 0], [1, 1], [2, 0], [0, 0])
    return net.simple("PAD", "inner", (x, sides), (1, 10, 10, 8), options=("PadOptions", {}))


def reshaped(net: Net, x: int) -> int:
    return net.simple("RESHAPE", "inner", (x, ints(net, 1, 64, 1, 8)), (1, 64, 1, 8))


def residual(net: Net, x: int) -> int:
    return net.simple("ADD", "inner", (x, uneven(net, "branch", x, "NONE")), X, "RELU")


def capped(net: Net, x: int) -> int:
    return net.depthwise("inner", uneven(net, "middle", x, "RELU6"), X, activation="RELU6")


KEPT: dict[str, tuple[Build, set[str]]] = {
    "relu": (simple("RELU"), {"first", "inner"}),
    "leaky relu": (simple("LEAKY_RELU", alpha=0.1), {"first", "inner"}),
    "maximum of pools": (pooled("MAX_POOL_2D"), {"first", "inner"}),
    "mean of pools": (pooled("AVERAGE_POOL_2D"), {"first", "inner"}),
    "resize": (resized, {"first", "inner"}),
    "pad": (padded, {"first", "inner"}),
    "mean": (lambda net, x: net.mean("inner", x, keep=True), {"first", "inner"}),
    "reshape": (reshaped, {"first", "inner"}),
    "add": (residual, {"first", "branch", "inner"}),
    "relu6": (capped, {"first"}),
}


@pytest.mark.parametrize("case", KEPT)
def test_the_function_stays_and_channels_become_even(case: str, tmp_path: Path) -> None:
    body, joined = KEPT[case]
    data = built(body)
    assert joined in names(data)
    source, other = tmp_path / "float.tflite", tmp_path / "equalized.tflite"
    source.write_bytes(data)
    samples = feeds(source, 24, 1)
    found = equalize(source, other, samples)
    assert found["groups"] == len(names(data))
    before, after = _run(source, samples), _run(other, samples)
    np.testing.assert_allclose(after["last"], before["last"], 1e-4, 1e-4 * before["last"].max())
    for tensor in joined:
        assert _unevenness(after[tensor]) < _unevenness(before[tensor])
    assert max(_unevenness(before[t]) - _unevenness(after[t]) for t in joined) > 0.1


def _run(path: Path, samples: list[Any]) -> dict[str, Array]:
    model = open_model(path, kernels="builtin", preserve_all_tensors=True)
    made = [(t.name, t.index) for t in model.source.tensors if not t.is_constant]
    rows: dict[str, list[Array]] = {name: [] for name, _ in made}
    for feed in samples:
        model.run(feed)
        for name, index in made:
            rows[name].append(model.value(index))
    return {name: np.concatenate(held) for name, held in rows.items()}


def _unevenness(values: Array) -> float:
    """Spread of the logarithms of the channels' peaks."""
    peaks = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
    return float(np.log(np.maximum(peaks, 1e-6)).std())


def test_capped_channels_are_raised_and_stay_below_the_cap(tmp_path: Path) -> None:
    source, other = tmp_path / "float.tflite", tmp_path / "equalized.tflite"
    source.write_bytes(built(capped))
    samples = feeds(source, 24, 1)
    equalize(source, other, samples)
    before, after = _run(source, samples), _run(other, samples)
    for name in ("middle", "inner"):
        low, high = (held[name].reshape(-1, 8).max(axis=0) for held in (before, after))
        raised = high > low * 1.001
        assert (high >= low * 0.999).all()
        assert (high[raised] <= 6 / 1.49).all()
    # What they read is what they read: other samples pass the cap of 6 nowhere.
    others = feeds(source, 24, 8)
    exact, held = _run(source, others)["last"], _run(other, others)["last"]
    np.testing.assert_allclose(held, exact, 1e-3, 1e-3 * np.abs(exact).max())


def test_int8_of_uneven_channels_gains(tmp_path: Path) -> None:
    source, other = tmp_path / "float.tflite", tmp_path / "equalized.tflite"
    source.write_bytes(built(lambda net, x: net.depthwise("inner", x, X), seed=4))
    samples = feeds(source, 32, 1)
    equalize(source, other, samples)
    exact = _run(source, feeds(source, 16, 5))["last"]
    noise = []
    for path in (source, other):
        int8 = twin(path, tmp_path / f"int8_{path.name}", samples, output_type="float32")
        model = open_model(int8, kernels="reference")
        held = np.concatenate([model.run_float(feed)["y"] for feed in feeds(source, 16, 5)])
        noise.append(float(((exact - held) ** 2).sum()))
    assert noise[1] < 0.7 * noise[0]


def concatenated(net: Net, x: int) -> int:
    other = uneven(net, "branch", x)
    options = ("ConcatenationOptions", {"axis": 3})
    return net.simple("CONCATENATION", "inner", (x, other), (1, 8, 8, 16), options=options)


def constant_added(net: Net, x: int) -> int:
    value = net.tensor("c", value=np.ones((1, 1, 1, 8), np.float32))
    return net.simple("ADD", "inner", (x, value), X, options=("AddOptions", {}))


def constant_reshaped(net: Net, x: int) -> int:
    """A constant that no layer makes: its branch cannot be scaled."""
    value = net.tensor("c", value=np.ones(8, np.float32))
    held = net.simple("RESHAPE", "held", (value, ints(net, 1, 1, 1, 8)), (1, 1, 1, 8))
    return net.simple("ADD", "inner", (x, held), X, options=("AddOptions", {}))


def grouped(net: Net, x: int) -> int:
    return net.conv("inner", x, X, read=4)


def mixed(net: Net, x: int) -> int:
    """A RESHAPE that makes channels of places."""
    return net.simple("RESHAPE", "inner", (x, ints(net, 1, 8, 4, 16)), (1, 8, 4, 16))


def shared(net: Net, x: int) -> int:
    one = net.conv("one", x, X)
    operands = list(net.graph.operators[-1].inputs)
    return net.simple(
        "CONV_2D", "inner", (one, *operands[1:]), X, "RELU",
        ("Conv2DOptions", {"strideW": 1, "strideH": 1}),
    )  # fmt: skip


def bytes_shared(net: Net, x: int) -> int:
    """Two biases of one buffer."""
    one = net.conv("one", x, X)
    made = net.conv("inner", one, X)
    first, second = (op.inputs[2] for op in net.graph.operators[-2:])
    net.graph.tensors[second].buffer = net.graph.tensors[first].buffer
    return made


def channels_padded(net: Net, x: int) -> int:
    sides = ints(net, [0, 0], [0, 0], [0, 0], [0, 2])
    return net.simple("PAD", "inner", (x, sides), (1, 8, 8, 10), options=("PadOptions", {}))


REFUSED: dict[str, tuple[Build, set[str]]] = {
    "sigmoid": (simple("LOGISTIC"), {"first", "inner"}),
    "hard swish": (simple("HARD_SWISH"), {"first", "inner"}),
    "softmax": (simple("SOFTMAX", beta=1.0), {"first", "inner"}),
    "fused tanh": (lambda net, x: net.conv("inner", x, X, activation="TANH"), {"inner"}),
    "fused -1 to 1": (
        lambda net, x: net.conv("inner", x, X, activation="RELU_N1_TO_1"), {"inner"},
    ),
    "concatenation": (concatenated, {"first", "branch", "inner"}),
    "a constant added": (constant_added, {"first", "inner"}),
    "a constant reshaped and added": (constant_reshaped, {"first", "inner"}),
    "grouped": (grouped, {"first", "inner"}),
    "channels mixed": (mixed, {"first", "inner"}),
    "channels padded": (channels_padded, {"first", "inner"}),
    "weights shared": (shared, {"first", "one", "inner"}),
    "bytes shared": (bytes_shared, {"first", "one", "inner"}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_keep_the_scale_is_left_alone(case: str, tmp_path: Path) -> None:
    body, refused = REFUSED[case]
    data = built(body)
    assert not refused & set().union(*names(data))
    source, other = tmp_path / "float.tflite", tmp_path / "equalized.tflite"
    source.write_bytes(data)
    samples = feeds(source, 6, 1)
    equalize(source, other, samples)
    before, after = _run(source, samples)["last"], _run(other, samples)["last"]
    np.testing.assert_allclose(after, before, 1e-4, 1e-4 * np.abs(before).max())


def test_the_models_inputs_and_outputs_are_left_alone() -> None:
    found = set().union(*names(classifier()))
    assert found and not found & {"input", "scores"}


def test_an_output_in_the_middle_is_left_alone() -> None:
    net = Net()
    x = net.tensor("input", (1, 8, 8, 3))
    first = uneven(net, "first", x)
    y = net.conv("last", first, X)
    assert names(net.finish({"x": x}, {"y": y, "z": first})) == []


def test_dead_channels_stay_finite(tmp_path: Path) -> None:
    net = Net(6)
    x = net.tensor("input", (1, 8, 8, 3))
    first = net.conv("first", x, X)
    operator = net.graph.operators[0]
    for place, index in enumerate(operator.inputs[1:]):
        held = net.model.buffers[net.graph.tensors[index].buffer]
        value = np.frombuffer(held.data.tobytes(), np.float32).reshape(8, -1).copy()
        value[0] = 0  # nothing at all
        value[1] = -1 if place else 0  # never above 0
        value[2] *= 1e-7
        held.data = np.frombuffer(value.tobytes(), np.uint8)
    y = net.conv("last", first, (1, 8, 8, 6), activation="NONE")
    source, other = tmp_path / "float.tflite", tmp_path / "equalized.tflite"
    source.write_bytes(net.finish({"x": x}, {"y": y}))
    samples = feeds(source, 8, 1)
    found = equalize(source, other, samples)
    assert 1 <= found["largest_factor"] <= 32
    after = read_model(other)
    assert all(np.isfinite(after.constant(t)).all() for t in after.tensors if t.is_constant)
    before, held = _run(source, samples)["last"], _run(other, samples)["last"]
    np.testing.assert_allclose(held, before, 1e-4, 1e-4 * np.abs(before).max())


def test_only_weights_and_biases_of_groups_change(tmp_path: Path) -> None:
    source, other = tmp_path / "float.tflite", tmp_path / "equalized.tflite"
    source.write_bytes(built(simple("RELU")))
    equalize(source, other, feeds(source, 8, 1))
    before, after = read_model(source), read_model(other)
    assert len(before.data) == len(after.data)
    changed = {
        t.name
        for t in before.tensors
        if t.is_constant and not np.array_equal(before.constant(t), after.constant(t))
    }
    assert changed == {"first/w", "first/b", "last/w"}
    again = tmp_path / "again.tflite"
    equalize(source, again, feeds(source, 8, 1))
    assert again.read_bytes() == other.read_bytes()


def test_no_sample(tmp_path: Path) -> None:
    source = tmp_path / "float.tflite"
    source.write_bytes(classifier())
    with pytest.raises(DataError, match="no calibration samples"):
        equalize(source, tmp_path / "other.tflite", [])
