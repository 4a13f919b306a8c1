"""What a gate says: its checks against thresholds, and one of three answers.

A threshold is judged by the one-sided 95% bound of the figure. When the bound holds, the check
passes. When even the figure itself does not hold, it fails. In between the sample is too small or
too noisy to tell: inconclusive, which does not ship either. How many samples would do is said then.
"""

from __future__ import annotations

import math
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


_DIGITS = 4
_MOST_DIGITS = 12


def figure_text(value: float, digits: int = _DIGITS) -> str:
    """A figure in words: whole numbers in full, thousands grouped; of others ``digits`` digits.

    Never in powers of ten but below 0.0001: 100,016 and 12,346 and 0.4213.
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) < 1:
        return f"{value:.{digits}g}"
    text = f"{value:,.{max(digits - len(str(int(abs(value)))), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def stated(check: Mapping[str, Any]) -> str:
    """A check as one sentence: ``arena 100,016 must be <= 100,000 bytes: fail``.

    The bound is told where it is not the value itself. Digits are added until value and bound read
    otherwise than the threshold.
    """
    value, bound, threshold = (float(check[key]) for key in ("value", "bound", "threshold"))
    digits = _DIGITS
    while digits < _MOST_DIGITS and any(
        figure != threshold and figure_text(figure, digits) == figure_text(threshold, digits)
        for figure in (value, bound)
    ):
        digits += 1
    told = f"{check['name']} {figure_text(value, digits)}"
    if bound != value and not (math.isnan(bound) and math.isnan(value)):
        told += f" (bound {figure_text(bound, digits)})"
    told += f" must be {check['comparison']} {figure_text(threshold, digits)}"
    more = settled_by(check)
    return (
        f"{told} {check.get('unit', '')}".rstrip()
        + f": {check['verdict']}"
        + (f", {more}" if more else "")
    )


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
    texts = [f"{c.name} {figure_text(c.value)} {c.unit}".strip() for c in checks]
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
