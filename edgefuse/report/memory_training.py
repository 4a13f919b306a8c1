"""Ways to run a training step, as a table on a terminal. Any part of it may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefuse.report.cells import Row
from edgefuse.report.parts import rows
from edgefuse.report.table import MAX_WIDTH, padded_columns, spelling, wrapped
from edgefuse.report.units import DASH, bytes_text, finite, number_text, plural, printable


def training_table(document: Mapping[str, Any], *, encoding: str = "utf-8") -> str:
    """The document of :mod:`edgefuse.commands.memory_training`, at most 100 columns wide."""
    shown, ellipsis = spelling(encoding)
    found = rows(document, "rows")
    eager = next((row for row in found if row.get("name") == "eager"), {})
    table = [["a training step", "budget", "peak", "of eager", "ms", "range", "to eager"]]
    table += [_cells(row, eager) for row in found]
    cells = padded_columns(
        [[shown(cell) for cell in row] for row in table], range(1, 7), MAX_WIDTH, ellipsis
    )
    blocks = [["  ".join(row).rstrip() for row in cells]]
    notes = []
    for row in found:
        again = row.get("recomputed") or ()
        if row.get("refused"):
            notes.append(f"{printable(row.get('name'))}: refused: {printable(row['refused'])}")
        elif again and printable(row.get("name")).startswith("edgefuse"):
            named = ", ".join(map(printable, again))
            notes.append(f"{printable(row.get('name'))} runs twice: {named}")
    rounds, batch = number_text(document.get("rounds")), number_text(document.get("batch"))
    notes.append(
        f"{printable(document.get('source'))}, batch {batch}, one step of each way in turns, "
        f"{rounds} {plural(int(finite(document.get('rounds')) or 0), 'round')}; peaks are counted, "
        "not sampled; torch.compile's budget is of what is saved, not of the peak"
    )
    blocks.append(
        [line for note in notes for line in wrapped(shown(note), MAX_WIDTH, "  ", ellipsis)]
    )
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _cells(row: Row, eager: Row) -> list[str]:
    spread = row.get("spread_ms")
    ends = [finite(end) for end in spread] if isinstance(spread, (list, tuple)) else []
    known = len(ends) == 2 and None not in ends
    return [
        printable(row.get("name")),
        _size(row.get("budget_bytes")),
        _size(row.get("peak_bytes")),
        _share(row.get("peak_bytes"), eager.get("peak_bytes")),
        _ms(row.get("time_ms")),
        f"{_ms(ends[0])} to {_ms(ends[1])}" if known else DASH,
        _share(row.get("time_ms"), eager.get("time_ms")),
    ]


def _size(value: Any) -> str:
    size = finite(value)
    return DASH if size is None else bytes_text(size, 1)


def _ms(value: Any) -> str:
    number = finite(value)
    return DASH if number is None else f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def _share(value: Any, whole: Any) -> str:
    part, base = finite(value), finite(whole)
    return DASH if part is None or not base else f"{100 * part / base:.0f}%"
