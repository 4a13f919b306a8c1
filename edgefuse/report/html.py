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

from collections.abc import Callable, Mapping
from typing import Any

from edgefuse.errors import EXIT_CODES
from edgefuse.report import units as write
from edgefuse.report.cells import (
    BAR,
    GLYPHS,
    Columns,
    Row,
    bytes_cell,
    change,
    code_name,
    exact,
    figure,
    flat,
    fold,
    grid,
    lines,
    margin_bar,
    named,
    number,
    said,
    size,
    stamp,
    table,
    text,
    times,
    tiny,
    tone,
)
from edgefuse.report.memory import memory_section
from edgefuse.report.page import page
from edgefuse.report.parts import part, rows
from edgefuse.report.quantisation import quantisation_section
from edgefuse.report.table import summary_sentences
from edgefuse.report.units import DASH, count, finite, plural
from edgefuse.verdict import settled_by

_HEADLINES = {
    "pass": "may ship",
    "fail": "may not ship: a gate failed",
    "inconclusive": "may not ship: a gate is undecided",
    "error": "stopped on an error",
    "incomplete": "is incomplete",
}


def _gates(report: Row) -> str:
    def shown(key: str, index: int) -> Callable[[Row], str]:
        return lambda check: exact(check.get(key), write.check_texts(check)[index])

    def room(check: Row) -> str:
        return f'{margin_bar(check)}<span class="room">{text(write.check_texts(check)[3])}</span>'

    def verdict(check: Row) -> str:
        more = settled_by(check)
        shown = f' <span class="facts">{text(more)}</span>' if more else ""
        return f"{stamp(check.get('verdict'))}{shown}"

    columns: Columns = {
        "check": named("name"),
        "measured#": shown("value", 0),
        "95% bound#": shown("bound", 1),
        "threshold#": shown("threshold", 2),
        "margin": room,
        "n#": number("n"),
        "verdict": verdict,
    }
    bodies, details = [], []
    for gate in rows(report, "gates"):
        facts = [text(gate[k]) for k in ("target", "runtime", "provenance") if gate.get(k)]
        facts += ["<b>reused</b>"] if gate.get("reused") else []
        title = f"{code_name(gate.get('name'))} {stamp(gate.get('verdict'))}"
        title += f' <span class="facts">{" · ".join(facts)}</span>'
        nothing = '<tr><td colspan="7">No check was recorded.</td></tr>\n'
        bodies.append(
            f'<tbody><tr class="group"><th scope="rowgroup" colspan="7">{title}</th></tr>\n'
            f"{lines(columns, rows(gate, 'checks')) or nothing}</tbody>\n"
        )
        figures = list(flat(part(gate, "figures")))
        if figures:
            pairs = "".join(f"<dt>{code_name(k)}</dt><dd>{figure(k, v)}</dd>\n" for k, v in figures)
            held = f"{len(figures)} {plural(len(figures), 'figure')}"
            title = f"<span>{code_name(gate.get('name'))}: {held}</span>"
            details.append(fold(title, f'<dl class="figures">{pairs}</dl>'))
    if not bodies:
        return "<p>No gate was judged. Without a passed gate nothing ships.</p>\n"
    key = (
        '<p class="note">A check is judged by its one-sided 95% bound; one without a bound is '
        "exact. Bars: the passing side is shaded, the tick is the threshold, the dot the measured "
        "value, the whisker ends at the bound.</p>\n"
    )
    return table("Gates", columns, "".join(bodies), "gates") + key + "".join(details)


def _operators(fusion: Row) -> str:
    before, after = part(fusion, "operators_before"), part(fusion, "operators_after")
    tflite = part(fusion, "operators_tflite")
    graph: list[dict[str, Any]] = [
        {"op": op, "was": count(before.get(op)), "now": count(after.get(op))}
        for op in {**before, **after}
    ]
    graph.sort(key=lambda e: (-e["was"], -e["now"], str(e["op"])))
    most = max([max(e["was"], e["now"]) for e in graph] + [1])

    def bars(entry: Row) -> str:
        was, now = (f'x="0" height="5" width="{160 * entry[k] / most:.1f}"' for k in ("was", "now"))
        drawing = f'<rect class="was" y="3" {was}/><rect class="span" y="10" {now}/>'
        label = f"{entry['was']} before, {entry['now']} after"
        return BAR.format("pair", label, drawing) if entry["op"] != "all" else ""

    def kind(entry: Row) -> str:
        return "total" if entry["op"] == "all" else "" if entry["now"] else "idle"

    def total(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sums = {key: sum(e[key] for e in entries) for key in ("was", "now")}
        return [*entries, {"op": "all", **sums}] if entries else []

    file: list[dict[str, Any]] = [
        {"op": op, "was": 0, "now": count(held)} for op, held in tflite.items()
    ]
    file.sort(key=lambda e: (-e["now"], str(e["op"])))
    columns: Columns = {
        "ONNX operator": named("op"),
        "before#": lambda e: f"{e['was']:,}",
        "after#": lambda e: f"{e['now']:,}",
        "change#": lambda e: change(e["was"], e["now"]),
        "": bars,
    }
    tables = grid("Operators of the graph before and after fusion", columns, total(graph), kind)
    columns = {"TFLite operator": named("op"), "in the file#": lambda e: f"{e['now']:,}"}
    tables += grid("Operators of the TFLite file", columns, total(file), kind)
    return f'<div class="beside">{tables}</div>\n' if tables else ""


def _fusion(fusion: Row) -> str:
    saved, lead = part(fusion, "saved"), ""
    if saved:
        launches = count(saved.get("launches"))
        lead = (
            f'<p class="lead"><b>{launches:,}</b> {plural(launches, "launch")} and '
            f"<b>{bytes_cell(saved.get('intermediate_bytes'))}</b> of intermediate traffic "
            "saved.</p>\n"
        )
    columns: Columns = {
        "pass": named("name"),
        "fired#": number("fired"),
        "refused#": number("refused"),
        "max relative error#": tiny("max_relative_error"),
    }
    passes = rows(fusion, "passes")
    idle = grid(
        "Passes, in the order they ran",
        columns,
        passes,
        lambda e: "" if count(e.get("fired")) or count(e.get("refused")) else "idle",
    )
    return lead + _operators(fusion) + idle + _buckets(fusion) + _ledger(fusion, "fired")


def _buckets(fusion: Row) -> str:
    """Dynamic fusion: the kernels of each shape bucket, and each merge that was weighed."""
    buckets = rows(fusion, "buckets")
    columns: Columns = {
        "shapes": named("bucket"),
        "unfused#": number("unfused"),
        "fused groups#": number("groups"),
        "kernels#": number("kernels"),
        "predicted, groups, us#": number("groups_us"),
        "predicted, kernels, us#": number("kernels_us"),
    }
    out = grid("Kernels of each shape bucket, by the target's balance", columns, buckets)
    columns = {
        "group": named("producer"),
        "candidate": said("candidate"),
        "merged": lambda d: "yes" if d.get("taken") else "no",
        "saves, us#": number("saved_us"),
        "figures": lambda d: text(d.get("reason")),
    }
    for bucket in buckets:
        decisions = rows(bucket, "decisions")
        caption = f"Merges weighed at {write.printable(bucket.get('bucket'))}"
        if decisions:
            table = grid(caption, columns, decisions)
            out += fold(times(len(decisions), text(caption)), table, "bulk")
    return out


def _ledger(fusion: Row, verdict: str) -> str:
    """The ledger's entries of one verdict; equal pass, reason and remedy share one line."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for entry in rows(fusion, "ledger"):
        if entry.get("status") == verdict:
            key = tuple(write.printable(entry.get(k)) for k in ("pass", "reason", "remedy"))
            groups.setdefault(key, []).append(entry)
    columns: Columns = {
        "module": named("module"),
        "nodes": lambda e: " ".join(code_name(node) for node in e.get("nodes") or ()) or DASH,
    }
    if verdict == "fired":
        columns = {
            **columns,
            "traffic saved#": size("saved_bytes"),
            "launches saved#": number("saved_launches"),
            "ends in": lambda e: " ".join(code_name(o) for o in e.get("ends_in") or ()) or DASH,
        }
    out = []
    for (name, reason, remedy), entries in sorted(
        groups.items(), key=lambda group: (-len(group[1]), group[0])
    ):
        what = f'{code_name(name)} <span class="reason">{text(reason)}</span>'
        what += f'<span class="remedy">{text(remedy)}</span>' if remedy else ""
        caption = f"{len(entries):,} {verdict} by {name}"
        kind = "bulk" if verdict == "fired" else ""
        out.append(fold(times(len(entries), what), grid(caption, columns, entries), kind))
    return "".join(out)


def _contract(fusion: Row) -> str:
    entries = rows(fusion, "contract")
    kept = [e for e in entries if e.get("ok")]
    columns: Columns = {
        "module": named("module"),
        "group": named("group"),
        "operator": named("operator"),
        "wanted": said("activation_wanted"),
        "found": said("activation_found"),
        "verdict": lambda e: stamp("pass" if e.get("ok") else "fail"),
        "reason": lambda e: text(e.get("reason")),
    }
    if not entries:
        return ""
    lead = f"{len(kept):,} of {len(entries):,} fused groups kept in the int8 file."
    broken = grid("Fused groups not kept", columns, [e for e in entries if not e.get("ok")])
    rest = grid("Fused groups kept", columns, kept)
    return f'<p class="lead">{lead}</p>\n{broken}' + (
        fold(times(len(kept), "kept"), rest, "bulk") if kept else ""
    )


def _stages(report: Row) -> str:
    stages: list[dict[str, Any]] = []
    total = 0.0
    for stage in rows(report, "stages"):
        took = finite(stage.get("seconds")) or 0.0
        stages.append({**stage, "start": total, "took": took})
        total += took

    def when(stage: Row) -> str:
        if stage["took"] <= 0:
            return ""
        start, width = 160 * stage["start"] / total, max(160 * stage["took"] / total, 1.0)
        drawing = (
            f'<rect class="span" x="{min(start, 159):.1f}" y="5" width="{width:.1f}" height="8"/>'
        )
        label = f"{write.seconds_text(stage['took'])} of {write.seconds_text(total)}"
        return BAR.format("", label, f'<path class="axis" d="M0 9H160"/>{drawing}')

    columns: Columns = {
        "stage": named("name"),
        "status": lambda s: stamp(s.get("status")),
        f"{write.seconds_text(total)} in all": when,
        "time#": lambda s: exact(s.get("seconds"), write.seconds_text(s.get("seconds"))),
        "result#": size("bytes"),
        "summary": lambda s: text(s.get("summary")),
    }
    return grid(
        "Stages",
        columns,
        stages,
        lambda s: "idle" if s.get("status") == "reused" else "",
    )


def _parity(report: Row) -> str:
    def verdict(entry: Row) -> str:
        error, limit = finite(entry.get("max_relative_error")), finite(entry.get("limit"))
        if limit is None:
            return DASH
        return stamp("pass" if error is not None and error <= limit else "fail")

    columns: Columns = {
        "stage": named("stage"),
        "max relative error#": tiny("max_relative_error"),
        "limit#": tiny("limit"),
        "SQNR#": lambda e: text(write.quantity(e.get("sqnr_db"), "dB")),
        "samples#": number("samples"),
        "verdict": verdict,
    }
    return grid("Agreement of each stage with the one before", columns, rows(report, "parity"))


def _artifacts(report: Row) -> str:
    columns: Columns = {
        "file": named("file"),
        "kind": said("kind"),
        "stage": said("stage"),
        "size#": size("bytes"),
        "SHA-256": lambda a: f'<code class="digest">{text(a.get("sha256")) or DASH}</code>',
    }
    return grid("Artifacts", columns, rows(report, "artifacts"))


def _repeat(report: Row) -> str:
    command, packages = write.printable(report.get("command")), part(report, "environment")
    out = f'<pre tabindex="0"><code>{text(command)}</code></pre>\n' if command else ""
    ranked = sorted(packages.items(), key=lambda item: str(item[0]).lower())
    pairs = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>\n" for k, v in ranked)
    return out + (f'<dl class="environment">{pairs}</dl>\n' if pairs else "")


def _header(report: Row) -> str:
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
        f"<div><dt>{k}</dt><dd>{text(v)}</dd></div>" for k, v in pairs.items() if text(v)
    )
    glyph = f'<span aria-hidden="true">{GLYPHS[tone(verdict)]}</span>'
    return (
        f'<header class="{tone(verdict)}">\n<p id="verdict" class="stamp">{glyph}{text(verdict)}'
        f'</p>\n<div>\n<h1><span class="recipe">{text(report.get("recipe")) or "unnamed recipe"}'
        f"</span> {headline}</h1>\n"
        f'<p class="about">{text(report.get("description"))}</p>\n'
        f'<p class="summary">{text(summary_sentences(report))}</p>\n'
        f'<dl class="facts">{facts}</dl>\n</div>\n</header>\n'
    )


def _trouble(report: Row) -> str:
    error, out = part(report, "error"), ""
    if error:
        told = [f"<p><b>{text(error.get('kind') or 'Error')}</b> {text(error.get('message'))}</p>"]
        if error.get("where"):
            told.append(f'<p class="where"><code>{text(error["where"])}</code></p>')
        if error.get("hint"):
            told.append(f"<p><b>Remedy</b> {text(error['hint'])}</p>")
        out = f'<div class="error" role="alert">{"".join(told)}</div>\n'
    items = "".join(f"<li>{text(w)}</li>\n" for w in report.get("warnings") or ())
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
        "Quantisation": quantisation_section(report),
        "Memory": memory_section(report),
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
    return page(title, body)
