"""The page's section on memory: a table, what was rewritten, the picture; any part missing."""

from __future__ import annotations

from typing import Any

from edgefuse.memory.arena import Arena, Live
from edgefuse.memory.files import FileArena, from_json
from edgefuse.report.html import render
from edgefuse.report.memory import memory_section, memory_table

_ARENA = FileArena(
    Arena(
        owner="tflite-micro",
        buffers=(Live("image", 4096, 0, 0), Live("t<1>;t2", 2048, 0, 1)),
        offsets=(0, 4096),
        steps=("CONV_2D#0", "MEAN#1"),
        bound_bytes=6144,
        proven=True,
    ),
    {"t<1>;t2": "features.0"},
)


def _document() -> dict[str, Any]:
    held = _ARENA.as_json()
    step = {"name": "padding", "did": "1 PAD absorbed", "kept": True, "why_not": ""}
    step |= {"arena_bytes_before": 8192, "arena_bytes": 6144}
    step |= {"multiply_adds_before": 100, "multiply_adds": 104}
    return {
        "recipe": "tiny",
        "arenas": {
            "planned": [{"what": "int8", "drawn": True, **held}],
            "left_out": [{"what": "fused", "why": "a <size> is dynamic"}],
        },
        "memory": {"steps": [step]},
    }


def test_an_arena_survives_json() -> None:
    held = from_json(_ARENA.as_json())
    assert held is not None and held.arena == _ARENA.arena and held.modules == _ARENA.modules
    assert from_json({"buffers": [{"name": "x"}]}) is None and from_json({}) is None


def test_the_section_has_table_rewrites_and_picture() -> None:
    section = memory_section(_document())
    assert section.count('<svg xmlns="http://www.w3.org/2000/svg" class="arenas"') == 1
    assert "6.00 KiB" in section and "features.<wbr>0" in section and "proven" in section
    assert "1 PAD absorbed" in section and "+4.0%" in section
    assert "No arena of fused: a &lt;size&gt; is dynamic" in section and "<1>" not in section
    assert ">Memory</h2>" in render(_document())


def test_what_is_not_drawn_is_in_the_table_only() -> None:
    document = _document()
    document["arenas"]["planned"][0]["drawn"] = False
    section = memory_section(document)
    assert "<svg" not in section and "tflite-micro" in section


def test_any_part_may_be_missing_or_of_another_kind() -> None:
    for broken in ({}, {"arenas": None}, {"arenas": {"planned": [{}, None, {"drawn": True}]}}):
        assert "None" not in memory_section(broken)
        assert memory_table({"arenas": [{}], "techniques": [{}], "largest_batch": {}, **broken})
    assert memory_section({}) == ""


def test_the_table_in_plain_ascii() -> None:
    document = {"source": "x", "now": 0, "arenas": [{"what": "int8", **_ARENA.as_json()}]}
    text = memory_table(document, encoding="ascii", paths=["a.svg"])
    assert text.isascii() and "6.00 KiB are alive at CONV_2D#0" in text
    assert "2.00 KiB  t<1>    features.0" in text and text.endswith("picture: a.svg\n")
