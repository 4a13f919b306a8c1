"""The document of ``edgefuse explain`` as plain text: passes, kernels, refusals, what is alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgefuse.report.parts import part, rows
from edgefuse.report.table import MAX_WIDTH, spelling
from edgefuse.report.units import DASH, bytes_text, count, plural

_NAMES = {"BatchNormalization": "BN"}


def explanation_text(
    document: Mapping[str, Any], *, encoding: str = "utf-8", refused_only: bool = False
) -> str:
    """Everything a terminal should show; long cells are kept whole, since they name things.

    Args:
        document: of :func:`edgefuse.commands.explain.explain`.
        encoding: of the stream it is printed to; anything but UTF-8 gets plain ASCII.
        refused_only: leave out all but the refusals.
    """
    shown, _ = spelling(encoding)
    blocks = [_headline(document)]
    if not refused_only:
        blocks += [_passes(document), _kernels(document)]
    blocks.append(_refusals(document))
    if not refused_only:
        blocks += [_alone(document), _rest(document), _advice(document)]
    if document.get("error"):
        blocks.append([f"not followed to the end: {document['error']}"])

    def line(text: str) -> str:
        """The stream's spelling, word by word: gaps between columns stay."""
        return " ".join(shown(word) for word in text.split(" "))

    return "\n\n".join("\n".join(map(line, block)) for block in blocks if block)


def _headline(document: Mapping[str, Any]) -> list[str]:
    counts = part(document, "counts")
    path = [
        f"{count(counts.get(key)):,} {plural(count(counts.get(key)), key[:-1])}"
        for key in ("operators", "kernels")
    ]
    if counts.get("int8_operators") is not None:
        path.append(f"{count(counts['int8_operators']):,} int8 operators")
    fates = ("fused", "folded", "removed", "refused", "irreducible", "unknown")
    lines = [
        f"{document.get('source')}: {' -> '.join(path)}",
        "  " + ", ".join(f"{count(counts.get(fate)):,} {fate}" for fate in fates),
    ]
    if counts.get("int8_operators") is not None:
        lost = count(counts.get("unexplained_int8_operators"))
        lines.append(f"  {lost} int8 {plural(lost, 'operator')} unexplained")
    return lines


def _passes(document: Mapping[str, Any]) -> list[str]:
    saved: dict[str, int] = {}
    for entry in rows(document, "entries"):
        saved[entry["pass"]] = saved.get(entry["pass"], 0) + count(entry.get("saved_bytes"))
    table = [["pass", "fired", "refused", "traffic saved"]]
    for row in rows(document, "passes"):
        if count(row.get("fired")) or count(row.get("refused")):
            name = str(row.get("name"))
            size = bytes_text(saved.get(name, 0))
            table.append(
                [name, f"{count(row.get('fired')):,}", f"{count(row.get('refused')):,}", size]
            )
    return _columns(table, right=(1, 2, 3)) if len(table) > 1 else []


def _kernels(document: Mapping[str, Any]) -> list[str]:
    """One line for each kernel that holds more than one operator."""
    saved: dict[str, int] = {}
    for entry in rows(document, "entries"):
        if entry.get("status") == "fired" and entry.get("node"):
            saved[entry["node"]] = saved.get(entry["node"], 0) + count(entry.get("saved_bytes"))
    held: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows(document, "operators"):
        if row.get("into") and row.get("fate") in ("fused", "folded"):
            held.setdefault(row["into"], []).append(row)
    table = [["module", "kernel", "saved", "ends in"]]
    for node, members in held.items():
        operators = " + ".join(_NAMES.get(m["operator"], m["operator"]) for m in members)
        module = next((m["module"] for m in members if m["module"]), node)
        table.append([module, operators, bytes_text(saved.get(node, 0)), _ends(members[0])])
    return _columns(table, right=(2,)) if len(table) > 1 else []


def _ends(row: Mapping[str, Any]) -> str:
    if row.get("read_in_place"):
        return "no operator: its input is read in place"
    text = ", ".join(row.get("ends_in") or ()) or DASH
    return f"{text} (in {row['merged_into']})" if row.get("merged_into") else text


def _refusals(document: Mapping[str, Any]) -> list[str]:
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for entry in rows(document, "entries"):
        if entry.get("status") == "refused":
            key = (entry["pass"], entry.get("reason", ""), entry.get("remedy", ""))
            grouped.setdefault(key, []).append(entry)
    lines = ["refused:"] if grouped else []
    for (name, reason, remedy), entries in grouped.items():
        modules = list(dict.fromkeys(e["module"] or e["nodes"][0] for e in entries))
        lines.append(f"  {name}, {_listed(modules)}: {reason}")
        if remedy:
            lines.append(f"    remedy: {remedy}")
    return lines


def _alone(document: Mapping[str, Any]) -> list[str]:
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows(document, "operators"):
        if row.get("fate") in ("irreducible", "unknown"):
            grouped.setdefault((row["operator"], row["reason"]), []).append(row)
    lines = ["not fused:"] if grouped else []
    for (operator, reason), members in grouped.items():
        lines.append(f"  {len(members)} {operator}: {reason}")
        for row in members:
            lines.append(f"    {row['module'] or row['node']}: {_ends(row)}")
    return lines


def _rest(document: Mapping[str, Any]) -> list[str]:
    trace = part(document, "trace")
    lines = []
    if layout := trace.get("layout"):
        lines.append(f"int8 operators that only move or convert values: {', '.join(layout)}")
    if unexplained := trace.get("unexplained"):
        lines.append(f"int8 operators that nothing accounts for: {', '.join(unexplained)}")
    return lines


def _advice(document: Mapping[str, Any]) -> list[str]:
    lines = [f"  {remark['text']}" for remark in rows(document, "advice")]
    return ["where fusing will not help:", *lines] if lines else []


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _columns(table: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    widths = [min(max(map(len, column)), MAX_WIDTH) for column in zip(*table)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in table
    ]
