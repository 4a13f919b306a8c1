"""A comparison of toolchains, as a table on a terminal and as a page with a bar chart.

Both show every row: one that was not measured says why. What a figure means is in
:mod:`edgefuse.compare.document`, which makes the document. Any part of it may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefuse.report.cells import Columns, Row, exact, grid, said, text
from edgefuse.report.page import page
from edgefuse.report.parts import part, rows
from edgefuse.report.table import MAX_WIDTH, padded_columns, spelling, wrapped
from edgefuse.report.units import (
    DASH,
    TIMES,
    finite,
    number_text,
    plural,
    power_text,
    printable,
    seconds_text,
)

_NAME_WIDTH = 270
_BAR_WIDTH = 340
_ROW_HEIGHT = 24
_WHY_LENGTH = 64
_ABOUT = (
    "Every row ran in a process of its own on one thread, or on the GPU that it names, in turns "
    "with all others. Times are of single invocations, a GPU waited for; a ratio says how many "
    "times as fast as the base a row is. The error is the largest difference to the base, relative "
    "to the base's largest output."
)


def _ratio(row: Row) -> str:
    ratio = finite(row.get("ratio_to_base"))
    return DASH if ratio is None else f"{ratio:.2f}{TIMES}"


def _fusions(row: Row) -> str:
    kinds = part(row, "fusion_kinds")
    return ", ".join(f"{number_text(n)} {kind}" for kind, n in kinds.items())


def _base(document: Row) -> str:
    """What ratios and errors refer to, in a few words."""
    return str(document.get("base_title") or "no row: none was measured")


def _cells(row: Row) -> list[str]:
    """The figures of a row as the table and the page write them."""
    return [
        number_text(row.get("operators")),
        number_text(row.get("fusions")),
        number_text(row.get("p50_ms")),
        number_text(row.get("p90_ms")),
        _ratio(row),
        power_text(row.get("max_relative_error")),
    ]


def comparison_table(
    document: Mapping[str, Any], *, encoding: str = "utf-8", paths: Sequence[str] = ()
) -> str:
    """The comparison as plain text, at most 100 columns wide, ending with a newline.

    Args:
        paths: the files that hold more, named in the last line.
    """
    shown, ellipsis = spelling(encoding)
    found = rows(document, "rows")
    eager = document.get("base") == "eager"
    ratio = "to eager" if eager else "to base"
    table = [["row", "operators", "fusions", "p50 ms", "p90 ms", ratio, "max error"]]
    for row in found:
        there = row.get("status") == "measured"
        figures = _cells(row) if there else [DASH] * 6
        table.append([shown(cell) for cell in (row.get("name"), *figures)])
    cells = padded_columns(table, range(1, 7), MAX_WIDTH, ellipsis)
    lines = ["  ".join(line).rstrip() for line in cells]
    notes = []
    reasons: dict[str, list[str]] = {}
    for row in found:
        if row.get("status") != "measured":
            why = f"{row.get('status')}: {row.get('reason')}"
            reasons.setdefault(why, []).append(str(row.get("name")))
    for why, names in reasons.items():
        notes += wrapped(shown(f"{', '.join(names)}: {why}"), MAX_WIDTH, "  ", ellipsis)
    for warning in document.get("warnings") or ():
        notes += wrapped(shown(f"warning: {warning}"), MAX_WIDTH, "  ", ellipsis)
    ending = (
        f"{document.get('recipe')}: ratios and errors are to {_base(document)}; one thread, "
        f"{number_text(document.get('rounds'))} interleaved rounds, "
        f"{seconds_text(document.get('seconds'))} in all"
    )
    ending += f" -> {', '.join(paths)}" if paths else ""
    blocks = [lines, *([notes] if notes else []), wrapped(shown(ending), MAX_WIDTH, "  ", ellipsis)]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def bar_chart(document: Mapping[str, Any]) -> str:
    """The median time of every row as an SVG: a bar to p50, a whisker to p90.

    One row that takes more than four times as long as all others would make the rest unreadable:
    its bar is cut, and drawn so.
    """
    found = rows(document, "rows")
    scale = _BAR_WIDTH / _longest(found)
    drawn = []
    for index, row in enumerate(found):
        middle = (index + 0.5) * _ROW_HEIGHT
        label = text(row.get("title"))
        drawn.append(f'<text class="name" x="{_NAME_WIDTH - 10}" y="{middle:g}">{label}</text>')
        p50, p90 = finite(row.get("p50_ms")), finite(row.get("p90_ms"))
        if p50 is None or p90 is None:
            why = f"{row.get('status')}: {printable(row.get('reason')).partition(' (')[0]}"
            why = why if len(why) <= _WHY_LENGTH else f"{why[: _WHY_LENGTH - 1]}…"
            drawn.append(f'<text class="soft" x="{_NAME_WIDTH}" y="{middle:g}">{text(why)}</text>')
            continue
        drawn.append(_bar(row, middle, p50 * scale, p90 * scale))
    height, width = len(found) * _ROW_HEIGHT, _NAME_WIDTH + _BAR_WIDTH + 140
    return (
        f'<div class="wide"><svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Median time of each row">{"".join(drawn)}</svg></div>\n'
        '<p class="note">Bars: the median; whiskers: to the 90th percentile; beside them, how '
        f"many times as fast as {text(_base(document))}. Coloured: edgefuse's own files.</p>\n"
    )


def _longest(found: Sequence[Row]) -> float:
    """What the full width of the chart stands for, in milliseconds."""
    ends = sorted((finite(row.get("p90_ms")) or 0.0 for row in found), reverse=True)
    longest, second = (*ends, 0.0, 0.0)[:2]
    cut = 1.25 * second if 0 < 4 * second < longest else longest
    return cut or 1.0


def _bar(row: Row, middle: float, p50: float, p90: float) -> str:
    """One bar with its figures; lengths in units of the drawing."""
    kind = "span" if row.get("ours") else "was"
    time = f"{number_text(row.get('p50_ms'))} ms"
    length, end = min(p50, _BAR_WIDTH), min(p90, _BAR_WIDTH)
    x, right = _NAME_WIDTH + length, _NAME_WIDTH + end
    mark = f"M{x:.1f} {middle:g}H{right:.1f}M{right:.1f} {middle - 4:g}v8"
    if p90 > _BAR_WIDTH:
        mark = f"M{right - 14:.1f} {middle + 9:g}l6 -18m4 0l-6 18"
    return (
        f'<rect class="{kind}" x="{_NAME_WIDTH}" y="{middle - 8:g}" width="{max(length, 1):.1f}" '
        f'height="16"/>'
        f'<path class="limit" d="{mark}"/>'
        f'<text x="{right + 8:.1f}" y="{middle:g}">{time}'
        f'<tspan class="soft" dx="8">{_ratio(row)}</tspan></text>'
    )


def _table(document: Row) -> str:
    def figure(key: str, index: int) -> Any:
        return lambda row: exact(row.get(key), _cells(row)[index])

    columns: Columns = {
        "row": lambda row: f"<code>{text(row.get('name'))}</code> {text(row.get('title'))}",
        "operators#": figure("operators", 0),
        "fusions#": lambda row: exact(_fusions(row) or row.get("fusions"), _cells(row)[1]),
        "p50 ms#": figure("p50_ms", 2),
        "p90 ms#": figure("p90_ms", 3),
        "ratio#": figure("ratio_to_base", 4),
        "max error#": figure("max_relative_error", 5),
        "samples#": lambda row: number_text(row.get("samples")),
        "CPU ms#": lambda row: number_text(row.get("cpu_p50_ms")),
        "CPUs#": lambda row: number_text(row.get("cores")),
    }
    measured = [row for row in rows(document, "rows") if row.get("status") == "measured"]
    return grid("Figures of every measured row", columns, measured)


def _fused(document: Row) -> str:
    columns: Columns = {
        "row": lambda row: f"<code>{text(row.get('name'))}</code>",
        "what it fused": lambda row: text(_fusions(row)) or DASH,
        "how it ran": said("note"),
        "version": lambda row: text(
            ", ".join(f"{k} {v}" for k, v in part(row, "versions").items())
        ),
    }
    measured = [row for row in rows(document, "rows") if row.get("status") == "measured"]
    return grid("What each row fused", columns, measured)


def _absent(document: Row) -> str:
    columns: Columns = {
        "row": lambda row: f"<code>{text(row.get('name'))}</code>",
        "status": said("status"),
        "reason": said("reason"),
    }
    absent = [row for row in rows(document, "rows") if row.get("status") != "measured"]
    return grid("Rows that were not measured", columns, absent)


def _machine(document: Row) -> str:
    pairs = {**part(document, "machine"), "edgefuse": document.get("edgefuse")}
    items = "".join(
        f"<div><dt>{text(key.replace('_', ' '))}</dt><dd>{text(value)}</dd></div>\n"
        for key, value in pairs.items()
    )
    command = text(document.get("command"))
    told = f'<pre tabindex="0"><code>{command}</code></pre>\n' if command else ""
    return f'{told}<dl class="environment">{items}</dl>\n'


def render(document: Mapping[str, Any]) -> str:
    """The page of a comparison, as one HTML text."""
    found = rows(document, "rows")
    measured = sum(row.get("status") == "measured" for row in found)
    name = text(document.get("recipe")) or "unnamed recipe"
    summary = (
        f"{measured} of {len(found)} {plural(len(found), 'row')} measured in "
        f"{number_text(document.get('rounds'))} rounds of up to "
        f"{number_text(document.get('invokes'))} invocations; ratios and errors are to "
        f"{_base(document)}."
    )
    body = (
        f'<header class="plain">\n<p class="stamp">compare</p>\n<div>\n<h1><span class="recipe">'
        f'{name}</span> through other toolchains</h1>\n<p class="about">{_ABOUT}</p>\n'
        f'<p class="summary">{text(summary)}</p>\n</div>\n</header>\n'
    )
    warnings = "".join(f"<li>{text(w)}</li>\n" for w in document.get("warnings") or ())
    sections = {
        "Time": bar_chart(document) if found else "",
        "Figures": _table(document),
        "Fusions": _fused(document),
        "Not measured": _absent(document),
        "Warnings": f'<ul class="warnings">\n{warnings}</ul>\n' if warnings else "",
        "To repeat": _machine(document),
    }
    for title, content in sections.items():
        if content:
            body += f"<section>\n<h2>{title}</h2>\n<div>\n{content}</div>\n</section>\n"
    return page(f"compare: {document.get('recipe') or 'unnamed recipe'}", body)
