"""Turns and failures, with workers that compute nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgefuse.compare.document import build
from edgefuse.compare.interleave import Measured, Task, order_of, run
from edgefuse.compare.rows import ROWS

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *([known] if known else [])]))


def test_every_place_comes_first_and_neighbours_change() -> None:
    orders = [order_of(4, turn) for turn in range(8)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert {order[0] for order in orders} == {0, 1, 2, 3}
    assert orders[:2] == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert order_of(0, 3) == [] and order_of(1, 3) == [0]


def _run(folder: Path, behaviours: dict[str, str], after: str = "") -> list[Measured]:
    """Rows of these behaviours; ``first`` is a task that is no row."""
    rows = [Measured(row) for row in ROWS[: len(behaviours) - ("first" in behaviours)]]
    names = iter(m.row.name for m in rows)
    tasks = [
        Task(
            key if key == "first" else next(names),
            "idle_worker",
            {"do": "prepare", "behaviour": behaviour, "turns": str(folder / "turns")},
            folder / f"{key}.log",
            after="" if key == "first" else after,
            environment={"CUDA_VISIBLE_DEVICES": "7"} if key == "on a GPU" else {},
        )
        for key, behaviour in behaviours.items()
    ]
    said: list[tuple[int, int, str]] = []
    try:
        run(
            rows,
            tasks,
            rounds=3,
            invokes=2,
            scratch=folder,
            prepared=lambda *words: said.append(words),
            measured=lambda *words: None,
        )
    finally:
        alive = [c for c in psutil.Process().children() if "idle_worker" in c.cmdline()]
        assert alive == []
    assert [done for done, _, _ in said] == list(range(1, len(tasks) + 1))
    return rows


def test_each_row_once_a_round(tmp_path: Path) -> None:
    rows = _run(tmp_path, {"a": "work", "b": "work", "c": "work"})
    assert [m.status for m in rows] == ["measured"] * 3
    assert all([len(burst) for burst in m.bursts_ms] == [2, 2, 2] for m in rows)
    pids = (tmp_path / "turns").read_text().split()
    assert len(pids) == 9 and len(set(pids)) == 3
    assert all(len(set(pids[k : k + 3])) == 3 for k in (0, 3, 6))


def test_a_row_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    behaviours = {"a": "work", "b": "raise", "c": "crash", "d": "crash later", "e": "lack"}
    rows = _run(tmp_path, behaviours)
    assert [m.status for m in rows] == ["measured", "error", "error", "error", "unavailable"]
    assert rows[1].reason == "cannot (here)"
    assert "ended with code 7: last words" in rows[2].reason
    assert "ended with code 7: last words" in rows[3].reason
    assert rows[4].reason == "no compiler"
    assert len(rows[0].bursts_ms) == 3


def test_only_a_row_on_a_gpu_sees_one(tmp_path: Path) -> None:
    rows = _run(tmp_path, {"a": "see", "on a GPU": "see"})
    assert [m.reason for m in rows] == ["sees -1", "sees 7"]


@pytest.mark.parametrize(("first", "status"), [("work", "measured"), ("raise", "error")])
def test_a_row_waits_for_what_it_needs(tmp_path: Path, first: str, status: str) -> None:
    rows = _run(tmp_path, {"first": first, "a": "work", "b": "work"}, after="first")
    assert [m.status for m in rows] == [status] * 2


def _measured(index: int, *bursts: list[float], **fields: Any) -> Measured:
    cpu_ms = [t for burst in bursts for t in burst]
    return Measured(ROWS[index], bursts_ms=list(bursts), cpu_ms=cpu_ms, **fields)


def test_ratios_are_of_neighbours_in_time(tmp_path: Path) -> None:
    """The machine halves its speed: neither median tells the ratio, the rounds do."""
    import numpy as np

    eager = _measured(0, [10.0, 10, 40], [20.0, 20, 20], [20.0, 20, 20])
    half = _measured(1, [5.0, 5, 5], [10.0, 9, 30], [10.0, 10, 10])
    absent = Measured(ROWS[2], "unavailable", "why")
    results = {}
    for name, value in (("eager", [1.0, -4.0]), ("folded", [1.0, -4.4])):
        results[name] = tmp_path / f"{name}.npz"
        np.savez(results[name], **{"0/y": np.array(value, np.float32)})
    found = build(
        "tiny",
        [eager, half, absent],
        results,
        command="edgefuse compare tiny.yaml",
        rounds=3,
        invokes=3,
        load=0.5,
        seconds=1.0,
        warnings=["said"],
    )
    first, second, third = found["rows"]
    assert (first["ratio_to_eager"], second["ratio_to_eager"]) == (1.0, 2.0)
    assert (first["p50_ms"], second["p50_ms"], second["samples"]) == (20, 10, 9)
    assert first["max_relative_error"] == 0.0
    assert second["max_relative_error"] == pytest.approx(0.1, rel=1e-5)
    assert (third["available"], third["p50_ms"], third["reason"]) == (False, None, "why")
    assert (found["base"], found["exit_code"], found["warnings"]) == ("eager", 0, ["said"])


def test_the_base_without_eager_and_outputs_that_do_not_fit(tmp_path: Path) -> None:
    import numpy as np

    rows = [_measured(4, [4.0]), _measured(5, [2.0]), _measured(6, [1.0])]
    rows[1].cpu_ms = [4.0]
    results = {}
    for row, value in zip(rows, ([1.0], [1.0], [1.0, 2.0])):
        results[row.row.name] = tmp_path / f"{row.row.name}.npz"
        np.savez(results[row.row.name], **{"0/y": np.array(value, np.float32)})
    found = build(
        *("tiny", rows, results),
        **{"command": "", "rounds": 1, "invokes": 1, "load": 0.0, "seconds": 1.0, "warnings": ()},
    )
    assert found["base"] == "onnxruntime_disabled" and found["exit_code"] == 3
    assert [row["status"] for row in found["rows"]] == ["measured", "measured", "error"]
    assert found["rows"][1]["ratio_to_base"] == 2.0
    assert found["rows"][1]["ratio_to_eager"] is None
    assert "shape and type" in found["rows"][2]["reason"]
    assert found["warnings"] == ["onnxruntime_basic ran on 2.00 CPUs, not on one"]
