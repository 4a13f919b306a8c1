"""The search for a goal in words and as a table of texts, as a terminal and the page show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefuse.report import units as write
from edgefuse.report.parts import part, rows
from edgefuse.report.units import DASH, MINUS, finite, plural, seconds_text

Row = Mapping[str, Any]
#: The goal's thresholds, by what they judge.
METRICS = {"min_agreement": "agreement", "max_drop_points": "drop", "min_sqnr_db": "SQNR"}
HEADINGS = METRICS | {"max_drop_points": "drop, points"}
_FIELDS = {
    "min_agreement": "agreement",
    "max_drop_points": "drop_points",
    "min_sqnr_db": "sqnr_db",
}
_EXACT_DB = 999.0
_SHOWN = 12


def figure_text(key: str, value: Any) -> str:
    """A goal's threshold or a score's figure, as people read it."""
    number = finite(value)
    if number is None:
        return DASH
    if key == "min_agreement":
        return f"{100 * number:.2f}%"
    if key == "min_sqnr_db":
        return "exact" if number >= _EXACT_DB else f"{number:.2f} dB".replace("-", MINUS)
    return f"{number:.2f}".replace("-", MINUS)


def score_of(trial: Row, key: str) -> float | None:
    """What a threshold of the goal judges."""
    return finite(part(trial, "score").get(_FIELDS[key]))


def layers_of(trial: Row) -> int:
    """How many layers the candidate raised to float."""
    held = trial.get("float_layers")
    return len(held) if isinstance(held, Sequence) and not isinstance(held, str) else 0


def goal_text(goal: Mapping[str, Any]) -> str:
    """The goal in words: agreement at least 97.00%, drop at most 1.00 points."""
    told = [
        f"{METRICS[key]} at {'most' if key.startswith('max') else 'least'} "
        f"{figure_text(key, goal[key])}{' points' if key == 'max_drop_points' else ''}"
        for key in METRICS
        if finite(goal.get(key)) is not None
    ]
    return ", ".join(told) or "no threshold"


def outcome_text(search: Mapping[str, Any]) -> str:
    """How the search ended, one sentence without its full stop."""
    trials = rows(search, "trials")
    tried = f"{len(trials)} {plural(len(trials), 'candidate')} tried"
    chosen, goal = write.printable(search.get("chosen")), goal_text(part(search, "goal"))
    if search.get("reached"):
        return f"{goal}: reached by {chosen}; {tried}"
    untried = write.printable(search.get("untried"))
    return f"{goal}: not reached; {tried}, the nearest is {chosen}" + (
        f"; {untried}" if untried else ""
    )


def trial_rows(
    search: Mapping[str, Any], narrow: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Headings and one row of texts a candidate, for a terminal; columns without a figure are left
    out, and those in the middle of many candidates.

    Args:
        narrow: leave out all figures but those that the goal judges.
    """
    trials = rows(search, "trials")
    head = ["candidate", *HEADINGS.values(), "float layers", "time", "took", "goal"]
    table = []
    for trial in trials:
        ratio = finite(trial.get("latency_ratio"))
        table.append(
            [
                write.printable(trial.get("technique")),
                *(figure_text(key, score_of(trial, key)) for key in METRICS),
                str(layers_of(trial)),
                DASH if ratio is None else write.quantity(ratio, "ratio"),
                seconds_text(trial.get("seconds")),
                "reached" if trial.get("meets") else "missed",
            ]
        )
    empty = {
        place
        for place in range(1, len(head) - 1)
        if all(row[place] == DASH or (place == 4 and row[place] == "0") for row in table)
    }
    if narrow:
        goal = part(search, "goal")
        empty |= {1 + i for i, key in enumerate(METRICS) if goal.get(key) is None} | {4, 5, 6}
    kept = [[c for i, c in enumerate(row) if i not in empty] for row in [head, *table]]
    if len(table) > _SHOWN:
        half = _SHOWN // 2
        gap = [f"… {len(table) - _SHOWN} more", *[""] * (len(kept[0]) - 1)]
        kept = [*kept[: half + 1], gap, *kept[-half:]]
    return kept[0], kept[1:]
