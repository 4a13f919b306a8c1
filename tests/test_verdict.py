"""Gates: three answers, and none without a check."""

from __future__ import annotations

from typing import Any

import pytest

from edgefuse.verdict import Check, evidence, settled_by

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "bound", "comparison", "answer"),
    [
        (95.0, 91.0, ">=", "pass"),
        (95.0, 90.0, ">=", "pass"),
        (95.0, 89.9, ">=", "inconclusive"),
        (89.0, 80.0, ">=", "fail"),
        (80.0, 90.0, "<=", "pass"),
        (80.0, 90.1, "<=", "inconclusive"),
        (91.0, 95.0, "<=", "fail"),
        (NAN, NAN, ">=", "fail"),
        (NAN, NAN, "<=", "fail"),
        (95.0, NAN, ">=", "inconclusive"),
        (float("inf"), float("inf"), "<=", "fail"),
    ],
)
def test_answer(value: float, bound: float, comparison: Any, answer: str) -> None:
    assert Check("f", value, bound, comparison, 90.0, "%", 10).answer == answer


def judged(*answers: str) -> dict[str, Any]:
    figures = {"pass": (95.0, 91.0), "inconclusive": (95.0, 80.0), "fail": (80.0, 70.0)}
    checks = [Check(f"c{i}", *figures[a], ">=", 90.0, "%", 9) for i, a in enumerate(answers)]
    return evidence(
        checks,
        target="host",
        runtime="r",
        provenance="measured",
        figures={"a": 1},
        hint="do this",
    )


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        (["pass"], "pass"),
        (["pass", "pass"], "pass"),
        (["pass", "inconclusive"], "inconclusive"),
        (["inconclusive", "fail", "pass"], "fail"),
    ],
)
def test_the_worst_check_decides(answers: list[str], verdict: str) -> None:
    document = judged(*answers)
    assert document["verdict"] == verdict
    assert [c["verdict"] for c in document["checks"]] == answers
    assert document["hint"] == ("" if verdict == "pass" else "do this")
    assert document["summary"].startswith("c0 ")


def test_a_gate_without_a_check_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one check"):
        judged()


@pytest.mark.parametrize(
    ("needed", "told"),
    [
        (1100, "needs about 1,100 samples"),
        (0, "on its threshold, no number of samples decides"),
        (None, ""),
    ],
)
def test_an_open_check_says_what_would_decide_it(needed: int | None, told: str) -> None:
    check = Check("drop", 0.5, 1.5, "<=", 1.0, "points", 400, needed)
    document = evidence([check], target="t", runtime="r", provenance="measured", figures={})
    assert document["verdict"] == "inconclusive"
    assert settled_by(document["checks"][0]) == told
    assert document["summary"] == f"drop 0.5 points{f' ({told})' if told else ''}"
    decided = {**document["checks"][0], "verdict": "pass"}
    assert settled_by(decided) == ""
