"""What is alive when, what shares a place, and what cannot be planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgefuse.errors import StageError
from edgefuse.memory.arena import peak, unique_names
from edgefuse.memory.liveness.sharing import Sharing
from edgefuse.memory.liveness.tflite import LITERT, TFLITE_MICRO, live_buffers
from edgefuse.tflite.read import TfliteModel, parse_model

from ..nets import Net

PLAIN = Sharing(alignment=1, keeps_inputs=False, reshapes=False, elementwise=False)


def _model() -> TfliteModel:
    """image 0 -> conv 0 -> conv 1 -> sum 2 (of both) -> reshape 3 -> conv 4."""
    net = Net((5, 5), 2)
    x = net.conv(net.image, 3)
    y = net.conv(x, 3)
    total = net.add(x, y)
    shaped = net.made("shaped", (5, 5, 3))
    options = ("ReshapeOptions", {"newShape": [1, 5, 5, 3]})
    net.b.op("RESHAPE", (total,), (shaped,), options=options)
    return parse_model(net.finish(net.conv(shaped, 1)))


def test_bytes_and_lifetimes() -> None:
    found = [(b.size_bytes, b.first, b.last) for b in live_buffers(_model(), PLAIN)]
    assert found == [(50, 0, 0), (75, 0, 2), (75, 1, 2), (75, 2, 3), (75, 3, 4), (25, 4, 4)]
    assert peak(live_buffers(_model(), PLAIN)) == (225, 2)


def test_alignment_and_inputs_that_stay() -> None:
    sizes = [b.size_bytes for b in live_buffers(_model(), TFLITE_MICRO)]
    assert sizes == [64, 80, 80, 80, 80, 32]
    image = live_buffers(_model(), replace(PLAIN, keeps_inputs=True))[0]
    assert (image.first, image.last) == (0, 4)


def test_a_sum_is_written_over_its_input_and_a_reshape_is_its_input() -> None:
    model = _model()
    reshaped = live_buffers(model, replace(PLAIN, reshapes=True))
    assert [(b.first, b.last) for b in reshaped if len(b.tensors) == 2] == [(2, 4)]
    both = live_buffers(model, LITERT)
    (shared,) = (b for b in both if len(b.tensors) > 1)
    # Over y, which is read once, and not over x, which is read twice.
    assert shared.tensors[1:] == ("sum1_4", "shaped") and (shared.first, shared.last) == (1, 4)
    assert peak(both)[0] == 64 + 128 + 128


def test_an_input_that_is_read_again_is_not_written_over() -> None:
    net = Net((4, 4), 2)
    x, y = net.conv(net.image, 2), net.conv(net.image, 2)
    first = net.add(x, y)
    model = parse_model(net.finish(net.conv(net.add(net.add(first, x), y), 1)))
    buffers = live_buffers(model, replace(PLAIN, elementwise=True))
    assert sorted(len(b.tensors) for b in buffers) == [1, 1, 1, 1, 3]
    held = next(b for b in buffers if len(b.tensors) == 3)
    names = {model.tensors[x].name, model.tensors[y].name}
    assert not names <= set(held.tensors)


def test_names_that_repeat_are_numbered() -> None:
    assert unique_names(["x", "y", "x", "", "x (2)"]) == ("x", "y", "x (3)", "tensor", "x (2)")
    model = _model()
    tensors = tuple(replace(tensor, name="same") for tensor in model.tensors)
    names = [b.name for b in live_buffers(replace(model, tensors=tensors), PLAIN)]
    assert len(set(names)) == len(names) and names[:2] == ["same", "same (2)"]


def test_what_cannot_be_planned() -> None:
    model = _model()
    image = model.tensors[model.inputs[0]]
    for change, message in (
        ({"dynamic_axes": (0, 2)}, "known only at run time"),
        ({"shape": (-1, 5, 5, -2)}, "known only at run time"),
        ({"nbytes": 0, "shape": (1, 0, 5, 2)}, "has no elements"),
        ({"nbytes": 2**63}, "larger than an address"),
    ):
        tensors = (replace(image, **change), *model.tensors[1:])  # type: ignore[arg-type]
        with pytest.raises(StageError, match=message) as caught:
            live_buffers(replace(model, tensors=tensors), PLAIN)
        assert "'image'" in caught.value.message and caught.value.hint
    assert peak(()) == (0, 0)


def test_an_open_batch_counts_as_stored() -> None:
    model = _model()
    tensors = tuple(replace(tensor, dynamic_axes=(0,)) for tensor in model.tensors)
    assert live_buffers(replace(model, tensors=tensors), PLAIN) == live_buffers(model, PLAIN)
