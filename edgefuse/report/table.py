"""The verdict of a run as plain text, and the sentences that sum a run up.

The table closes ``edgefuse run``: stages, gates with their bounds and thresholds, one line on
fusion, the verdict. It holds no more than a terminal of 100 columns can show; the page of
:mod:`edgefuse.report.html` says the rest with the same words. Figures are written by
:mod:`edgefuse.report.units`. Any part of the document may be missing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edgefuse.report.parts import part, rows
from edgefuse.report.search import outcome_text, trial_rows
from edgefuse.report.units import (
    DASH,
    MINUS,
    TIMES,
    bytes_text,
    check_texts,
    count,
    finite,
    plural,
    printable,
    seconds_text,
)
from edgefuse.verdict import settled_by

MAX_WIDTH = 100
_VERBS = {"fold": "folded", "fuse": "fused", "remove": "removed", "replace": "replaced"}
_OPERATORS = {"batchnorm": "BatchNorm", "matmul": "MatMul", "relu": "ReLU", "relu6": "ReLU6"}
_OPERATORS |= {"conv": "Conv", "add": "Add", "mul": "Mul", "sub": "Sub", "pad": "Pad"}
_OPERATORS |= {"bias": "Bias", "clip": "Clip", "gemm": "Gemm", "linear": "Linear"}
_ASCII = {"…": "...", "≥": ">=", "≤": "<=", "µ": "u", "·": "-", TIMES: "x", MINUS: "-", DASH: "-"}
_COLOURS = {"pass": "32", "fail": "31", "failed": "31", "error": "31", "blocked": "33"}
_COLOURS |= {"inconclusive": "33", "incomplete": "33", "reached": "32", "missed": "31"}


def pass_phrase(name: str) -> str:
    """A pass's name as words: fold_conv_batchnorm -> Conv+BatchNorm folded."""
    verb, _, rest = name.replace("batch_norm", "batchnorm").partition("_")
    if verb not in _VERBS or not rest:
        return printable(name)
    words = rest.split("_")
    if all(word in _OPERATORS for word in words):
        return f"{'+'.join(_OPERATORS[word] for word in words)} {_VERBS[verb]}"
    return f"{printable(' '.join(_OPERATORS.get(word, word) for word in words))} {_VERBS[verb]}"


def fusion_sentence(fusion: Mapping[str, Any]) -> str:
    """What fused, what it saved, how many candidates were refused; empty without fusion."""
    passes = rows(fusion, "passes")
    if not passes and not rows(fusion, "ledger"):
        return ""
    fired = [
        f"{count(p.get('fired')):,} {pass_phrase(str(p.get('name')))}"
        for p in passes
        if count(p.get("fired"))
    ]
    saved = part(fusion, "saved")
    launches = count(saved.get("launches"))
    traffic = bytes_text(count(saved.get("intermediate_bytes")))
    refused = sum(count(p.get("refused")) for p in passes)
    refusals = sum(entry.get("status") == "refused" for entry in rows(fusion, "ledger"))
    refused = max(refused, refusals)
    return (
        f"{', '.join(fired) or 'nothing fused'}; {launches:,} {plural(launches, 'launch')} and "
        f"{traffic} of intermediate traffic saved; {refused:,} "
        f"{plural(refused, 'candidate')} refused"
    )


def summary_sentences(report: Mapping[str, Any]) -> str:
    """The run in three sentences: gates, fusion, stages; those that are known."""
    gates, stages = rows(report, "gates"), rows(report, "stages")
    said = []
    if gates:
        passed = sum(gate.get("verdict") == "pass" for gate in gates)
        said.append(f"{passed} of {len(gates)} {plural(len(gates), 'gate')} passed.")
    fusion = fusion_sentence(part(report, "fusion"))
    if fusion:
        said.append(f"{fusion[0].upper()}{fusion[1:]}.")
    if stages:
        total = seconds_text(sum(finite(stage.get("seconds")) or 0.0 for stage in stages))
        reused = sum(stage.get("status") == "reused" for stage in stages)
        said.append(f"{len(stages)} {plural(len(stages), 'stage')} in {total}, {reused} reused.")
    return " ".join(said)


def _cells(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _cut(text: str, width: int, ellipsis: str) -> str:
    if _cells(text) <= width:
        return text
    while text and _cells(text) > width - len(ellipsis):
        text = text[:-1]
    return (text.rstrip() + ellipsis)[:width]


def wrapped(text: str, width: int, indent: str, ellipsis: str) -> list[str]:
    lines = [""]
    for word in text.split():
        start = indent if len(lines) > 1 else ""
        joined = f"{lines[-1]} {word}" if lines[-1].strip() else f"{start}{word}"
        if _cells(joined) <= width:
            lines[-1] = joined
        elif not lines[-1].strip():
            lines[-1] = _cut(joined, width, ellipsis)
        else:
            lines.append(_cut(f"{indent}{word}", width, ellipsis))
    return lines


def padded_columns(
    table: Sequence[Sequence[str]], right: Iterable[int], width: int, ellipsis: str
) -> list[list[str]]:
    """Pads every column to its widest cell; the widest columns give way until all fit."""
    widths = [max(_cells(row[i]) for row in table) for i in range(len(table[0]))]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > len(ellipsis) + 1:
        widths[widths.index(max(widths))] -= 1
    numeric = set(right)
    padded = []
    for row in table:
        cells = [_cut(cell, size, ellipsis) for cell, size in zip(row, widths)]
        gaps = [" " * (size - _cells(cell)) for cell, size in zip(cells, widths)]
        padded.append(
            [g + c if i in numeric else c + g for i, (c, g) in enumerate(zip(cells, gaps))]
        )
    return padded


def spelling(encoding: str) -> tuple[Callable[[Any], str], str]:
    """How a value is printed on a stream of this encoding, and the ellipsis there; anything but
    UTF-8 gets plain ASCII."""
    ascii_only = encoding.lower().replace("-", "").replace("_", "") not in ("utf8", "utf8sig")

    def shown(value: Any) -> str:
        text = printable(value)
        if ascii_only:
            text = "".join(_ASCII.get(c, c) for c in text).encode("ascii", "replace").decode()
        return text

    return shown, "..." if ascii_only else "…"


def verdict_table(
    report: Mapping[str, Any],
    width: int = MAX_WIDTH,
    *,
    encoding: str = "utf-8",
    colour: bool = False,
    paths: Sequence[str] = (),
) -> str:
    """The plain-text verdict of a run.

    Args:
        report: the report document; any part may be missing.
        width: columns to fill, 100 at most.
        encoding: of the stream it is printed to; anything but UTF-8 gets plain ASCII.
        colour: whether verdicts carry ANSI colours.
        paths: named in the last line; without them, the bundles among the artifacts.

    Returns:
        Lines no wider than ``width``, ending with a newline.
    """
    width = max(40, min(width, MAX_WIDTH))
    shown, ellipsis = spelling(encoding)

    def tinted(padded: str) -> str:
        code = _COLOURS.get(padded.strip())
        return f"\x1b[{code}m{padded}\x1b[0m" if colour and code else padded

    def laid_out(table: list[list[Any]], right: Iterable[int], tint: int) -> list[str]:
        cells = padded_columns([[shown(c) for c in row] for row in table], right, width, ellipsis)
        return [
            "  ".join(tinted(c) if i == tint else c for i, c in enumerate(row)).rstrip()
            for row in cells
        ]

    blocks: list[list[str]] = []
    stages = [
        [s.get("name"), s.get("status"), seconds_text(s.get("seconds")), s.get("summary")]
        for s in rows(report, "stages")
    ]
    if stages:
        blocks.append(laid_out([["stage", "status", "time", "summary"], *stages], (2,), 1))

    gates = []
    for gate in rows(report, "gates"):
        name = str(gate.get("name"))
        for check in rows(gate, "checks"):
            value, bound, threshold, _ = check_texts(check)
            verdict = str(check.get("verdict"))
            row = [name, str(check.get("name")), value, bound, threshold, verdict]
            gates.append([*row, settled_by(check).replace("needs about ", "~")])
        if not rows(gate, "checks"):
            gates.append([name, *[DASH] * 4, str(gate.get("verdict")), ""])
    if gates:
        if not any(row[-1] for row in gates):
            gates = [row[:-1] for row in gates]
        head = ["gate", "check", "value", "95% bound", "threshold", "verdict", "needs"]
        blocks.append(laid_out([head[: len(gates[0])], *gates], (2, 3, 4), 5))

    held = part(report, "quantisation")
    search = part(held, "search")
    if rows(search, "trials"):
        head, trials = trial_rows(search, narrow=width < 80)
        blocks.append(laid_out([head, *trials], range(1, len(head) - 1), len(head) - 1))

    notes: list[str] = []
    if search:
        left = held.get("left") or ()
        more = f"; see {', '.join(map(str, left))} beside the report" if left else ""
        notes += wrapped(shown(f"search: {outcome_text(search)}{more}"), width, "  ", ellipsis)
    sentence = fusion_sentence(part(report, "fusion"))
    if sentence:
        more = " (see report.html)" if not sentence.endswith(" 0 candidates refused") else ""
        notes += wrapped(shown(f"fusion: {sentence}{more}"), width, "  ", ellipsis)
    for warning in report.get("warnings") or ():
        notes += wrapped(shown(f"warning: {warning}"), width, "  ", ellipsis)
    error = part(report, "error")
    if error:
        place = f"{error['where']}: " if error.get("where") else ""
        message = f"{error.get('kind') or 'error'}: {place}{error.get('message') or ''}"
        notes += wrapped(shown(message), width, "  ", ellipsis)
        if error.get("hint"):
            notes += wrapped(shown(f"  hint: {error['hint']}"), width, "  ", ellipsis)
    if notes:
        blocks.append(notes)

    verdict = shown(report.get("verdict") or "incomplete")
    bundles = [a.get("file") for a in rows(report, "artifacts") if a.get("kind") == "bundle"]
    places = ", ".join(shown(p) for p in (paths or bundles) if p)
    name = shown(report.get("recipe") or "unnamed recipe")
    target = f" on {shown(report['target'])}" if report.get("target") else ""
    last = f"{verdict}: {name}{target}{f' -> {places}' if places else ''}"
    ending = wrapped(last, width, "  ", ellipsis)
    if ending[0].startswith(f"{verdict}:"):
        ending[0] = tinted(verdict) + ending[0][len(verdict) :]
    blocks.append(ending)
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"
