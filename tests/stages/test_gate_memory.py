"""What the memory gate says when the arena or the file is too large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tflite.tiny import float_file, int8_file, weights

from edgefuse.devices.measure.arena import Arena
from edgefuse.recipe import MemoryGate
from edgefuse.stages.gate_memory import hint, run
from edgefuse.target import load_target
from edgefuse.verdict import Check, stated

LITERT = Arena(100_016, 90_000, 0, "litert")
MICRO = Arena(100_016, 50_000, 0, "tflite-micro", head_bytes=56_576)


def check(name: str, value: float, limit: float) -> Check:
    return Check(name, value, value, "<=", limit, "bytes", 1)


TOO_LARGE = [check("arena", 100_016, 100_000), check("model", 10, 20)]


def test_a_recipe_without_the_section_is_told_of_it() -> None:
    told = hint(TOO_LARGE, LITERT, {"convert", "quantize"})
    assert "`memory: {arena_bytes: 100000}`" in told
    assert "`edgefuse memory RECIPE --memory 100000`" in told
    assert "head" not in told and "structures" not in told and "weights" not in told
    shrunk = hint(TOO_LARGE, LITERT, {"quantize", "shrink"})
    assert "memory.arena_bytes: 100000 in the recipe" in shrunk and "structures" not in shrunk


def test_head_and_structures_are_told_apart() -> None:
    told = hint(TOO_LARGE, MICRO, {"shrink"})
    assert "56,576 bytes of the arena are its head" in told
    assert "43,440 the interpreter's structures" in told
    assert "memory.arena_bytes: 56560 in the recipe" in told
    assert "a higher goal may need less in all" in told
    assert "--memory 56560`" in told


def test_no_goal_makes_room_for_structures() -> None:
    told = hint([check("arena", 100_016, 43_440)], MICRO, set())
    assert "only fewer operators" in told and "arena_bytes" not in told


def test_the_strictest_limit_counts_and_weights_are_named() -> None:
    checks = [
        *(*TOO_LARGE, check("arena on the target", 100_016, 90_000)),
        check("model on the target", 30, 20),
    ]
    told = hint(checks, LITERT, {"quantize"})
    assert "arena_bytes: 90000" in told and "mostly weights" in told


@pytest.mark.parametrize("made_by", [{"lower"}, {"lower", "shrink"}])
def test_what_was_lowered_has_no_goal(made_by: set[str]) -> None:
    assert hint(TOO_LARGE, LITERT, made_by) == "a smaller input or narrower layers need less"
    assert hint([replace(TOO_LARGE[0], threshold=2e5)], LITERT, made_by) == ""


def test_the_gate_fails_in_whole_bytes(tmp_path: Path) -> None:
    """The recipe is no more than its gates: the stage declares no other section."""
    given: dict[str, Any] = {}
    (tmp_path / "float.tflite").write_bytes(float_file(weights()))
    (tmp_path / "int8.tflite").write_bytes(int8_file(tmp_path / "float.tflite"))
    for stage, name in (("convert", "float"), ("quantize", "int8")):
        given[stage] = SimpleNamespace(path=tmp_path / f"{name}.tflite")
    recipe: Any = SimpleNamespace(
        gates=SimpleNamespace(memory=MemoryGate(max_arena_bytes=1000, max_model_bytes=10**6))
    )
    context: Any = SimpleNamespace(
        target=load_target("host"),
        work=tmp_path,
        log=tmp_path / "log",
        file_name="memory.json",
        progress=lambda *_: None,
    )
    document = run(given, recipe, context).evidence
    arena = document["figures"]["int8"]["measured_bytes"]
    assert document["verdict"] == "fail" and arena > 1000
    assert stated(document["checks"][0]) == f"arena {arena:,} must be <= 1,000 bytes: fail"
    assert document["summary"].startswith(f"arena {arena:,} bytes, model ")
    assert "memory: {arena_bytes: 1000}" in document["hint"]
    assert "head_bytes" not in document["figures"]["int8"]
