"""The search for a goal as two drawings (SVG) that can be read by themselves.

The dots have one row a candidate and one panel a threshold of the goal. The frontier, drawn where
times were measured, has accuracy against time: its line joins the candidates that no other beats
in both. Neither says what the table beside them does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgefuse.report import units as write
from edgefuse.report.cells import text
from edgefuse.report.parts import part, rows
from edgefuse.report.search import METRICS, figure_text, score_of
from edgefuse.report.units import finite

_ROW, _PANEL, _GAP, _TOP, _LETTER = 26, 190, 92, 34, 7.2
_PLOT = (92, 640, 44, 254)  # left, right, top, bottom of the frontier
_STEPS = (1.0, 2.0, 5.0, 10.0)
Row = Mapping[str, Any]


def judged_by(search: Mapping[str, Any]) -> list[str]:
    """The thresholds that the goal has."""
    goal = part(search, "goal")
    return [key for key in METRICS if finite(goal.get(key)) is not None]


def dot_chart(search: Mapping[str, Any]) -> str:
    """Every candidate's figures against the goal's thresholds; empty for a single candidate."""
    trials, keys = rows(search, "trials"), judged_by(search)
    if len(trials) < 2 or not keys:
        return ""
    bottom = _TOP + _ROW * len(trials)
    drawn = []
    labels = [
        f"{place}. {_short(write.printable(trial.get('technique')), 48)}"
        for place, trial in enumerate(trials, 1)
    ]
    names = 14 + _LETTER * max(map(len, labels))
    for place, label in enumerate(labels):
        middle = _TOP + _ROW * (place + 0.5)
        drawn.append(f'<text x="0" y="{middle:g}">{text(label)}</text>')
    for index, key in enumerate(keys):
        drawn += _panel(search, trials, key, names + index * (_PANEL + _GAP), bottom)
    width = names + len(keys) * (_PANEL + _GAP)
    best = "; ".join(f"{METRICS[k]} {figure_text(k, _best(trials, k))} at best" for k in keys)
    return _svg(width, bottom + 8, f"{len(trials)} candidates against the goal: {best}", drawn) + (
        '<p class="note">Shaded: what the goal asks for, from its threshold on. A filled dot '
        "reaches the whole goal, a hollow one does not.</p>\n"
    )


def _panel(search: Row, trials: Sequence[Row], key: str, left: float, bottom: float) -> list[str]:
    limit = finite(part(search, "goal").get(key)) or 0.0
    values = [score_of(trial, key) for trial in trials]
    known = [v for v in values if v is not None and v < 900]
    low, high = min([*known, limit]), max([*known, limit])
    room = 0.08 * (high - low) or abs(limit) * 0.05 or 1.0
    low, high = low - room, high + room

    def x(value: float) -> float:
        return left + _PANEL * min(1.0, (value - low) / (high - low))

    at, right = x(limit), left + _PANEL
    start, end = (left, at) if key.startswith("max") else (at, right)
    sign = "≤" if key.startswith("max") else "≥"
    unit = " points" if key == "max_drop_points" else ""
    drawn = [
        f'<text x="{left:g}" y="10">{METRICS[key]} {sign} {text(figure_text(key, limit))}{unit}'
        "</text>",
        f'<rect class="zone" x="{start:.1f}" y="{_TOP - 8}" width="{end - start:.1f}" '
        f'height="{bottom - _TOP + 8}"/>',
        f'<path class="limit" d="M{at:.1f} {_TOP - 8}V{bottom}"/>',
    ]
    for place, (trial, value) in enumerate(zip(trials, values)):
        middle = _TOP + _ROW * (place + 0.5)
        drawn.append(f'<path class="axis" d="M{left:g} {middle:g}H{right:g}"/>')
        if value is not None:
            drawn.append(_dot(trial, x(value), middle))
            shown = text(figure_text(key, value))
            drawn.append(f'<text class="soft" x="{right + 12:g}" y="{middle:g}">{shown}</text>')
    return drawn


def frontier_chart(search: Mapping[str, Any]) -> str:
    """Accuracy against time beside the float file; empty unless two candidates were timed."""
    keys = judged_by(search)
    points = []
    for place, trial in enumerate(rows(search, "trials"), 1):
        ratio = finite(trial.get("latency_ratio"))
        value = score_of(trial, keys[0]) if keys else None
        if ratio is not None and value is not None:
            points.append((ratio, min(value, 900.0), place, trial))
    if len(points) < 2:
        return ""
    key = keys[0]
    up = -1.0 if key.startswith("max") else 1.0
    limit = finite(part(search, "goal").get(key)) or 0.0
    left, right, top, bottom = _PLOT
    across = _ticks([p[0] for p in points], 6)
    along = _ticks([*(p[1] for p in points), limit], 5)

    def x(ratio: float) -> float:
        return left + (right - left) * (ratio - across[0]) / (across[-1] - across[0])

    def y(value: float) -> float:
        share = (value - along[0]) / (along[-1] - along[0])
        return bottom - (bottom - top) * (share if up > 0 else 1 - share)

    drawn = []
    for tick in along:
        drawn.append(f'<path class="axis" d="M{left} {y(tick):.1f}H{right}"/>')
        shown = text(figure_text(key, tick))
        drawn.append(f'<text class="name soft" x="{left - 10}" y="{y(tick):.1f}">{shown}</text>')
    for tick in across:
        drawn.append(f'<path class="axis" d="M{x(tick):.1f} {bottom}V{bottom + 5}"/>')
        shown = f"{tick:.6g}{write.TIMES}"
        drawn.append(
            f'<text class="middle soft" x="{x(tick):.1f}" y="{bottom + 16}">{shown}</text>'
        )
    at = y(limit)
    drawn.append(f'<path class="limit" d="M{left} {at:.1f}H{right}"/>')
    drawn.append(f'<text x="{right + 10}" y="{at:.1f}">goal</text>')
    drawn.append(
        f'<text class="middle soft" x="{(left + right) / 2:g}" y="{bottom + 38}">time beside the '
        "float file</text>"
    )
    drawn.append(f'<text class="name" x="{left - 10}" y="14">{METRICS[key]}</text>')
    edge = frontier([(ratio, up * value) for ratio, value, _, _ in points])
    line = "L".join(f"{x(r):.1f} {y(up * v):.1f}" for r, v in edge)
    drawn.append(f'<path class="edge" d="M{line}"/>')
    for ratio, value, place, trial in points:
        title = (
            f"{write.printable(trial.get('technique'))}: {figure_text(key, value)}, "
            f"{write.quantity(ratio, 'ratio')}"
        )
        dot = _dot(trial, x(ratio), y(value))
        drawn.append(f"<g><title>{text(title)}</title>{dot}</g>")
        at_x, at_y = x(ratio) - 7, y(value) - 10
        drawn.append(f'<text class="name" x="{at_x:.1f}" y="{at_y:.1f}">{place}</text>')
    told = f"{METRICS[key]} against time beside the float file of {len(points)} candidates; " + (
        "the frontier: "
        + "; ".join(f"{figure_text(key, up * v)} at {write.quantity(r, 'ratio')}" for r, v in edge)
    )
    return _svg(right + 60, bottom + 48, told, drawn) + (
        '<p class="note">Numbers are those of the table. The line joins the candidates that no '
        "other beats in both accuracy and time; higher and further left is better.</p>\n"
    )


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats: as fast or faster, and better; by time."""
    edge: list[tuple[float, float]] = []
    for ratio, worth in sorted(points, key=lambda point: (point[0], -point[1])):
        if not edge or worth > edge[-1][1]:
            edge.append((ratio, worth))
    return edge


def _ticks(values: Sequence[float], most: int) -> list[float]:
    """Round numbers that span the values, at least two and about ``most``."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) * 0.1 or 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(s * power for s in _STEPS if s * power * most >= span)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _best(trials: Sequence[Row], key: str) -> float | None:
    known = [v for trial in trials if (v := score_of(trial, key)) is not None]
    if not known:
        return None
    return min(known) if key.startswith("max") else max(known)


def _dot(trial: Row, x: float, y: float) -> str:
    kind = "mark" if trial.get("meets") else "mark hollow"
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _svg(width: float, height: float, told: str, drawn: Sequence[str]) -> str:
    return (
        f'<div class="wide"><svg class="chart" style="max-width:{width:g}px" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{text(told)}">{"".join(drawn)}</svg></div>\n'
    )
