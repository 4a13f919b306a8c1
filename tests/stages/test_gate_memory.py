"""What the memory gate says when the arena or the file is too large."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_stages import recipe

from edgefuse.devices.measure.arena import Arena
from edgefuse.stages.gate_memory import hint
from edgefuse.verdict import Check

LITERT = Arena(100_016, 90_000, 0, "litert")
MICRO = Arena(100_016, 50_000, 0, "tflite-micro", head_bytes=56_576)


def check(name: str, value: float, limit: float) -> Check:
    return Check(name, value, value, "<=", limit, "bytes", 1)


TOO_LARGE = [check("arena", 100_016, 100_000), check("model", 10, 20)]


def test_a_recipe_without_the_section_is_told_of_it() -> None:
    told = hint(TOO_LARGE, LITERT, recipe(memory=None), lowered=False)
    assert "`memory: {arena_bytes: 100000}`" in told
    assert "`edgefuse memory RECIPE --memory 100000`" in told
    assert "head" not in told and "weights" not in told


def test_head_and_structures_are_told_apart() -> None:
    told = hint(TOO_LARGE, MICRO, recipe(memory={"arena_bytes": 60_000}), lowered=False)
    assert "56,576 bytes of the arena are its head" in told
    assert "43,440 the interpreter's structures" in told
    assert "memory.arena_bytes is 60000: 56560 would do" in told
    assert "a higher goal may need less in all" in told
    assert "--memory 56560`" in told
    kept = hint(TOO_LARGE, MICRO, recipe(memory={"arena_bytes": 50_000}), lowered=False)
    assert "is 50000; tiles add structures" in kept
    assert "is not given: 56560" in hint(TOO_LARGE, MICRO, recipe(memory={}), lowered=False)


def test_no_goal_makes_room_for_structures() -> None:
    told = hint([check("arena", 100_016, 43_440)], MICRO, recipe(memory=None), lowered=False)
    assert "only fewer operators" in told and "arena_bytes" not in told


def test_the_strictest_limit_counts_and_weights_are_named() -> None:
    checks = [
        *(*TOO_LARGE, check("arena on the target", 100_016, 90_000)),
        check("model on the target", 30, 20),
    ]
    told = hint(checks, LITERT, recipe(memory=None), lowered=False)
    assert "arena_bytes: 90000" in told and "mostly weights" in told


@pytest.mark.parametrize("held", [None, {"arena_bytes": 5}])
def test_what_was_lowered_has_no_goal(held: dict[str, int] | None) -> None:
    told = hint(TOO_LARGE, LITERT, recipe(memory=held), lowered=True)
    assert told == "a smaller input or narrower layers need less"
    assert (
        hint([replace(TOO_LARGE[0], threshold=2e5)], LITERT, recipe(memory=held), lowered=False)
        == ""
    )
