"""What arenas are made of: as a table on a terminal, and as a section of the page with a picture.

What a figure means is in :mod:`edgefuse.memory.files` and :mod:`edgefuse.commands.memory`, which
make the documents. Any part of them may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefuse.report.cells import (
    Columns,
    Row,
    bytes_cell,
    code_name,
    exact,
    grid,
    number,
    said,
    text,
)
from edgefuse.report.parts import part, rows
from edgefuse.report.table import MAX_WIDTH, padded_columns, spelling, wrapped
from edgefuse.report.units import DASH, bytes_text, count, finite, number_text, printable

_SHOWN = 6


def memory_table(
    document: Mapping[str, Any], *, encoding: str = "utf-8", paths: Sequence[str] = ()
) -> str:
    """The document of ``edgefuse memory`` as plain text, at most 100 columns wide.

    Args:
        encoding: of the stream it is printed to; anything but UTF-8 gets plain ASCII.
        paths: the files that hold more, named in the last line.
    """
    shown, ellipsis = spelling(encoding)

    def laid_out(table: list[list[str]], right: Sequence[int]) -> list[str]:
        spelt = [[shown(cell) for cell in row] for row in table]
        cells = padded_columns(spelt, right, MAX_WIDTH, ellipsis)
        return ["  ".join(row).rstrip() for row in cells]

    def told(line: str) -> list[str]:
        return wrapped(shown(line), MAX_WIDTH, "  ", ellipsis)

    held = rows(document, "arenas")
    table = [["arena of", "planned by", "operators", "arena", "bound", "smallest"]]
    table += [
        [
            printable(arena.get("what")),
            printable(arena.get("owner")),
            number_text(arena.get("operators")),
            _size(arena.get("arena_bytes")),
            _size(arena.get("bound_bytes")),
            _proof(arena),
        ]
        for arena in held
    ]
    blocks = [laid_out(table, (2, 3, 4))] if held else []
    place = count(document.get("now"))
    if place < len(held):
        now = held[place]
        blocks.append([*told(_at_peak(now)), *laid_out(_peak_rows(now), (0,))])
    table = [["technique", "arena", "saves", "multiply-adds", "file", "what it does, or why not"]]
    table += [
        [
            printable(row.get("name")),
            _size(row.get("arena_bytes")) if row.get("applies") else DASH,
            _size(row.get("saved_bytes")) if row.get("applies") else DASH,
            _extra(row) if row.get("applies") else DASH,
            _size(row.get("file_bytes")) if row.get("applies") else DASH,
            printable(row.get("did") or row.get("why_not")),
        ]
        for row in rows(document, "techniques")
    ]
    if len(table) > 1:
        blocks.append(_techniques(table, laid_out, ellipsis))
    notes = [line for note in _notes(document) for line in told(note)]
    notes += told(f"picture: {', '.join(paths)}") if paths else []
    return "\n\n".join("\n".join(block) for block in [*blocks, notes] if block) + "\n"


def _techniques(table: list[list[str]], laid_out: Any, ellipsis: str) -> list[str]:
    """The last column is long: it takes as many lines as it needs."""
    lines: list[str] = []
    heads = laid_out([row[:-1] for row in table], (1, 2, 3, 4))
    indent = max(map(len, heads)) + 2
    for head, row in zip(heads, table, strict=True):
        words = wrapped(row[-1], MAX_WIDTH - indent, "", ellipsis)
        lines += [f"{head.ljust(indent)}{words[0]}".rstrip()]
        lines += [" " * indent + line.strip() for line in words[1:]]
    return lines


def _size(value: Any) -> str:
    size = finite(value)
    return DASH if size is None else bytes_text(size)


def _proof(arena: Row) -> str:
    return "proven" if arena.get("proven") else "not proven"


def _extra(row: Row) -> str:
    share = finite(row.get("extra_share"))
    return DASH if share is None else f"{100 * share:+.1f}%"


def _at_peak(arena: Row) -> str:
    return (
        f"{_size(arena.get('peak_bytes'))} are alive at {printable(arena.get('peak_operator'))}, "
        f"the peak of {printable(arena.get('what'))} ({printable(arena.get('owner'))}):"
    )


def _alive(arena: Row) -> list[Row]:
    """The buffers at the peak, the largest first."""
    by_name = {buffer.get("name"): buffer for buffer in rows(arena, "buffers")}
    names = arena.get("at_peak")
    return [by_name[name] for name in names if name in by_name] if isinstance(names, list) else []


def _peak_rows(arena: Row) -> list[list[str]]:
    alive = _alive(arena)
    table = [["size", "tensor", "torch module"]]
    for buffer in alive[:_SHOWN]:
        name = printable(buffer.get("name")).split(";")[0]
        table.append([_size(buffer.get("size_bytes")), name, printable(buffer.get("module"))])
    if len(alive) > _SHOWN:
        rest = sum(count(buffer.get("size_bytes")) for buffer in alive[_SHOWN:])
        table.append([_size(rest), f"{len(alive) - _SHOWN} more", ""])
    if not any(row[2] for row in table[1:]):
        table = [row[:2] for row in table]
    return table


def _notes(document: Row) -> list[str]:
    notes = []
    largest = part(document, "largest_batch")
    if largest:
        notes.append(_batch_note(largest, count(document.get("batch")) or 1))
    warnings = document.get("warnings")
    notes += [f"warning: {w}" for w in warnings] if isinstance(warnings, list) else []
    return notes


def _batch_note(largest: Row, batch: int) -> str:
    most, given = count(largest.get("batch")), _size(largest.get("memory_bytes"))
    planned = f"{_size(largest.get('arena_bytes'))} at batch {batch}"
    if most >= 1:
        return (
            f"largest batch in {given}: {most:,} (the plan of {planned}, every size and address "
            f"multiplied)"
        )
    least = f"{_size(largest.get('least_bytes'))} ({printable(largest.get('least_by'))})"
    return f"{given} hold no batch of the file as it is ({planned}); the least reached is {least}"


def memory_section(document: Mapping[str, Any]) -> str:
    """What the page says of arenas, as HTML; empty without any."""
    arenas = part(document, "arenas")
    held = rows(arenas, "planned")
    columns: Columns = {
        "arena of": said("what"),
        "planned by": said("owner"),
        "operators#": number("operators"),
        "arena#": lambda a: bytes_cell(a.get("arena_bytes")),
        "lower bound#": lambda a: bytes_cell(a.get("bound_bytes")),
        "smallest": lambda a: text(_proof(a)) if "proven" in a else text(a.get("why_not")),
        "peak at": lambda a: code_name(a.get("peak_operator")),
        "largest there": _largest,
    }
    out = grid("Arenas", columns, held)
    columns = {
        "rewrite": lambda s: text(s.get("name")),
        "what it does": lambda s: text(s.get("did")),
        "kept": lambda s: "yes" if s.get("kept") else f"no: {text(s.get('why_not'))}",
        "arena before#": lambda s: bytes_cell(s.get("arena_bytes_before")),
        "arena after#": lambda s: bytes_cell(s.get("arena_bytes")),
        "multiply-adds#": lambda s: exact(s.get("multiply_adds"), _growth(s)),
        "file after#": lambda s: bytes_cell(s.get("file_bytes")),
    }
    out += grid("Rewrites for memory", columns, rows(part(document, "memory"), "steps"))
    return out + _picture(held) + _left_out(arenas)


def _growth(step: Row) -> str:
    before, after = finite(step.get("multiply_adds_before")), finite(step.get("multiply_adds"))
    return DASH if not before or after is None else f"{100 * (after / before - 1):+.1f}%"


def _largest(arena: Row) -> str:
    """The largest buffers at the peak, by module where it is known."""
    shown = [
        f"{code_name(b.get('module') or printable(b.get('name')).split(';')[0])} "
        f"{bytes_cell(b.get('size_bytes'))}"
        for b in _alive(arena)[:2]
    ]
    return ", ".join(shown) or DASH


def _picture(held: Sequence[Row]) -> str:
    from edgefuse.memory.files import from_json
    from edgefuse.memory.picture import Panel, picture

    panels = []
    for arena in held:
        found = from_json(arena)
        if found is not None and arena.get("drawn"):
            panels.append(Panel(printable(arena.get("what")), found.arena, found.modules))
    if not panels:
        return ""
    drawing = picture(panels, title="Arenas: address upwards, operators to the right")
    return f'<div class="wide">{drawing}</div>\n'


def _left_out(arenas: Row) -> str:
    missing = rows(arenas, "left_out")
    return "".join(
        f'<p class="note">No arena of {text(row.get("what"))}: {text(row.get("why"))}</p>\n'
        for row in missing
    )
