"""Measuring until the checks are decided, sustained load, and thresholds in the wrong unit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.devices.device import Cost
from edgefuse.devices.measure.cost import Series, checks_of, measure
from edgefuse.errors import RecipeError
from edgefuse.recipe import LatencyGate

FILES = {"int8": Path("int8"), "float": Path("float"), "baseline": Path("baseline")}
FEEDS: dict[str, Any] = {name: {} for name in FILES}
AGAINST_BASELINE = {"baseline": {"path": "b"}, "max_ratio_to_baseline": 1.05}


class Board:
    """Times by file from a seeded draw; ``speed`` says how slow each file truly is."""

    def __init__(self, unit: Any = "ms", noise: float = 0.0, **speed: float) -> None:
        self.unit, self.noise, self.speed = unit, noise, speed
        self.random = np.random.default_rng(0)
        self.calls = 0

    def cost(self, models: Any, feeds: Any, *, processes: int, rounds: int) -> Cost:
        self.calls += 1
        shape = (1, 1) if self.unit != "ms" else (processes, rounds)
        rows = []
        for path in models:
            true = 1000.0 * self.speed.get(path.name, 1.0)
            values = true * (1 + self.noise * self.random.standard_normal(shape))
            rows.append(tuple(tuple(float(v) for v in row) for row in values))
        return Cost(self.unit, "measured", tuple(rows), conditions={"n": self.calls})


def judged(board: Board, **gate: Any) -> tuple[Series, list[str]]:
    limits = LatencyGate(**{"processes": 3, "rounds": 10, **gate})
    files = {n: p for n, p in FILES.items() if n != "baseline" or limits.baseline is not None}
    anything: Any = board
    series, checks = measure(
        anything,
        files,
        FEEDS,
        limits,
        judge=lambda s: checks_of(s, limits, limits.max_ratio_to_float, 0),
        progress=lambda *_: None,
        clock=ticking().__next__,
    )
    return series, [check.answer for check in checks]


def ticking() -> Iterator[float]:
    return (10.0 * k for k in count())


def test_a_clear_answer_is_measured_once() -> None:
    board = Board(noise=0.01, int8=0.5)
    series, answers = judged(board, max_ratio_to_float=0.8)
    assert answers == ["pass"] and board.calls == series.measurements == 1
    assert series.figures()["ratio_to_float"] == pytest.approx(0.5, abs=0.02)
    assert 0 < series.figures()["noise_band"] < 0.02


def test_an_open_answer_is_measured_again_and_all_rounds_count() -> None:
    board = Board(noise=0.2, int8=0.99)
    series, answers = judged(board, max_ratio_to_float=1.0, repeats=4)
    assert board.calls == series.measurements > 1
    assert series.values("int8").shape == (3 * board.calls, 10)
    assert answers == ["inconclusive"] or board.calls < 4


def test_never_more_often_than_asked() -> None:
    board = Board(noise=0.3)
    _, answers = judged(board, max_ratio_to_float=1.01, repeats=2)
    assert answers == ["inconclusive"] and board.calls == 2


def test_a_slower_file_than_the_baselines_fails() -> None:
    _, answers = judged(Board(noise=0.01, int8=1.1), **AGAINST_BASELINE)
    assert answers == ["fail"]
    _, answers = judged(Board(noise=0.01), **AGAINST_BASELINE)
    assert answers == ["pass"]


def test_exact_counts_are_judged_without_a_bound() -> None:
    slower = {**AGAINST_BASELINE, "max_ratio_to_baseline": 1.02}
    board = Board("instructions", int8=1.05)
    series, answers = judged(board, **slower, max_instructions=1050)
    assert answers == ["fail", "pass"] and board.calls == 1
    assert series.figures()["int8"] == {"instructions": 1050}
    assert "noise_band" not in series.figures()
    assert judged(Board("instructions", int8=1.0199), **slower)[1] == ["pass"]
    assert judged(board, max_instructions=1049)[1] == ["fail"]


@pytest.mark.parametrize(
    ("unit", "limit"),
    [
        ("ms", {"max_instructions": 10}),
        ("ms", {"max_cycles": 10}),
        ("instructions", {"max_p90_ms": 1.0}),
        ("cycles", {"max_instructions": 10}),
    ],
)
def test_a_threshold_in_another_unit_is_refused(unit: str, limit: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=f"this target gives {unit}") as raised:
        judged(Board(unit), **limit)
    assert "gates.targets" in raised.value.hint


def test_sustained_load_is_judged_by_its_second_half() -> None:
    class Hot(Board):
        def cost(self, models: Any, feeds: Any, *, processes: int, rounds: int) -> Cost:
            self.speed = dict.fromkeys(FILES, 1.0 if self.calls < 3 else 2.0)
            return super().cost(models, feeds, processes=processes, rounds=rounds)

    board = Hot()
    series, answers = judged(board, max_p90_ms=1500.0, sustained_s=55)
    assert answers == ["fail"] and board.calls == 6
    assert series.halves == (1000.0, 2000.0)
    assert series.figures()["sustained_p50_ms"] == [1000.0, 2000.0]
    assert judged(Hot(), max_p90_ms=1500.0)[1] == ["pass"]
