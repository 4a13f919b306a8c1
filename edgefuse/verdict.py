"""What a gate says: its checks against thresholds, and one of three answers.

A threshold is judged by the one-sided 95% bound of the figure. When the bound holds, the check
passes. When even the figure itself does not hold, it fails. In between the sample is too small or
too noisy to tell: inconclusive, which does not ship either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Answer = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Check:
    """One figure against its threshold.

    Attributes:
        value: the figure on the sample.
        bound: its one-sided 95% bound on the side that hurts; the value itself when exact.
        comparison: how the bound must stand to the threshold.
        n: samples behind the figure.
    """

    name: str
    value: float
    bound: float
    comparison: Literal[">=", "<="]
    threshold: float
    unit: str
    n: int

    @property
    def answer(self) -> Answer:
        if self._holds(self.bound):
            return "pass"
        return "inconclusive" if self._holds(self.value) else "fail"

    def _holds(self, figure: float) -> bool:
        return figure >= self.threshold if self.comparison == ">=" else figure <= self.threshold


def evidence(
    checks: Sequence[Check],
    *,
    target: str,
    runtime: str,
    provenance: Literal["measured", "emulated-count", "estimated"],
    figures: Mapping[str, Any],
    hint: str = "",
) -> dict[str, Any]:
    """A gate's evidence document.

    Raises:
        ValueError: no check: a gate that compares nothing decides nothing.
    """
    if not checks:
        raise ValueError("a gate needs at least one check")
    answers = [check.answer for check in checks]
    verdict: Answer = (
        "fail" if "fail" in answers else "inconclusive" if "inconclusive" in answers else "pass"
    )
    summary = ", ".join(f"{c.name} {c.value:.4g} {c.unit}".strip() for c in checks)
    return {
        "verdict": verdict,
        "target": target,
        "runtime": runtime,
        "provenance": provenance,
        "checks": [{**asdict(check), "verdict": check.answer} for check in checks],
        "figures": dict(figures),
        "hint": hint if verdict != "pass" else "",
        "summary": summary,
    }
