"""Pieces of the HTML page: escaped text, cells, rows, tables and small drawings.

A column is a heading and a function from an entry to its cell's HTML; a heading that ends with
``#`` stands over figures, which align right. Everything that came from outside passes ``text``.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from edgefuse.report import units as write
from edgefuse.report.units import DASH, MINUS, TIMES, finite

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]

_TONES = {"pass": "pass", "fail": "fail", "error": "fail", "failed": "fail"}
_TONES |= {"inconclusive": "unsure", "blocked": "unsure", "incomplete": "unsure"}
_TONES |= {"reached": "pass", "missed": "fail"}
GLYPHS = {"pass": "✓ ", "fail": "✕ ", "unsure": "? ", "plain": ""}
BAR = '<svg class="bar {}" viewBox="0 0 160 18" role="img" aria-label="{}">{}</svg>'


def text(value: Any) -> str:
    """Anything as one line of escaped text."""
    return html.escape(write.printable(value), quote=True)


def code_name(value: Any) -> str:
    """An identifier in code type that may break after its separators."""
    shown = text(value)
    for mark in "_./":
        shown = shown.replace(mark, f"{mark}<wbr>")
    return f"<code>{shown}</code>" if shown else DASH


def tone(verdict: Any) -> str:
    """The class that colours a verdict: pass, fail, unsure or plain."""
    return _TONES.get(str(verdict), "plain")


def stamp(verdict: Any) -> str:
    """A verdict with its glyph and colour; the glyph says the same without colour."""
    kind = tone(verdict)
    glyph = f'<span aria-hidden="true">{GLYPHS[kind]}</span>'
    return f'<span class="verdict {kind}">{glyph}{text(verdict) or DASH}</span>'


def exact(value: Any, shown: str) -> str:
    """A figure as shown, its exact value on hover."""
    full = value if finite(value) is None else repr(value)
    return f'<span title="{text(full)}">{text(shown)}</span>'


def bytes_cell(value: Any) -> str:
    number = finite(value)
    if number is None:
        return DASH
    return f'<span title="{number:,.0f} bytes">{write.bytes_text(number)}</span>'


def change(was: int, now: int) -> str:
    return f"{now - was:+,}".replace("-", MINUS) if was != now else ""


def table(caption: str, head: Iterable[str], body: str, kind: str = "") -> str:
    """A table; a heading that ends with ``#`` stands over figures, which align right."""
    cells = "".join(
        f'<th scope="col"{" class=n" if h.endswith("#") else ""}>{text(h.rstrip("#"))}</th>'
        for h in head
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{text(caption)}">'
        f'<table class="{kind}"><caption>{text(caption)}</caption>'
        f"<thead><tr>{cells}</tr></thead>\n{body}</table></div>\n"
    )


def lines(
    columns: Columns, entries: Iterable[Row], kind: Callable[[Row], str] | None = None
) -> str:
    """One row an entry; the first column heads its row."""
    out = []
    for entry in entries:
        cells = []
        for index, (heading, cell) in enumerate(columns.items()):
            tag = "td" if index else 'th scope="row"'
            figure = ' class="n"' if heading.endswith("#") else ""
            cells.append(f"<{tag}{figure}>{cell(entry)}</{tag[:2]}>")
        chosen = f' class="{kind(entry)}"' if kind and kind(entry) else ""
        out.append(f"<tr{chosen}>{''.join(cells)}</tr>\n")
    return "".join(out)


def grid(
    caption: str,
    columns: Columns,
    entries: Sequence[Row],
    kind: Callable[[Row], str] | None = None,
) -> str:
    return table(caption, columns, lines(columns, entries, kind)) if entries else ""


def named(key: str) -> Callable[[Row], str]:
    return lambda entry: code_name(entry.get(key))


def said(key: str) -> Callable[[Row], str]:
    return lambda entry: text(entry.get(key)) or DASH


def number(key: str) -> Callable[[Row], str]:
    return lambda entry: exact(entry.get(key), write.number_text(entry.get(key)))


def size(key: str) -> Callable[[Row], str]:
    return lambda entry: bytes_cell(entry.get(key))


def tiny(key: str, before: str = "") -> Callable[[Row], str]:
    return lambda e: exact(e.get(key), f"{before}{write.power_text(e.get(key))}")


def fold(summary: str, body: str, kind: str = "") -> str:
    """Folded away; kind ``bulk`` stays folded on paper too."""
    return f'<details class="{kind}"><summary>{summary}</summary>\n{body}</details>\n'


def times(number: int, what: str) -> str:
    return f'<b class="times">{number:,} {TIMES}</b> <span>{what}</span>'


def margin_bar(check: Row) -> str:
    """The passing side shaded, a tick at the threshold, a dot at the value, a whisker to the
    bound."""
    threshold, bound = finite(check.get("threshold")), finite(write.judged(check))
    if threshold is None or bound is None:
        return ""
    given = finite(check.get("value"))
    value = bound if given is None else given
    low, high = min(threshold, bound, value), max(threshold, bound, value)
    below = str(check.get("comparison")).startswith("<")
    if below and low >= 0:
        low, high = 0.0, high * 1.2 or 1.0
    else:
        span = (high - low) or abs(threshold) * 0.1 or 1.0
        low, high = low - 0.35 * span, high + 0.35 * span

    def x(number: float) -> float:
        return 4 + 152 * (number - low) / (high - low)

    start, end = (4.0, x(threshold)) if below else (x(threshold), 156.0)
    shown, judged, limit, _ = write.check_texts(check)
    label = f"judged {judged if check.get('bound') is not None else shown}, threshold {limit}"
    drawing = (
        f'<path class="axis" d="M4 9H156"/>'
        f'<rect class="zone" x="{start:.1f}" y="3" width="{end - start:.1f}" height="12"/>'
        f'<path class="whisker" d="M{x(value):.1f} 9H{x(bound):.1f}M{x(bound):.1f} 6V12"/>'
        f'<circle class="dot" cx="{x(value):.1f}" cy="9" r="3.4"/>'
        f'<path class="limit" d="M{x(threshold):.1f} 1V17"/>'
    )
    return BAR.format(tone(check.get("verdict")), text(label), drawing)


def flat(figures: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every figure with its path; a list of plain values is one figure."""
    if isinstance(figures, Mapping):
        for key, value in figures.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(figures, list) and any(isinstance(v, (Mapping, list)) for v in figures):
        for index, value in enumerate(figures):
            yield from flat(value, f"{path}[{index}]")
    else:
        yield path, figures


def figure(name: str, value: Any) -> str:
    """A figure with the unit that its name states."""
    if isinstance(value, (list, tuple)):
        return ", ".join(figure(name, item) for item in value) or DASH
    unit = write.unit_of(name)
    if unit or not isinstance(value, float):
        return exact(value, write.quantity(value, unit))
    return exact(value, f"{value:,.5g}")
