"""PADs that convolutions can do themselves: equal bit by bit, and what is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgefuse.memory.shrink.absorb_pad import Form, absorb_padding
from edgefuse.memory.shrink.multiply_adds import multiply_adds
from edgefuse.tflite.read import parse_model

from ..nets import Net, equal, mobile, pictures, results

FORMS: tuple[Form, ...] = ("wider_kernels", "turned")


@pytest.mark.parametrize("kernels", ["builtin", "default"])
@pytest.mark.parametrize("form", FORMS)
def test_no_pad_remains_and_every_bit_is_the_same(form: Form, kernels: str, tmp_path: Path) -> None:
    data = mobile()
    changed, facts = absorb_padding(data, form)
    assert facts.absorbed == ("PAD#0", "PAD#7", "PAD#15") and facts.left == ()
    counts = parse_model(changed).operator_counts()
    assert "PAD" not in counts
    assert counts.get("REVERSE_V2", 0) == (1 if form == "turned" else 0)
    given = pictures(data)
    assert equal(
        results(data, tmp_path, given, kernels), results(changed, tmp_path, given, kernels)
    )
    again, more = absorb_padding(changed, form)
    assert again is changed and more.absorbed == ()


@pytest.mark.parametrize("form", FORMS)
def test_float(form: Form, tmp_path: Path) -> None:
    data = mobile(integer=False)
    changed, facts = absorb_padding(data, form)
    assert len(facts.absorbed) == 3
    given = pictures(data)
    before, after = (results(held, tmp_path, given) for held in (data, changed))
    np.testing.assert_allclose(before, after, rtol=1e-4)


def test_a_wrong_kernel_is_seen(tmp_path: Path) -> None:
    """The comparison above tells a kernel that lies one pixel off."""
    net, other = Net((8, 8)), Net((8, 8))
    data = net.finish(net.conv(net.pad(net.image, (1, 1), (1, 1)), 4, 3, 2, "VALID"))
    shifted = other.finish(other.conv(other.image, 4, 3, 2, "SAME"))
    given = pictures(data)
    assert not equal(results(data, tmp_path, given), results(shifted, tmp_path, given))


def test_multiply_adds() -> None:
    net = Net((8, 8))
    data = net.finish(net.conv(net.pad(net.image, (1, 1), (1, 1)), 4, 3, 2, "VALID"))
    assert multiply_adds(parse_model(data)) == 4 * 4 * 4 * 9 * 3
    wide, turned = (absorb_padding(data, form)[1] for form in FORMS)
    assert wide.multiply_adds == 4 * 4 * 4 * 16 * 3
    assert wide.extra_share == pytest.approx(16 / 9 - 1)
    assert turned.multiply_adds == turned.multiply_adds_before


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_all_geometries(form: Form, stride: int, kernel: int, tmp_path: Path) -> None:
    """Absorbed or refused, the outputs stay."""
    for size, pad in (((12, 11), (1, 1)), ((9, 14), (0, 2)), ((13, 12), (2, 1))):
        net = Net(size)
        x = net.conv(net.pad(net.image, pad, pad[::-1]), 4, kernel, stride, "VALID")
        data = net.finish(x, net.conv(x, 0, 1, 2))
        changed, facts = absorb_padding(data, form)
        assert len(facts.absorbed) + len(facts.left) == 1
        given = pictures(data, 2)
        assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))


def test_a_turned_picture_among_the_outputs_is_turned_back(tmp_path: Path) -> None:
    net = Net((12, 10))
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 6, 3, 2, "VALID")
    data = net.finish(net.conv(net.pad(x, (0, 1), (2, 0)), 4, 2, 1, "VALID"), net.pooled(x))
    changed, facts = absorb_padding(data, "turned")
    assert "PAD#0" in facts.absorbed
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))


def _read_by_a_sum_of_itself(net: Net) -> int:
    return net.add(net.image, net.image)


def _read_by_a_depthwise_convolution(net: Net) -> int:
    return net.conv(net.image, 0, 3, 1)


def _read_by_convolutions(net: Net) -> int:
    """Of one kernel, which is turned once."""
    return net.add(net.conv(net.image, 4, 1, 1), net.conv(net.image, 4, 3, 1))


@pytest.mark.parametrize(
    ("first", "reversals"),
    [
        (_read_by_convolutions, 1),
        (_read_by_a_sum_of_itself, 2),
        (_read_by_a_depthwise_convolution, 2),
    ],
)
def test_only_convolutions_take_reversed_channels(
    first: Callable[[Net], int], reversals: int, tmp_path: Path
) -> None:
    net = Net((12, 10))
    x = net.conv(net.pad(first(net), (1, 1), (1, 1)), 4, 3, 2, "VALID")
    data = net.finish(net.pooled(x))
    changed, facts = absorb_padding(data, "turned")
    assert facts.absorbed and parse_model(changed).operator_counts()["REVERSE_V2"] == reversals
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))


def test_without_the_operator_the_picture_must_be_turned(tmp_path: Path) -> None:
    data = mobile()
    changed, facts = absorb_padding(data, "turned", reverse=False)
    assert facts.turned_inputs == ("image",) and facts.turned_outputs == ()
    assert "REVERSE_V2" not in parse_model(changed).operator_counts()
    given = pictures(data)
    upright = results(data, tmp_path, given)
    assert equal(upright, results(changed, tmp_path, [p[:, ::-1, ::-1] for p in given]))
    assert not equal(upright, results(changed, tmp_path, given))


def _read_by_a_sum() -> bytes:
    net = Net((8, 8))
    padded = net.pad(net.image, (1, 1), (1, 1))
    return net.finish(net.conv(net.add(padded, padded), 4))


def _is_an_output() -> bytes:
    net = Net((8, 8))
    padded = net.pad(net.image, (1, 1), (1, 1))
    return net.finish(padded, net.conv(padded, 4, 3, 2, "VALID"))


def _of_another_scale() -> bytes:
    net = Net((8, 8))
    padded = net.pad(net.image, (1, 1), (1, 1))
    net.b.graph.tensors[padded].quantization.scale = [0.01]
    return net.finish(net.conv(padded, 4, 3, 2, "VALID"))


def _dilated() -> bytes:
    net = Net((9, 9))
    return net.finish(net.conv(net.pad(net.image, (1, 0), (1, 0)), 4, 3, 1, "VALID", dilation=2))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_read_by_a_sum, "ADD reads it"),
        (_is_an_output, "its result is an output of the model"),
        (_of_another_scale, "its input and output have different scales"),
        (_dilated, "SAME or VALID|dilated kernel"),
    ],
)
def test_what_is_left_alone(made, reason: str, form: Form) -> None:  # type: ignore[no-untyped-def]
    data = made()
    changed, facts = absorb_padding(data, form)
    assert changed is data and facts.absorbed == ()
    assert len(facts.left) == 1 and re.search(reason, facts.left[0][1])


def test_a_turn_is_refused_by_what_does_not_commute() -> None:
    net = Net((8, 8))
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 4, 3, 2, "VALID")
    flat = net.made("flat", (1, 1, 64))
    net.b.op("RESHAPE", (x,), (flat,), options=("ReshapeOptions", {"newShape": [1, 1, 1, 64]}))
    changed, facts = absorb_padding(data := net.finish(flat), "turned")
    assert changed is data
    assert facts.left == (
        ("PAD#0", "RESHAPE#2 is in the way of a turn: it does not commute with one"),
    )
