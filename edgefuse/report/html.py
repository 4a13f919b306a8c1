"""One self-contained page that tells a release engineer whether a model may ship, and why.

The order is the order of the questions: the verdict, the gates with the room that is left to
each threshold, what fused and what that saved, what did not fuse and why, where the time went,
whether the numbers survived, and what is needed to check and to repeat the run.

The page holds its style and its drawings (SVG) and no script; a content policy in its head
forbids every request and every script, so that text from a recipe can do nothing but be read.
Equal documents give equal pages. Any part of the document may be missing: a run that failed
early still has a page.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from edgefuse.errors import EXIT_CODES
from edgefuse.report import table as write
from edgefuse.report.table import DASH, MINUS, TIMES, count, finite, part, plural, rows

_Row = Mapping[str, Any]
_Columns = Mapping[str, Callable[[_Row], str]]

_TONES = {"pass": "pass", "fail": "fail", "error": "fail", "failed": "fail"}
_TONES |= {"inconclusive": "unsure", "blocked": "unsure", "incomplete": "unsure"}
_GLYPHS = {"pass": "✓ ", "fail": "✕ ", "unsure": "? ", "plain": ""}
_HEADLINES = {
    "pass": "may ship",
    "fail": "may not ship: a gate failed",
    "inconclusive": "may not ship: a gate is undecided",
    "error": "stopped on an error",
    "incomplete": "is incomplete",
}
_BAR = '<svg class="bar {}" viewBox="0 0 160 18" role="img" aria-label="{}">{}</svg>'
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<main>
$body</main>
</body>
</html>
""")


@cache
def _style() -> str:
    return resources.files("edgefuse.report").joinpath("style.css").read_text(encoding="utf-8")


def _text(value: Any) -> str:
    return html.escape(write.printable(value), quote=True)


def _name(value: Any) -> str:
    """An identifier in code type that may break after its separators."""
    text = _text(value)
    for mark in "_./":
        text = text.replace(mark, f"{mark}<wbr>")
    return f"<code>{text}</code>" if text else DASH


def _tone(verdict: Any) -> str:
    return _TONES.get(str(verdict), "plain")


def _verdict(verdict: Any) -> str:
    tone = _tone(verdict)
    glyph = f'<span aria-hidden="true">{_GLYPHS[tone]}</span>'
    return f'<span class="verdict {tone}">{glyph}{_text(verdict) or DASH}</span>'


def _exact(value: Any, shown: str) -> str:
    exact = value if finite(value) is None else repr(value)
    return f'<span title="{_text(exact)}">{_text(shown)}</span>'


def _bytes(value: Any) -> str:
    number = finite(value)
    if number is None:
        return DASH
    return f'<span title="{number:,.0f} bytes">{write.bytes_text(number)}</span>'


def _change(was: int, now: int) -> str:
    return f"{now - was:+,}".replace("-", MINUS) if was != now else ""


def _table(caption: str, head: Iterable[str], body: str, kind: str = "") -> str:
    """A table; a heading that ends with ``#`` stands over figures, which align right."""
    cells = "".join(
        f'<th scope="col"{" class=n" if h.endswith("#") else ""}>{_text(h.rstrip("#"))}</th>'
        for h in head
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{_text(caption)}">'
        f'<table class="{kind}"><caption>{_text(caption)}</caption>'
        f"<thead><tr>{cells}</tr></thead>\n{body}</table></div>\n"
    )


def _lines(
    columns: _Columns, entries: Iterable[_Row], kind: Callable[[_Row], str] | None = None
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


def _grid(
    caption: str,
    columns: _Columns,
    entries: Sequence[_Row],
    kind: Callable[[_Row], str] | None = None,
) -> str:
    return _table(caption, columns, _lines(columns, entries, kind)) if entries else ""


def _named(key: str) -> Callable[[_Row], str]:
    return lambda entry: _name(entry.get(key))


def _said(key: str) -> Callable[[_Row], str]:
    return lambda entry: _text(entry.get(key)) or DASH


def _number(key: str) -> Callable[[_Row], str]:
    return lambda entry: _exact(entry.get(key), write.number_text(entry.get(key)))


def _size(key: str) -> Callable[[_Row], str]:
    return lambda entry: _bytes(entry.get(key))


def _tiny(key: str, before: str = "") -> Callable[[_Row], str]:
    return lambda e: _exact(e.get(key), f"{before}{write.power_text(e.get(key))}")


def _fold(summary: str, body: str, kind: str = "") -> str:
    """Folded away; kind ``bulk`` stays folded on paper too."""
    return f'<details class="{kind}"><summary>{summary}</summary>\n{body}</details>\n'


def _times(number: int, what: str) -> str:
    return f'<b class="times">{number:,} {TIMES}</b> <span>{what}</span>'


def _margin_bar(check: _Row) -> str:
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
    return _BAR.format(_tone(check.get("verdict")), _text(label), drawing)


def _flat(figures: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every figure with its path; a list of plain values is one figure."""
    if isinstance(figures, Mapping):
        for key, value in figures.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(figures, list) and any(isinstance(v, (Mapping, list)) for v in figures):
        for index, value in enumerate(figures):
            yield from _flat(value, f"{path}[{index}]")
    else:
        yield path, figures


def _figure(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_figure(name, item) for item in value) or DASH
    unit = write.unit_of(name)
    if unit or not isinstance(value, float):
        return _exact(value, write.quantity(value, unit))
    return _exact(value, f"{value:,.5g}")


def _gates(report: _Row) -> str:
    def shown(key: str, index: int) -> Callable[[_Row], str]:
        return lambda check: _exact(check.get(key), write.check_texts(check)[index])

    def room(check: _Row) -> str:
        return f'{_margin_bar(check)}<span class="room">{_text(write.check_texts(check)[3])}</span>'

    columns: _Columns = {
        "check": _named("name"),
        "measured#": shown("value", 0),
        "95% bound#": shown("bound", 1),
        "threshold#": shown("threshold", 2),
        "margin": room,
        "n#": _number("n"),
        "verdict": lambda check: _verdict(check.get("verdict")),
    }
    bodies, details = [], []
    for gate in rows(report, "gates"):
        facts = [_text(gate[k]) for k in ("target", "runtime", "provenance") if gate.get(k)]
        facts += ["<b>reused</b>"] if gate.get("reused") else []
        title = f"{_name(gate.get('name'))} {_verdict(gate.get('verdict'))}"
        title += f' <span class="facts">{" · ".join(facts)}</span>'
        nothing = '<tr><td colspan="7">No check was recorded.</td></tr>\n'
        bodies.append(
            f'<tbody><tr class="group"><th scope="rowgroup" colspan="7">{title}</th></tr>\n'
            f"{_lines(columns, rows(gate, 'checks')) or nothing}</tbody>\n"
        )
        flat = list(_flat(part(gate, "figures")))
        if flat:
            pairs = "".join(f"<dt>{_name(k)}</dt><dd>{_figure(k, v)}</dd>\n" for k, v in flat)
            title = f"<span>{_name(gate.get('name'))}: {len(flat)} {plural(len(flat), 'figure')}"
            details.append(_fold(f"{title}</span>", f'<dl class="figures">{pairs}</dl>'))
    if not bodies:
        return "<p>No gate was judged. Without a passed gate nothing ships.</p>\n"
    key = (
        '<p class="note">A check is judged by its one-sided 95% bound; one without a bound is '
        "exact. Bars: the passing side is shaded, the tick is the threshold, the dot the measured "
        "value, the whisker ends at the bound.</p>\n"
    )
    return _table("Gates", columns, "".join(bodies), "gates") + key + "".join(details)


def _operators(fusion: _Row) -> str:
    before, after = part(fusion, "operators_before"), part(fusion, "operators_after")
    tflite = part(fusion, "operators_tflite")
    graph: list[dict[str, Any]] = [
        {"op": op, "was": count(before.get(op)), "now": count(after.get(op))}
        for op in {**before, **after}
    ]
    graph.sort(key=lambda e: (-e["was"], -e["now"], str(e["op"])))
    most = max([max(e["was"], e["now"]) for e in graph] + [1])

    def bars(entry: _Row) -> str:
        was, now = (f'x="0" height="5" width="{160 * entry[k] / most:.1f}"' for k in ("was", "now"))
        drawing = f'<rect class="was" y="3" {was}/><rect class="span" y="10" {now}/>'
        label = f"{entry['was']} before, {entry['now']} after"
        return _BAR.format("pair", label, drawing) if entry["op"] != "all" else ""

    def kind(entry: _Row) -> str:
        return "total" if entry["op"] == "all" else "" if entry["now"] else "idle"

    def total(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sums = {key: sum(e[key] for e in entries) for key in ("was", "now")}
        return [*entries, {"op": "all", **sums}] if entries else []

    file: list[dict[str, Any]] = [
        {"op": op, "was": 0, "now": count(number)} for op, number in tflite.items()
    ]
    file.sort(key=lambda e: (-e["now"], str(e["op"])))
    columns: _Columns = {
        "ONNX operator": _named("op"),
        "before#": lambda e: f"{e['was']:,}",
        "after#": lambda e: f"{e['now']:,}",
        "change#": lambda e: _change(e["was"], e["now"]),
        "": bars,
    }
    tables = _grid("Operators of the graph before and after fusion", columns, total(graph), kind)
    columns = {"TFLite operator": _named("op"), "in the file#": lambda e: f"{e['now']:,}"}
    tables += _grid("Operators of the TFLite file", columns, total(file), kind)
    return f'<div class="beside">{tables}</div>\n' if tables else ""


def _fusion(fusion: _Row) -> str:
    saved, lead = part(fusion, "saved"), ""
    if saved:
        launches = count(saved.get("launches"))
        lead = (
            f'<p class="lead"><b>{launches:,}</b> {plural(launches, "launch")} and '
            f"<b>{_bytes(saved.get('intermediate_bytes'))}</b> of intermediate traffic saved.</p>\n"
        )
    columns: _Columns = {
        "pass": _named("name"),
        "fired#": _number("fired"),
        "refused#": _number("refused"),
        "max relative error#": _tiny("max_relative_error"),
    }
    passes = rows(fusion, "passes")
    idle = _grid(
        "Passes, in the order they ran",
        columns,
        passes,
        lambda e: "" if count(e.get("fired")) or count(e.get("refused")) else "idle",
    )
    return lead + _operators(fusion) + idle + _ledger(fusion, "fired")


def _ledger(fusion: _Row, verdict: str) -> str:
    """The ledger's entries of one verdict; equal pass, reason and remedy share one line."""
    groups: dict[tuple[str, ...], list[_Row]] = {}
    for entry in rows(fusion, "ledger"):
        if entry.get("verdict") == verdict:
            key = tuple(write.printable(entry.get(k)) for k in ("pass", "reason", "remedy"))
            groups.setdefault(key, []).append(entry)
    columns: _Columns = {
        "module": _named("module"),
        "nodes": lambda e: " ".join(_name(node) for node in e.get("nodes") or ()) or DASH,
    }
    if verdict == "fired":
        columns = {
            **columns,
            "traffic saved#": _size("intermediate_bytes_saved"),
            "launches saved#": _number("launches_saved"),
        }
    out = []
    for (name, reason, remedy), entries in sorted(
        groups.items(), key=lambda group: (-len(group[1]), group[0])
    ):
        what = f'{_name(name)} <span class="reason">{_text(reason)}</span>'
        what += f'<span class="remedy">{_text(remedy)}</span>' if remedy else ""
        caption = f"{len(entries):,} {verdict} by {name}"
        kind = "bulk" if verdict == "fired" else ""
        out.append(_fold(_times(len(entries), what), _grid(caption, columns, entries), kind))
    return "".join(out)


def _contract(fusion: _Row) -> str:
    entries = rows(fusion, "contract")
    kept = [e for e in entries if e.get("ok")]
    columns: _Columns = {
        "module": _named("module"),
        "group": _named("group"),
        "operator": _named("operator"),
        "wanted": _said("activation_wanted"),
        "found": _said("activation_found"),
        "verdict": lambda e: _verdict("pass" if e.get("ok") else "fail"),
        "reason": lambda e: _text(e.get("reason")),
    }
    if not entries:
        return ""
    lead = f"{len(kept):,} of {len(entries):,} fused groups kept in the int8 file."
    broken = _grid("Fused groups not kept", columns, [e for e in entries if not e.get("ok")])
    rest = _grid("Fused groups kept", columns, kept)
    return f'<p class="lead">{lead}</p>\n{broken}' + (
        _fold(_times(len(kept), "kept"), rest, "bulk") if kept else ""
    )


def _stages(report: _Row) -> str:
    stages: list[dict[str, Any]] = []
    total = 0.0
    for stage in rows(report, "stages"):
        took = finite(stage.get("seconds")) or 0.0
        stages.append({**stage, "start": total, "took": took})
        total += took

    def when(stage: _Row) -> str:
        if stage["took"] <= 0:
            return ""
        start, width = 160 * stage["start"] / total, max(160 * stage["took"] / total, 1.0)
        drawing = (
            f'<rect class="span" x="{min(start, 159):.1f}" y="5" width="{width:.1f}" height="8"/>'
        )
        label = f"{write.seconds_text(stage['took'])} of {write.seconds_text(total)}"
        return _BAR.format("", label, f'<path class="axis" d="M0 9H160"/>{drawing}')

    columns: _Columns = {
        "stage": _named("name"),
        "status": lambda s: _verdict(s.get("status")),
        f"{write.seconds_text(total)} in all": when,
        "time#": lambda s: _exact(s.get("seconds"), write.seconds_text(s.get("seconds"))),
        "result#": _size("bytes"),
        "summary": lambda s: _text(s.get("summary")),
    }
    return _grid(
        "Stages",
        columns,
        stages,
        lambda s: "idle" if s.get("status") in ("reused", "skipped") else "",
    )


def _parity(report: _Row) -> str:
    def verdict(entry: _Row) -> str:
        error, limit = finite(entry.get("max_relative_error")), finite(entry.get("limit"))
        if limit is None:
            return DASH
        return _verdict("pass" if error is not None and error <= limit else "fail")

    columns: _Columns = {
        "stage": _named("stage"),
        "max relative error#": _tiny("max_relative_error"),
        "limit#": _tiny("limit"),
        "SQNR#": lambda e: _text(write.quantity(e.get("sqnr_db"), "dB")),
        "samples#": _number("samples"),
        "verdict": verdict,
    }
    return _grid("Agreement of each stage with the one before", columns, rows(report, "parity"))


def _artifacts(report: _Row) -> str:
    columns: _Columns = {
        "file": _named("file"),
        "kind": _said("kind"),
        "stage": _said("stage"),
        "size#": _size("bytes"),
        "SHA-256": lambda a: f'<code class="digest">{_text(a.get("sha256")) or DASH}</code>',
    }
    return _grid("Artifacts", columns, rows(report, "artifacts"))


def _repeat(report: _Row) -> str:
    command, packages = write.printable(report.get("command")), part(report, "environment")
    out = f'<pre tabindex="0"><code>{_text(command)}</code></pre>\n' if command else ""
    ranked = sorted(packages.items(), key=lambda item: str(item[0]).lower())
    pairs = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>\n" for k, v in ranked)
    return out + (f'<dl class="environment">{pairs}</dl>\n' if pairs else "")


def _header(report: _Row) -> str:
    verdict = write.printable(report.get("verdict") or "incomplete")
    headline = _HEADLINES.get(verdict, "")
    gates = rows(report, "gates")
    if verdict == "pass" and not (gates and all(g.get("verdict") == "pass" for g in gates)):
        headline = "ended, but not with every gate passed"
    code = report.get("exit_code")
    meaning = EXIT_CODES.get(code, "") if isinstance(code, int) else ""
    pairs = {
        "target": report.get("target"),
        "exit code": f"{code}, {meaning}" if meaning else code,
        "edgefuse": report.get("edgefuse"),
    }
    facts = "".join(
        f"<div><dt>{k}</dt><dd>{_text(v)}</dd></div>" for k, v in pairs.items() if _text(v)
    )
    glyph = f'<span aria-hidden="true">{_GLYPHS[_tone(verdict)]}</span>'
    return (
        f'<header class="{_tone(verdict)}">\n<p id="verdict" class="stamp">{glyph}{_text(verdict)}'
        f'</p>\n<div>\n<h1><span class="recipe">{_text(report.get("recipe")) or "unnamed recipe"}'
        f"</span> {headline}</h1>\n"
        f'<p class="about">{_text(report.get("description"))}</p>\n'
        f'<p class="summary">{_text(write.summary_sentences(report))}</p>\n'
        f'<dl class="facts">{facts}</dl>\n</div>\n</header>\n'
    )


def _trouble(report: _Row) -> str:
    error, out = part(report, "error"), ""
    if error:
        lines = [
            f"<p><b>{_text(error.get('kind') or 'Error')}</b> {_text(error.get('message'))}</p>"
        ]
        if error.get("where"):
            lines.append(f'<p class="where"><code>{_text(error["where"])}</code></p>')
        if error.get("hint"):
            lines.append(f"<p><b>Remedy</b> {_text(error['hint'])}</p>")
        out = f'<div class="error" role="alert">{"".join(lines)}</div>\n'
    items = "".join(f"<li>{_text(w)}</li>\n" for w in report.get("warnings") or ())
    return out + (f'<ul class="warnings">\n{items}</ul>\n' if items else "")


def render(report: Mapping[str, Any]) -> str:
    """The page of a report document, as one HTML text. Any part of it may be missing."""
    fusion = part(report, "fusion")
    sections = {
        "What went wrong" if report.get("error") else "Warnings": _trouble(report),
        "Gates": _gates(report),
        "What fused": _fusion(fusion),
        "What did not fuse, and why": _ledger(fusion, "refused"),
        "Fusion contract": _contract(fusion),
        "Stages": _stages(report),
        "Parity": _parity(report),
        "Artifacts": _artifacts(report),
        "To repeat": _repeat(report),
    }
    body = _header(report)
    for title, content in sections.items():
        if content:
            body += f"<section>\n<h2>{title}</h2>\n<div>\n{content}</div>\n</section>\n"
    absent = [title for title, content in sections.items() if not content and title != "Warnings"]
    body += f"<footer>Not in this report: {'; '.join(absent)}.</footer>\n" if absent else ""
    title = f"{report.get('verdict') or 'incomplete'}: {report.get('recipe') or 'unnamed recipe'}"
    return _PAGE.substitute(title=_text(title), style=_style(), body=body)
