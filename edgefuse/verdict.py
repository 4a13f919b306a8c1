"""What a gate says: its checks against thresholds, and one of three answers.

A threshold is judged by the one-sided 95% bound of the figure. When the bound holds, the check
passes. When even the figure itself does not hold, it fails. In between the sample is too small or
too noisy to tell: inconclusive, which does not ship either. How many samples would do is said then.
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
        needed_samples: samples in all that would decide it, if the figure stays as it is; 0 where
            no number would, None where it is not known or nothing is open.
    """

    name: str
    value: float
    bound: float
    comparison: Literal[">=", "<="]
    threshold: float
    unit: str
    n: int
    needed_samples: int | None = None

    @property
    def answer(self) -> Answer:
        if self._holds(self.bound):
            return "pass"
        return "inconclusive" if self._holds(self.value) else "fail"

    def _holds(self, figure: float) -> bool:
        return figure >= self.threshold if self.comparison == ">=" else figure <= self.threshold


def settled_by(check: Mapping[str, Any]) -> str:
    """What would decide an inconclusive check, in a few words; empty when that is not known."""
    needed = check.get("needed_samples")
    if check.get("verdict") != "inconclusive" or not isinstance(needed, int):
        return ""
    if needed == 0:
        return "on its threshold, no number of samples decides"
    return f"needs about {needed:,} samples"


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
    listed = [{**asdict(check), "verdict": check.answer} for check in checks]
    texts = [f"{c.name} {c.value:.4g} {c.unit}".strip() for c in checks]
    told = [
        f"{text} ({more})" if (more := settled_by(row)) else text
        for text, row in zip(texts, listed)
    ]
    return {
        "verdict": verdict,
        "target": target,
        "runtime": runtime,
        "provenance": provenance,
        "checks": listed,
        "figures": dict(figures),
        "hint": hint if verdict != "pass" else "",
        "summary": ", ".join(told),
    }
