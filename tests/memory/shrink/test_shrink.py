"""The one entry: what is tried, what is kept, and the goal out of reach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgefuse.errors import GateFailed, UsageError
from edgefuse.memory.shrink.absorb_pad import absorb_padding
from edgefuse.memory.shrink.judge import judged
from edgefuse.memory.shrink.out_of_reach import OutOfReach, remedies
from edgefuse.memory.shrink.shrink import Kernels, Wish, shrink
from edgefuse.tflite.read import parse_model

from ..nets import Net, equal, mobile, pictures, results
from .test_order import wired


def _counts(data: bytes) -> dict[str, int]:
    return parse_model(data).operator_counts()


@pytest.mark.parametrize("kernels", ["builtin", "reference", "micro"])
def test_without_a_goal_padding_goes_where_it_costs_no_time(
    kernels: Kernels, tmp_path: Path
) -> None:
    data = mobile()
    made, done = shrink(data, Wish(kernels=kernels))
    assert "PAD" not in _counts(made) and _counts(made)["REVERSE_V2"] == 1
    assert done.arena_bytes <= done.arena_bytes_before and done.extra_share == 0
    assert done.bytes_moved < done.bytes_moved_before
    assert done.arena_bytes == judged(parse_model(made), "tflite_micro").arena_bytes
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(made, tmp_path, given))


@pytest.mark.parametrize("kernels", ["xnnpack", "npu"])
def test_padding_stays_where_the_runtime_does_it_for_nothing(kernels: Kernels) -> None:
    data = mobile()
    made, done = shrink(data, Wish(kernels=kernels))
    assert made is data
    assert done.steps[0].name == "padding" and "pads inside" in done.steps[0].why_not


@pytest.mark.parametrize("kernels", ["xnnpack", "npu"])
def test_a_goal_that_is_kept_already_costs_no_time(kernels: Kernels) -> None:
    data = mobile()
    before = judged(parse_model(data), "tflite_micro").arena_bytes
    made, done = shrink(data, Wish(kernels=kernels, arena_bytes=before))
    assert made is data and done.choice.padding == "keep"


def test_a_target_without_the_operator_gets_the_other_form() -> None:
    data = mobile()
    operators = frozenset(_counts(data))
    made, done = shrink(data, Wish(operators=operators, max_extra_multiply_adds=1.0))
    assert "PAD" not in _counts(made) and "REVERSE_V2" not in _counts(made)
    assert any("REVERSE_V2" in step.why_not for step in done.steps)
    bare, told = shrink(data, Wish(padding="turned", operators=operators, reverse_input=False))
    assert told.turned_inputs and "REVERSE_V2" not in _counts(bare)


def test_a_refused_form_says_why_and_costs_nothing() -> None:
    data = mobile()
    wish = Wish(padding="wider_kernels", max_extra_multiply_adds=0.0)
    made, done = shrink(data, wish)
    assert made is data and "more multiply-adds" in done.steps[0].why_not


def test_the_cheapest_that_keeps_to_the_goal() -> None:
    data = mobile((32, 32))
    free = shrink(data, Wish())[1].arena_bytes
    before = judged(parse_model(data), "tflite_micro").arena_bytes
    for goal, tiled in ((before, False), (free, False), (free * 8 // 10, True)):
        made, done = shrink(data, Wish(arena_bytes=goal, max_extra_multiply_adds=1.0))
        assert done.arena_bytes <= goal and done.goal == goal
        assert done.arena_bytes == judged(parse_model(made), "tflite_micro").arena_bytes
        assert any(step.name == "tiles" for step in done.steps) == tiled
        assert (done.extra_share > 0) == tiled


@pytest.mark.parametrize("arena", ["tflite_micro", "litert"])
def test_out_of_reach(arena: Any) -> None:
    with pytest.raises(GateFailed, match=r"cannot keep to 100 bytes: .*bound: \d+"):
        shrink(mobile(), Wish(arena_bytes=100, arena=arena))


@pytest.mark.parametrize("padding", ["auto", "keep"])
def test_the_least_that_is_named_is_reached_and_no_byte_less(padding: Any) -> None:
    data, wish = mobile(), Wish(padding=padding, max_extra_multiply_adds=0.3)
    with pytest.raises(OutOfReach) as refused:
        shrink(data, replace(wish, arena_bytes=100))
    least = refused.value.least_bytes
    assert least is not None and refused.value.exact
    assert f"the least is {least} bytes" in refused.value.message
    assert shrink(data, replace(wish, arena_bytes=least))[1].arena_bytes == least
    with pytest.raises(OutOfReach) as closer:
        shrink(data, replace(wish, arena_bytes=least - 1))
    assert closer.value.least_bytes == least
    share = closer.value.sufficient_share
    assert share is not None and share > 0.3
    reached = replace(wish, arena_bytes=least - 1, max_extra_multiply_adds=share)
    assert shrink(data, reached)[1].arena_bytes < least
    hint = remedies(closer.value, "the goal", "the limit")
    assert f"the goal of at least {least} bytes, the limit of {share:g}, " in hint


def test_tiles_make_the_file_larger_and_each_step_tells_it() -> None:
    data = mobile((32, 32))
    made, done = shrink(data, Wish(arena_bytes=9000, max_extra_multiply_adds=1.0))
    tiles = next(step for step in done.steps if step.name == "tiles")
    assert (done.file_bytes_before, done.file_bytes) == (len(data), len(made))
    assert tiles.file_bytes_before < tiles.file_bytes


def test_out_of_reach_where_nothing_can_be_tiled() -> None:
    net = Net((8, 8))
    data = net.finish(net.pooled(net.image))
    with pytest.raises(GateFailed, match="no operators of the model can be tiled"):
        shrink(data, Wish(arena_bytes=16))
    tiling = frozenset(_counts(mobile())) - {"PAD"}
    with pytest.raises(GateFailed, match=r"tiles need .*PAD"):
        shrink(mobile(), Wish(arena_bytes=1000, operators=tiling))


def test_order_is_a_step() -> None:
    for seed in range(10):
        data = wired(seed, 24)
        made, done = shrink(data, Wish())
        kept = [step for step in done.steps if step.name == "order" and step.kept]
        if kept:
            assert done.arena_bytes < done.arena_bytes_before and made != data
            assert shrink(data, Wish(order=False))[0] is data
            return
    raise AssertionError("no net had a better order")


def test_litert_judges_by_its_own_arena(tmp_path: Path) -> None:
    data = mobile((32, 32))
    made, done = shrink(data, Wish(arena="litert"))
    assert done.arena_bytes == judged(parse_model(made), "litert").arena_bytes
    assert done.arena_bytes <= done.arena_bytes_before
    goal = done.arena_bytes * 9 // 10
    tiled, told = shrink(data, Wish(arena="litert", arena_bytes=goal, max_extra_multiply_adds=2.0))
    assert told.arena_bytes <= goal
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(tiled, tmp_path, given))


def test_it_is_plain_json() -> None:
    told = shrink(mobile(), Wish(arena_bytes=4000, max_extra_multiply_adds=1.0))[1].as_json()
    assert json.loads(json.dumps(told))["goal"] == 4000


@pytest.mark.parametrize(
    "wish",
    [
        Wish(arena_bytes=0),
        Wish(arena_bytes=-5),
        Wish(max_extra_multiply_adds=-0.1),
        Wish(last=3),
        Wish(tiles=(2, 2)),
    ],
)
def test_wishes_that_contradict_themselves(wish: Wish) -> None:
    with pytest.raises(UsageError):
        shrink(mobile(), wish)


def test_two_pictures_are_turned_the_way_that_needs_the_smaller_arena() -> None:
    """As one row each, tflite-micro's planner places their three copies worse."""
    net = Net((32, 32))
    other = net.made("other", (32, 32, 3))
    first, second = (
        net.conv(net.pad(x, (1, 1), (1, 1)), 4, 3, 2, "VALID", "RELU6") for x in (net.image, other)
    )
    pooled = net.pooled(net.add(first, second))
    data = net.b.finish({"picture": net.image, "other": other}, {"out": pooled})
    as_rows, _ = absorb_padding(data, "turned")
    made, done = shrink(data, Wish(kernels="micro"))
    assert done.choice.padding == "turned" and _counts(made)["REVERSE_V2"] == 4
    assert done.arena_bytes < judged(parse_model(as_rows), "tflite_micro").arena_bytes
