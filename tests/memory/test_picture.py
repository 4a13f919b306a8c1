"""The picture of an arena: every buffer where it lies, readable by itself, safe, the same twice."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from edgefuse.memory.arena import Arena, Live, peak
from edgefuse.memory.arenas.tflite_micro import greedy_offsets
from edgefuse.memory.picture import Panel, picture, size_text

_SVG = "{http://www.w3.org/2000/svg}"


def _arena(*buffers: Live, steps: int) -> Arena:
    offsets = greedy_offsets(buffers)
    bound = peak(buffers)[0]
    used = max((o + b.size_bytes for o, b in zip(offsets, buffers, strict=True)), default=0)
    labels = tuple(f"DEPTHWISE_CONV_2D#{step}" for step in range(steps))
    return Arena("tflite-micro", buffers, offsets, labels, bound, proven=used == bound)


def _long(steps: int) -> Arena:
    choose = random.Random(steps)
    buffers = [
        Live(
            f"block_{step // 10}/layer_{step}",
            choose.choice((1 << 12, 1 << 16, 200_000)),
            step,
            min(steps - 1, step + choose.choice((1, 1, 1, 30))),
        )
        for step in range(steps)
    ]
    return _arena(*buffers, steps=steps)


_SMALL = _arena(
    Live("image", 3000, 0, 0), Live("wide", 6000, 0, 1), Live("narrow", 1000, 1, 2), steps=3
)


def _root(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def _rectangles(text: str) -> dict[str, dict[str, float]]:
    """Rectangles of buffers by the name in their tooltip."""
    found = {}
    for box in _root(text).iter(f"{_SVG}rect"):
        told = box.find(f"{_SVG}title")
        if told is not None and told.text:
            sides = {k: float(box.attrib[k]) for k in ("x", "y", "width", "height")}
            found[told.text.split(":")[0]] = sides
    return found


def _texts(text: str) -> list[str]:
    return [" ".join("".join(t.itertext()).split()) for t in _root(text).iter(f"{_SVG}text")]


def test_every_buffer_is_a_rectangle_at_its_time_and_address() -> None:
    boxes = _rectangles(picture([Panel("int8", _SMALL)]))
    assert set(boxes) == {"image", "wide", "narrow"}
    wide, image, narrow = boxes["wide"], boxes["image"], boxes["narrow"]
    assert wide["height"] == pytest.approx(2 * image["height"], abs=0.02)
    assert wide["height"] == pytest.approx(6 * narrow["height"], abs=0.02)
    assert wide["width"] == pytest.approx(2 * image["width"], abs=0.02)
    assert wide["x"] == image["x"] and narrow["x"] == pytest.approx(image["x"] + image["width"])
    assert image["y"] + image["height"] == pytest.approx(wide["y"], abs=0.02)  # it lies on top
    assert narrow["y"] + narrow["height"] == pytest.approx(wide["y"], abs=0.02)


def test_panels_share_one_scale_in_bytes() -> None:
    half = _arena(Live("half", 4500, 0, 0), steps=1)
    boxes = _rectangles(picture([Panel("before", _SMALL), Panel("after", half)]))
    assert boxes["half"]["height"] == pytest.approx(boxes["wide"]["height"] * 0.75, abs=0.02)
    assert boxes["half"]["y"] > boxes["wide"]["y"] + boxes["wide"]["height"]  # below, not over it
    assert boxes["half"]["width"] == pytest.approx(3 * boxes["image"]["width"], abs=0.02)


def test_the_peak_its_largest_buffers_and_the_bound_are_told() -> None:
    text = picture([Panel("int8", _SMALL, {"wide": "features.0"})])
    said = _texts(text)
    assert "peak 8.79 KiB at DEPTHWISE_CONV_2D#0" in said
    assert "lower bound 8.79 KiB, reached" in said
    assert "5.86 KiB features.0" in said and "2.93 KiB image" in said
    assert any("no plan is smaller" in line and "9,000 bytes" in line for line in said)
    tops = [
        box.attrib["class"] for box in _root(text).iter(f"{_SVG}rect") if "top" in str(box.attrib)
    ]
    assert len(tops) == 2  # what is alive at the peak, no more


def test_an_arena_above_its_bound_says_so() -> None:
    loose = Arena("LiteRT", (Live("a", 100, 0, 0),), (300,), ("ADD#0",), 100, proven=False)
    text = picture([Panel("int8", loose)])
    assert "lower bound 100 bytes" in _texts(text)
    assert any("not proven smallest" in line for line in _texts(text))
    bound = re.search(r'class="bound" d="M[\d.]+ ([\d.]+)H', text)
    floor = re.search(r'class="floor" d="M[\d.]+ ([\d.]+)h', text)
    box = _rectangles(text)["a"]
    assert bound is not None and floor is not None
    assert float(floor[1]) - float(bound[1]) == pytest.approx(box["height"], abs=0.02)
    assert float(floor[1]) - box["y"] == pytest.approx(4 * box["height"], abs=0.02)


@pytest.mark.parametrize("steps", [1, 12, 150, 1500])
def test_labels_of_steps_never_run_into_each_other(steps: int) -> None:
    arena = _long(steps)
    text = picture([Panel("long", arena)])
    places = sorted(
        float(found[1]) for found in re.finditer(r'class="step[^>]*translate\(([\d.]+) ', text)
    )
    assert places and all(b - a >= 13.99 for a, b in pairwise(places))
    assert f"…#{arena.peak_step}" in text or f"#{arena.peak_step}<" in text
    assert len(_rectangles(text)) == steps
    assert len(text) < 450 * steps + 8_000


def test_names_are_hostile_input() -> None:
    name = '</title><script>alert("1")</script>&\x00\x1b[31m\u202e\ud800' + "x" * 5000
    arena = _arena(Live(name, 5000, 0, 1), steps=2)
    text = picture(
        [Panel('<b onload="x">', arena, {name: "<i>module</i>"})], title="<script>1</script>"
    )
    root = _root(text)  # well formed
    assert {e.tag.removeprefix(_SVG) for e in root.iter()} <= {
        *("svg", "title", "style", "rect", "g", "text", "tspan", "path")
    }
    assert "\x00" not in text and "\x1b" not in text and "\u202e" not in text
    assert text.encode()  # no lone surrogates
    assert len(text) < 9_000  # a long name is cut
    assert not any(key.startswith("on") for e in root.iter() for key in e.attrib)


def test_it_stands_by_itself_in_light_and_dark() -> None:
    text = picture([Panel("int8", _SMALL)])
    style = "".join(t.text or "" for t in _root(text).iter(f"{_SVG}style"))
    assert "prefers-color-scheme:dark" in style
    assert not re.search(r"url\(|@import|@font-face|href|<script", text)
    assert text.count("http") == 1  # the namespace
    rules = re.sub(r"@media[^{]*\{", "", style)
    selectors = re.findall(r"(?:^|\})\s*([^{}]+)\{", rules)
    assert selectors and all(s.strip().startswith(".arenas") for s in selectors)


def test_equal_arenas_give_equal_bytes() -> None:
    assert picture([Panel("a", _long(40))]) == picture([Panel("a", _long(40))])
    shuffled = Arena(
        _SMALL.owner,
        _SMALL.buffers[::-1],
        _SMALL.offsets[::-1],
        _SMALL.steps,
        _SMALL.bound_bytes,
        _SMALL.proven,
    )
    assert picture([Panel("a", _SMALL)]) == picture([Panel("a", shuffled)])


@pytest.mark.parametrize(
    "arena",
    [
        _arena(steps=0),
        _arena(Live("empty", 0, 0, 0), steps=1),
        _arena(Live("huge", 1 << 80, 0, 0), steps=1),
    ],
)
def test_arenas_at_the_edges_are_drawn(arena: Arena) -> None:
    text = picture([Panel("edge", arena)])
    assert _root(text).tag == f"{_SVG}svg" and "nan" not in text.split("</style>")[1]


def test_sizes_are_told_in_binary_units() -> None:
    assert [size_text(v) for v in (0, 512, 1536, 3 << 20, 1 << 31)] == [
        *("0 bytes", "512 bytes", "1.50 KiB", "3.00 MiB", "2.00 GiB")
    ]
