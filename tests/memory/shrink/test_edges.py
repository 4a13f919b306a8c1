"""Far edges of strided depthwise convolutions apart: equal bit by bit, and what is left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.memory.shrink.edges import LEAST_VALUES, edges_apart
from edgefuse.memory.shrink.judge import Runtime, judged
from edgefuse.memory.shrink.shrink import Kernels, Wish, shrink
from edgefuse.memory.shrink.windows import PADDINGS
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import parse_model

from ..nets import Net, equal, pictures, results

LARGE = ((32, 24), 24)  # The result's values: 4,608.
ROUNDED = (36, 30)


def strided(size: tuple[int, int] = (32, 24), channels: int = 24, act: str = "NONE") -> bytes:
    net = Net(size, channels)
    return net.finish(net.conv(net.image, 0, 3, 2, activation=act))


def within(size: tuple[int, int], channels: int = 24) -> bytes:
    """Such a layer between others: what it reads is not needed later."""
    net = Net(size, 3)
    x = net.conv(net.conv(net.image, channels, 1), 0, 3, 2)
    return net.finish(net.pooled(net.conv(x, 8, 1)))


def _arena(data: bytes, runtime: Runtime = "tflite_micro") -> int:
    return judged(parse_model(data), runtime).arena_bytes


@pytest.mark.parametrize("kernels", ["builtin", "default"])
@pytest.mark.parametrize(
    ("size", "channels"),
    [((32, 24), 24), ((24, 32), 24), ((12, 80), 24), ((90, 22), 16), ((16, 16), 64)],
)
def test_every_bit_is_the_same(
    size: tuple[int, int], channels: int, kernels: str, tmp_path: Path
) -> None:
    data = strided(size, channels, "RELU6")
    made, done = edges_apart(data)
    assert done.apart == ("DEPTHWISE_CONV_2D#0",) and done.left == ()
    assert parse_model(made).operator_counts() == {
        "STRIDED_SLICE": 3, "DEPTHWISE_CONV_2D": 3, "CONCATENATION": 2
    }  # fmt: skip
    given = pictures(data)
    assert equal(results(data, tmp_path, given, kernels), results(made, tmp_path, given, kernels))
    again, more = edges_apart(made)
    assert again is made and more.apart == ()


def test_a_batch_several_readers_and_results_that_are_outputs(tmp_path: Path) -> None:
    net = Net(*LARGE)
    x = net.conv(net.image, 24, 1)
    y = net.conv(x, 0, 3, 2)
    z = net.conv(x, 0, 3, 2)
    edit = Edit(net.finish(net.pooled(x), net.add(y, z), y, x))
    for tensor in edit.graph.tensors:
        if not tensor.buffer and len(tensor.shape) == 4:
            tensor.shape = [3, *tensor.shape[1:]]
    data = edit.packed()
    made, done = edges_apart(data)
    assert done.apart == ("DEPTHWISE_CONV_2D#1", "DEPTHWISE_CONV_2D#2")
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(made, tmp_path, given))
    names = [[name for name, _ in parse_model(held).signature_outputs] for held in (data, made)]
    assert names[0] == names[1]


def test_a_wrong_edge_is_seen(tmp_path: Path) -> None:
    """The comparison above tells strips that were mixed up."""
    data = strided()
    edit = Edit(edges_apart(data)[0])
    first = next(o for o in edit.graph.operators if edit.code(o) == "STRIDED_SLICE")
    columns = int(edit.graph.tensors[first.inputs[0]].shape[2])
    edit.fill(int(first.inputs[1]), np.array([0, 0, columns - 3, 0], np.int32))
    edit.fill(int(first.inputs[2]), np.array([1, 32, columns - 1, 24], np.int32))
    given = pictures(data)
    assert not equal(results(data, tmp_path, given), results(edit.packed(), tmp_path, given))


def test_the_strips_come_first_and_share_the_constants() -> None:
    data = strided()
    made, _ = edges_apart(data)
    edit = Edit(made)
    convolutions = [o for o in edit.graph.operators if edit.code(o) == "DEPTHWISE_CONV_2D"]
    assert [PADDINGS[o.builtinOptions.padding] for o in convolutions] == ["SAME", "SAME", "VALID"]
    assert len({tuple(int(i) for i in o.inputs[1:]) for o in convolutions}) == 1
    versions = {
        edit.code(o): edit.model.operatorCodes[o.opcodeIndex].version for o in edit.graph.operators
    }
    assert versions["STRIDED_SLICE"] == 2 and versions["CONCATENATION"] == 2


@pytest.mark.parametrize("size", [(64, 64), (30, 34), (90, 22)])
def test_the_arena_stays(size: tuple[int, int]) -> None:
    data = within(size, 32)
    made, done = edges_apart(data)
    assert done.apart and _arena(made) == _arena(data)
    model = parse_model(made)
    sizes = {t.name.partition("_last_")[2] or t.name: t.nbytes for t in model.tensors}
    inside = next(n for name, n in sizes.items() if name.endswith("_inside"))
    whole = size[0] * size[1] // 4 * 32
    assert inside + sizes["row"] + sizes["column_above"] == whole


def test_an_arena_that_grows_is_refused() -> None:
    """The strips of a low picture are larger than its result; a picture that is read again later
    is in the way of joining."""
    net = Net((32, 24))
    x = net.conv(net.image, 24, 1)
    later = net.finish(net.pooled(net.conv(x, 0, 3, 2)), net.pooled(x))
    for data in (strided((4, 2048), 8), later):
        made, done = edges_apart(data)
        assert made is data and [reason for _, reason in done.left] == ["the arena grows"]


@pytest.mark.parametrize(("runtime", "spare"), [("litert", 3 * 63), ("tflite_micro", 3 * 15)])
def test_pieces_may_be_rounded_up_but_not_past_a_goal(runtime: Runtime, spare: int) -> None:
    data = within(ROUNDED)
    before = _arena(data, runtime)
    made, done = edges_apart(data, runtime)
    assert done.apart and before < _arena(made, runtime) <= before + spare
    kept, told = edges_apart(data, runtime, before)
    assert kept is data and told.left == (("DEPTHWISE_CONV_2D#1", "the arena grows"),)
    assert edges_apart(data, runtime, _arena(made, runtime))[0] == made


def _of_multiplier_two() -> bytes:
    net = Net((32, 24), 12)
    edit = net.made("map", (16, 12, 24))
    weight = net.constant((1, 3, 3, 24), 3)
    settings = {"strideW": 2, "strideH": 2, "padding": 0, "depthMultiplier": 2}
    settings |= {"dilationWFactor": 1, "dilationHFactor": 1}
    inputs = (net.image, weight, net.bias(weight, 24))
    net.b.op("DEPTHWISE_CONV_2D", inputs, (edit,), options=("DepthwiseConv2DOptions", settings))
    return net.finish(edit)


def _of_other_strides() -> bytes:
    edit = Edit(strided())
    edit.graph.operators[0].builtinOptions.strideW = 1
    edit.graph.tensors[edit.graph.operators[0].outputs[0]].shape = [1, 16, 24, 24]
    return edit.packed()


def _wide() -> bytes:
    net = Net(*LARGE)
    return net.finish(net.conv(net.image, 0, 5, 2))


def _float() -> bytes:
    net = Net(*LARGE, integer=False)
    return net.finish(net.conv(net.image, 0, 3, 2))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: strided((33, 24)), "a side of its input is odd"),
        (lambda: strided((32, 25)), "a side of its input is odd"),
        (lambda: strided((2, 2), 4096), "all of it is edge"),
        (lambda: strided((16, 16), 56), f"less than {LEAST_VALUES} values"),
        (lambda: strided((32, 32), 20), "channels not in 8s"),
        (_of_multiplier_two, "not one output a channel"),
        (_of_other_strides, "its strides differ"),
        (_wide, "its kernel is not 3 x 3"),
        (_float, "it computes in float32"),
    ],
)
def test_what_is_left_alone(made: Callable[[], bytes], reason: str) -> None:
    data = made()
    changed, done = edges_apart(data)
    assert changed is data and done.apart == ()
    ((name, told),) = done.left
    assert name == "DEPTHWISE_CONV_2D#0" and reason in told


def test_other_convolutions_are_not_spoken_of() -> None:
    net = Net(*LARGE)
    x = net.conv(net.conv(net.image, 24, 3, 2), 0, 3, 1)
    data = net.finish(x, net.conv(net.image, 0, 3, 2, "VALID"))
    changed, done = edges_apart(data)
    assert changed is data and done.apart == done.left == ()


class TestStep:
    """In the one entry to all rewrites."""

    @pytest.mark.parametrize("kernels", ["builtin", "legacy"])
    def test_it_is_told_and_chosen(self, kernels: Kernels) -> None:
        made, done = shrink(data := strided(), Wish(kernels=kernels))
        (step,) = [step for step in done.steps if step.name == "edges"]
        assert step.kept and step.did.startswith("edges of 1 depthwise convolution apart")
        assert done.choice.edges and made == edges_apart(data)[0]
        assert step.operators - step.operators_before == 7
        assert step.multiply_adds - step.multiply_adds_before == 24 * 9  # The corner, twice.

    @pytest.mark.parametrize(
        "wish",
        [
            *(Wish(kernels=held) for held in ("xnnpack", "reference", "micro", "npu")),
            Wish(edges=False),
        ],
    )
    def test_other_kernels_gain_nothing_by_it(self, wish: Wish) -> None:
        made, done = shrink(data := strided(), wish)
        assert made is data and not done.choice.edges
        assert "edges" not in [step.name for step in done.steps]

    @pytest.mark.parametrize(
        ("wish", "reason"),
        [
            ({"operators": frozenset({"DEPTHWISE_CONV_2D"})}, "CONCATENATION, STRIDED_SLICE"),
            ({"max_extra_multiply_adds": 0.0}, "it costs 216 more multiply-adds"),
        ],
    )
    def test_refused(self, wish: dict[str, Any], reason: str) -> None:
        made, done = shrink(data := strided(), Wish(**wish))
        assert made is data and not done.choice.edges
        assert reason in done.steps[-1].why_not and not done.steps[-1].kept

    def test_what_stays_says_why(self) -> None:
        made, done = shrink(data := strided((33, 24)), Wish())
        assert made is data
        assert done.steps[-1].why_not.startswith("DEPTHWISE_CONV_2D#0: a side of its input is odd")

    def test_a_goal_is_kept_to(self) -> None:
        data = within(ROUNDED)
        before = _arena(data)
        made, done = shrink(data, Wish(arena_bytes=before))
        assert made is data and "the arena grows" in done.steps[-1].why_not
        larger, told = shrink(data, Wish(arena_bytes=before + 64))
        assert told.choice.edges and told.arena_bytes <= before + 64 and larger != data


@pytest.mark.parametrize("kernels", ["builtin", "legacy"])
def test_a_turned_network(kernels: Kernels, tmp_path: Path) -> None:
    """PAD in front of a strided depthwise convolution is absorbed, and its far edge comes apart."""
    net = Net((64, 48))
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 24, 3, 2, "VALID", "RELU6")
    data = net.finish(net.pooled(net.block(x, 12, 2)))
    made, done = shrink(data, Wish(kernels=kernels))
    counts = Counter(parse_model(made).operator_counts())
    assert counts["PAD"] == 0 and counts["DEPTHWISE_CONV_2D"] == 3 and done.choice.edges
    assert counts["REVERSE_V2"] == (2 if kernels == "legacy" else 1)
    assert counts["RESHAPE"] == (0 if kernels == "legacy" else 2)
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(made, tmp_path, given))
