"""The table and the page of a comparison: every row, whatever is in it, and nothing that acts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgefuse.report.comparison import bar_chart, comparison_table, render
from edgefuse.report.units import DASH, TIMES

from .test_html import Outline


def _row(name: str, p50: float | None, **fields: Any) -> dict[str, Any]:
    there = p50 is not None
    row: dict[str, Any] = {
        "name": name,
        "title": f"Title of {name}",
        "status": "measured" if there else "unavailable",
        "available": there,
        "reason": "" if there else "not installed: it (pip install it)",
        "ours": False,
        "operators": 10 if there else None,
        "fusions": 3 if there else None,
        "fusion_kinds": {"BatchNorm folded": 3} if there else None,
        "p50_ms": p50,
        "p90_ms": p50 and p50 * 1.1,
        "ratio_to_eager": p50 and 10 / p50,
        "ratio_to_base": p50 and 10 / p50,
        "max_relative_error": 1e-6 if there else None,
        "samples": 75 if there else 0,
        "cpu_p50_ms": p50,
        "cores": 0.99 if there else None,
        "versions": {"tool": "1.0"} if there else {},
        "note": "as it comes",
    }
    return {**row, **fields}


def _document(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "edgefuse": "0",
        "recipe": "tiny",
        "command": "edgefuse compare tiny.yaml",
        "base": "eager",
        "base_title": "Title of eager",
        "rounds": 15,
        "invokes": 5,
        "seconds": 90.0,
        "machine": {"cpu": "a CPU", "int8_dot_product": False},
        "warnings": ["busy"],
        "rows": list(rows),
    }


ROWS = _row("eager", 10.0), _row("quick", 4.0, ours=True), _row("absent", None)


def test_every_row_is_in_the_table_in_its_order() -> None:
    table = comparison_table(_document(*ROWS), paths=["x.html"])
    lines = table.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["row", "eager", "quick", "absent"]
    assert lines[2].split()[1:] == ["10", "3", "4.00", "4.40", f"2.50{TIMES}", "1.0e-06"]
    assert set(lines[3].split()[1:]) == {DASH}
    assert "absent: unavailable: not installed: it (pip install it)" in lines
    assert "warning: busy" in lines and "to eager" in lines[0]
    assert "ratios and errors are to Title of eager; one thread, 15 interleaved" in table
    assert table.isascii() is False
    assert comparison_table(_document(*ROWS), encoding="ascii").isascii()


def test_the_chart_has_every_row() -> None:
    chart = bar_chart(_document(*ROWS))
    assert all(f">Title of {name}</text>" in chart for name in ("eager", "quick", "absent"))
    assert chart.count("<rect") == 2 and "unavailable: not installed: it" in chart
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="16"', chart)]
    assert widths[0] == pytest.approx(2.5 * widths[1], abs=0.2)
    assert 'class="was"' in chart and 'class="span"' in chart


def test_one_row_that_takes_far_longer_is_cut() -> None:
    chart = bar_chart(_document(*ROWS, _row("slow", 900.0)))
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="16"', chart)]
    assert widths[0] > 200 and widths[2] < 2 * widths[0]
    assert "900.00 ms" in chart and "l6 -18" in chart


def test_the_page_is_whole_and_text_does_nothing() -> None:
    nasty = '<script>alert("x")</script>'
    document = _document(*ROWS, _row(nasty, None, title=nasty, reason=nasty, note=nasty))
    page = render(document)
    outline = Outline(page)
    assert "script" not in outline.tags
    assert all(title in outline.text for title in ("Title of eager", "Title of absent", "busy"))
    assert "edgefuse compare tiny.yaml" in outline.text and "3 BatchNorm folded" in outline.text
    assert not [v for k, v in outline.attributes if k in ("src", "href") and v != "data:,"]
    assert page == render(document)


def test_any_part_may_be_missing() -> None:
    for document in ({}, {"rows": [{}]}, {"rows": [{"status": "measured"}]}, {"rows": 3}):
        assert "no row: none was measured" in comparison_table(document) + render(document)
        Outline(render(document))
