"""Which layers go to float together: the maker and all readers of a tensor."""

from __future__ import annotations

from edgefuse.quant.search.islands import islands
from edgefuse.tflite.read import TfliteModel, parse_model
from quant.weights.networks import Net

CONV = ("CONV_2D",)


def chain(*names: str) -> TfliteModel:
    """x [1, 4, 4, 3] -> a 1x1 convolution for each name, one after the other."""
    net = Net(0)
    x = value = net.tensor("input", (1, 4, 4, 3))
    for name in names:
        value = net.conv(name, value, (1, 4, 4, 3), activation="NONE")
    return parse_model(net.finish({"x": x}, {"y": value}))


def test_a_tensor_is_freed_by_its_maker_and_its_reader_and_islands_grow() -> None:
    model = chain("a", "b", "c", "d", "e")
    found = islands(model, {"a": 1, "b": 9, "c": 6, "d": 2, "e": 3}, CONV)
    # b's tensor needs two layers, c's then only one more; e's is the model's output.
    assert found == [("b", "c"), ("d",), ("e",), ("a",)]


def test_a_far_tensor_needs_two_layers_of_its_own() -> None:
    model = chain("a", "b", "c", "d", "e", "f")
    shares = {"a": 10.0, "b": 0.5, "c": 0.0, "d": 0.0, "e": 8.0, "f": 0.0}
    assert islands(model, shares, CONV) == [("a", "b"), ("e", "f"), ("c",)]


def test_all_readers_are_needed() -> None:
    net = Net(0)
    x = net.tensor("input", (1, 4, 4, 3))
    a = net.conv("a", x, (1, 4, 4, 3), activation="NONE")
    b = net.conv("b", a, (1, 4, 4, 3), activation="NONE")
    y = net.simple("ADD", "sum", (a, b), (1, 4, 4, 3), "NONE", ("AddOptions", {}))
    model = parse_model(net.finish({"x": x}, {"y": y}))
    shares = {"a": 9.0, "b": 1.0, "sum": 1.0}
    assert islands(model, shares, ("CONV_2D", "ADD")) == [("a", "b", "sum")]
    # The sum may not be float: neither tensor can be freed, the layers come alone, by their share.
    assert islands(model, shares, CONV) == [("a",), ("b",)]


def test_nothing_permitted_gives_nothing() -> None:
    assert islands(chain("a", "b"), {"a": 1.0, "b": 2.0}, ()) == []
