"""Gates: three answers, and none without a check."""

from __future__ import annotations

from typing import Any

import pytest

from edgefuse.verdict import Check, evidence, figure_text, settled_by, stated

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


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (100016.0, "100,016"),
        (1234567890, "1,234,567,890"),
        (2**53, "9,007,199,254,740,992"),
        (12345.6, "12,346"),
        (1234.5, "1,234"),
        (99.95, "99.95"),
        (0.5, "0.5"),
        (0.42128, "0.4213"),
        (-31.4159, "-31.42"),
        (0.0, "0"),
        (NAN, "nan"),
    ],
)
def test_figures_are_never_powers_of_ten(value: float, told: str) -> None:
    assert figure_text(value) == told


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (
            Check("arena", 100016.0, 100016.0, "<=", 100000, "bytes", 1),
            "arena 100,016 must be <= 100,000 bytes: fail",
        ),
        (
            Check("instructions", 987654321.0, 987654321.0, "<=", 987654320.0, "", 1),
            "instructions 987,654,321 must be <= 987,654,320: fail",
        ),
        (
            Check("cycles", 1000000.25, 1000000.25, "<=", 1e6, "", 1),
            "cycles 1,000,000.2 must be <= 1,000,000: fail",
        ),
        (
            Check("drop", 0.5, 1.5, "<=", 1.0, "points", 400, 1100),
            "drop 0.5 (bound 1.5) must be <= 1 points: inconclusive, needs about 1,100 samples",
        ),
        (
            Check("agreement", 87.99951, 85.0, ">=", 88.0, "%", 9),
            "agreement 87.9995 (bound 85) must be >= 88 %: fail",
        ),
        (
            Check("sqnr", NAN, NAN, ">=", 30.0, "dB", 1),
            "sqnr nan must be >= 30 dB: fail",
        ),
    ],
)
def test_a_check_is_one_sentence_in_which_figures_differ(check: Check, told: str) -> None:
    document = evidence([check], target="t", runtime="r", provenance="measured", figures={})
    assert stated(document["checks"][0]) == told
    assert document["summary"].startswith(f"{check.name} {figure_text(check.value)}")
