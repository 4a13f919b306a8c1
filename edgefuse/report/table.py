"""The verdict of a run as plain text, and how every figure of a report is written.

The table closes ``edgefuse run``: stages, gates with their bounds and thresholds, one line on
fusion, the verdict. It holds no more than a terminal of 100 columns can show; the page of
:mod:`edgefuse.report.html` says the rest with the same words and the same figures, which is why
the functions that write quantities live here. Any part of the document may be missing.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_WIDTH = 100
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
_BINARY = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SUFFIXES = {"percent": "%", "db": "dB", "ms": "ms", "us": "µs", "points": "points", "s": "s"}
_SUFFIXES |= {"bytes": "bytes", "seconds": "s", "ratio": "ratio"}
_VERBS = {"fold": "folded", "fuse": "fused", "remove": "removed", "replace": "replaced"}
_OPERATORS = {"batchnorm": "BatchNorm", "matmul": "MatMul", "relu": "ReLU", "relu6": "ReLU6"}
_OPERATORS |= {"conv": "Conv", "add": "Add", "mul": "Mul", "sub": "Sub", "pad": "Pad"}
_OPERATORS |= {"bias": "Bias", "clip": "Clip", "gemm": "Gemm", "linear": "Linear"}
_ASCII = {"…": "...", "≥": ">=", "≤": "<=", "µ": "u", "·": "-", TIMES: "x", MINUS: "-", DASH: "-"}
_COLOURS = {"pass": "32", "fail": "31", "failed": "31", "error": "31", "blocked": "33"}
_COLOURS |= {"inconclusive": "33", "incomplete": "33"}


def rows(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The mappings listed under ``key``; empty when the part is missing or null."""
    value = document.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under ``key``; empty when the part is missing or null."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def finite(value: Any) -> float | None:
    """``value`` as a float when it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def count(value: Any) -> int:
    """``value`` as a whole number; 0 when it is none."""
    number = finite(value)
    return int(number) if number is not None else 0


def printable(value: Any) -> str:
    """Text without control, format-override or lone surrogate characters, on one line."""
    if value is None:
        return ""
    text = " ".join(str(value).split())
    bad = ("Cc", "Cf", "Cs", "Cn")
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in bad else c for c in text
    )


def bytes_text(value: float, digits: int = 2) -> str:
    """Bytes with a binary prefix: 3.61 MiB, 512 bytes."""
    for size, unit in _BINARY:
        if abs(value) >= size:
            return f"{value / size:.{digits}f} {unit}"
    return f"{value:,.0f} bytes" if value == int(value) else f"{value:,.{digits}f} bytes"


def seconds_text(value: Any) -> str:
    """Seconds as people read them: 0.04 s, 12.3 s, 3 min 05 s; a dash when unknown."""
    number = finite(value)
    if number is None:
        return DASH
    if number < 10:
        return f"{number:.2f} s"
    if number < 99.95:
        return f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number_text(value: Any, digits: int = 2) -> str:
    """A plain number: thousands grouped, very small and very large ones in powers of ten."""
    number = finite(value)
    if number is None:
        return printable(value) if value is not None else DASH
    if isinstance(value, int):
        return f"{value:,}"
    if number and (abs(number) < 0.5 * 10**-digits or abs(number) >= 1e9):
        return f"{number:.1e}"
    return f"{number:,.{digits}f}"


def power_text(value: Any) -> str:
    """A small number in powers of ten: 2.4e-06."""
    number = finite(value)
    if number is None:
        return number_text(value)
    return f"{number:.1e}" if number else "0"


def quantity(value: Any, unit: str, digits: int = 2) -> str:
    """A value with its unit: 91.20%, 31.40 dB, 3.61 MiB, 0.42 times."""
    number = finite(value)
    if number is None:
        return number_text(value)
    if unit in ("bytes", "B"):
        return bytes_text(number, digits)
    if unit in ("ratio", "x", TIMES):
        return f"{number_text(number, digits)}{TIMES}"
    if unit == "%":
        return f"{number_text(number, digits)}%"
    return f"{number_text(value, digits)} {printable(unit)}".rstrip()


def unit_of(name: str) -> str:
    """The unit in a figure's path: p90_ms -> ms, top1_percent.int8 -> %; empty when none."""
    ends = (step.rsplit("_", 1)[-1] for step in reversed(name.split(".")))
    return next((_SUFFIXES[end] for end in ends if end in _SUFFIXES), "")


def judged(check: Mapping[str, Any]) -> Any:
    """The number a check is judged by: its bound, or its value when it has no bound."""
    return check.get("value") if check.get("bound") is None else check["bound"]


def margin(check: Mapping[str, Any]) -> float | None:
    """The room between bound and threshold: positive when the check holds."""
    bound, threshold = finite(judged(check)), finite(check.get("threshold"))
    if bound is None or threshold is None:
        return None
    return threshold - bound if str(check.get("comparison")).startswith("<") else bound - threshold


def check_texts(check: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Value, bound, threshold and margin of a check, with its unit.

    Digits are added until bound and threshold read differently, so that 87.998 never shows as
    a failing 88.00.
    """
    unit = str(check.get("unit") or "")
    bound, threshold = judged(check), check.get("threshold")
    digits = 2
    while digits < 6 and bound != threshold:
        if quantity(bound, unit, digits) != quantity(threshold, unit, digits):
            break
        digits += 1
    room = margin(check)
    if room is None:
        room_text = DASH
    else:
        room_text = quantity(abs(room), "points" if unit == "%" else unit, digits)
        room_text = f"{MINUS if room < 0 else '+'}{room_text}"
    limit = quantity(threshold, unit, digits)
    sign = {">=": "≥ ", "<=": "≤ "}.get(str(check.get("comparison")), "")
    sign = sign or f"{printable(check.get('comparison'))} ".lstrip()
    value = quantity(check.get("value"), unit, digits)
    return value, quantity(check.get("bound"), unit, digits), f"{sign}{limit}", room_text


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
    refusals = sum(entry.get("verdict") == "refused" for entry in rows(fusion, "ledger"))
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


def plural(number: int, noun: str) -> str:
    """``noun`` in the number it needs."""
    if number == 1:
        return noun
    return f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"


def _cells(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _cut(text: str, width: int, ellipsis: str) -> str:
    if _cells(text) <= width:
        return text
    while text and _cells(text) > width - len(ellipsis):
        text = text[:-1]
    return (text.rstrip() + ellipsis)[:width]


def _wrap(text: str, width: int, indent: str, ellipsis: str) -> list[str]:
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


def _columns(
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
    ascii_only = encoding.lower().replace("-", "").replace("_", "") not in ("utf8", "utf8sig")
    ellipsis = "..." if ascii_only else "…"

    def shown(value: Any) -> str:
        text = printable(value)
        if ascii_only:
            text = "".join(_ASCII.get(c, c) for c in text).encode("ascii", "replace").decode()
        return text

    def tinted(padded: str) -> str:
        code = _COLOURS.get(padded.strip())
        return f"\x1b[{code}m{padded}\x1b[0m" if colour and code else padded

    def laid_out(table: list[list[Any]], right: Iterable[int], tint: int) -> list[str]:
        cells = _columns([[shown(c) for c in row] for row in table], right, width, ellipsis)
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
            gates.append([name, str(check.get("name")), value, bound, threshold, verdict])
        if not rows(gate, "checks"):
            gates.append([name, *[DASH] * 4, str(gate.get("verdict"))])
    if gates:
        head = ["gate", "check", "value", "95% bound", "threshold", "verdict"]
        blocks.append(laid_out([head, *gates], (2, 3, 4), 5))

    notes: list[str] = []
    sentence = fusion_sentence(part(report, "fusion"))
    if sentence:
        more = " (see report.html)" if not sentence.endswith(" 0 candidates refused") else ""
        notes += _wrap(shown(f"fusion: {sentence}{more}"), width, "  ", ellipsis)
    for warning in report.get("warnings") or ():
        notes += _wrap(shown(f"warning: {warning}"), width, "  ", ellipsis)
    error = part(report, "error")
    if error:
        place = f"{error['where']}: " if error.get("where") else ""
        message = f"{error.get('kind') or 'error'}: {place}{error.get('message') or ''}"
        notes += _wrap(shown(message), width, "  ", ellipsis)
        if error.get("hint"):
            notes += _wrap(shown(f"  hint: {error['hint']}"), width, "  ", ellipsis)
    if notes:
        blocks.append(notes)

    verdict = shown(report.get("verdict") or "incomplete")
    bundles = [a.get("file") for a in rows(report, "artifacts") if a.get("kind") == "bundle"]
    places = ", ".join(shown(p) for p in (paths or bundles) if p)
    name = shown(report.get("recipe") or "unnamed recipe")
    target = f" on {shown(report['target'])}" if report.get("target") else ""
    last = f"{verdict}: {name}{target}{f' -> {places}' if places else ''}"
    ending = _wrap(last, width, "  ", ellipsis)
    if ending[0].startswith(f"{verdict}:"):
        ending[0] = tinted(verdict) + ending[0][len(verdict) :]
    blocks.append(ending)
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"
