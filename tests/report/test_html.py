"""The page as text: what it says, what it survives, what it never contains."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser

import pytest

from edgefuse.report import html

from .sample import LAYERS, early, failing, passing

VOID = {"meta", "link", "wbr", "path", "rect", "circle", "br"}


class Outline(HTMLParser):
    """Collects text, tags and addresses, and insists that every element is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "title"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def _strings(value, replacement):
    if isinstance(value, dict):
        return {k: _strings(v, replacement) for k, v in value.items()}
    if isinstance(value, list):
        return [_strings(v, replacement) for v in value]
    return replacement if isinstance(value, str) else value


@pytest.mark.parametrize("report", [passing(), failing(), early(), {}])
def test_page_is_well_formed_and_asks_for_nothing(report):
    page = html.render(report)
    outline = Outline(page)
    assert not {"script", "img", "iframe", "object", "base", "form"} & set(outline.tags)
    addresses = [v for k, v in outline.attributes if k in ("href", "src", "srcset", "action")]
    assert addresses == ["data:,"]
    assert "url(" not in page
    assert "@import" not in page
    assert "//" not in re.sub(r'xmlns="[^"]*"', "", page)


def test_equal_documents_give_equal_pages():
    assert html.render(passing()) == html.render(json.loads(json.dumps(passing())))


def test_the_document_is_not_changed():
    report = failing()
    before = copy.deepcopy(report)
    html.render(report)
    assert report == before


def test_verdict_and_gates_come_first():
    text = Outline(html.render(passing())).text
    order = ["pass", "may ship", "Gates", "agreement_percent", "What fused", "What did not fuse"]
    order += ["Fusion contract", "Stages", "Parity", "Artifacts", "To repeat"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "figure",
    ["91.20%", "88.00%", "≥ 85.00%", "+3.00 points", "23.87 dB", "1.72 MiB", "21.1 s", "71.57%"],
)
def test_figures_carry_their_units(figure):
    assert figure in Outline(html.render(passing())).text


def test_exact_values_are_in_titles():
    attributes = Outline(html.render(passing())).attributes
    assert {("title", "1806336"), ("title", "3,790,112 bytes"), ("title", "91.2")} <= set(
        attributes
    )


def test_equal_rows_of_the_ledger_fold_together():
    page = html.render(passing())
    assert page.count(f'<b class="times">{LAYERS} ') == 1
    assert page.count("The sum feeds two consumers") == 1
    assert "Raise fuse.fold_size_limit_bytes" in page


def test_digests_are_whole():
    for artifact in passing()["artifacts"]:
        assert artifact["sha256"] in html.render(passing())


def test_failure_is_said_with_its_remedy():
    text = Outline(html.render(failing())).text
    assert "may not ship" in text
    assert "✕ fail" in text
    assert "? inconclusive needs about 1,100 samples" in text
    assert "two activations are not fused" in text
    assert "configs/mobilenet_v2.yaml:41" in text
    assert "RELU6 stands alone." in text
    assert "33 of 35 fused groups kept" in text


def test_a_run_without_gates_says_so():
    for report in ({}, early(), passing() | {"gates": []}):
        page = html.render(report)
        assert "No gate was judged" in page
        assert "may ship" not in page


def test_a_verdict_that_its_gates_contradict_is_no_leave_to_ship():
    assert "may ship" not in html.render(failing() | {"verdict": "pass"})


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive", "error", "incomplete"])
def test_every_verdict_is_named(verdict):
    page = html.render(passing() | {"verdict": verdict})
    assert re.search(rf'id="verdict".*?{verdict}</p>', page)


def _absences():
    for key in passing():
        yield pytest.param({k: v for k, v in passing().items() if k != key}, id=f"no-{key}")
        yield pytest.param(passing() | {key: None}, id=f"null-{key}")
        if isinstance(passing()[key], (dict, list)):
            yield pytest.param(passing() | {key: type(passing()[key])()}, id=f"empty-{key}")
    for key in passing()["fusion"]:
        fusion = {k: v for k, v in passing()["fusion"].items() if k != key}
        yield pytest.param(passing() | {"fusion": fusion}, id=f"no-fusion.{key}")
    for key in ("stages", "gates", "parity", "artifacts"):
        yield pytest.param(passing() | {key: [{}, {"checks": [{}]}]}, id=f"hollow-{key}")


@pytest.mark.parametrize("report", list(_absences()))
def test_any_part_may_be_missing(report):
    Outline(html.render(report))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "n/a", True, 0, -1.5, 10**30])
def test_odd_numbers_are_shown_not_drawn_wrong(value):
    report = passing()
    for gate in report["gates"]:
        for check in gate["checks"]:
            check |= {"value": value, "bound": value, "threshold": value, "n": value}
    report["stages"][1] |= {"seconds": value, "bytes": value}
    report["parity"][0] |= {"max_relative_error": value, "limit": value}
    page = html.render(report)
    Outline(page)
    assert not re.search(r'(?:x|cx|d|width)="[^"]*(?:nan|inf)', page)


@pytest.mark.parametrize(
    "attack",
    ["</script><script>alert(1)</script>", "\" onmouseover='x'", "<!--", "$title ${body}", "&lt;"],
)
def test_every_string_is_escaped(attack):
    report = _strings(passing(), attack)
    page = html.render(report)
    outline = Outline(page)
    assert "script" not in outline.tags
    assert not [k for k, _ in outline.attributes if k.startswith("on")]
    assert " ".join(attack.split()) in outline.text


def test_keys_are_escaped_too():
    report = passing()
    hostile = {"<script>x</script>": 3}
    report["fusion"] |= {f"operators_{k}": hostile for k in ("before", "after", "tflite")}
    report["gates"][0]["figures"] = {"<script>": {"<img>": 1}}
    report["environment"] = {"<script>": "<script>"}
    assert not {"script", "img"} & set(Outline(html.render(report)).tags)


def test_unicode_is_kept_and_what_is_no_text_is_marked():
    report = passing() | {"recipe": "modèle 模型 🦊", "command": "a\x00b\x1b[31m\ud800\u202ec"}
    page = html.render(report)
    assert "modèle 模型 🦊" in page
    page.encode("utf-8")
    assert not re.search("[\x00\x1b\u202e]", page)


def test_a_bound_that_misses_by_little_never_reads_as_the_threshold():
    report = passing()
    report["gates"][0]["checks"][0] |= {"bound": 84.9996, "verdict": "fail"}
    text = Outline(html.render(report)).text
    assert "84.9996%" in text
    assert "≥ 85.0000%" in text


def test_kernels_of_shape_buckets() -> None:
    decision = {"candidate": "depthwise and projection", "producer": "conv<1>", "taken": True}
    decision |= {"saved_us": 3.5, "reason": "one launch & 40 kB less"}
    bucket = {"bucket": "batch 64", "unfused": 151, "groups": 54, "kernels": 37}
    bucket |= {"groups_us": 410.2, "kernels_us": 273.0, "decisions": [decision]}
    report = passing()
    assert "shape bucket" not in html.render(report)
    page = html.render(report | {"fusion": report["fusion"] | {"buckets": [bucket]}})
    assert "Kernels of each shape bucket" in page and "batch 64" in page and "410" in page
    assert "conv&lt;1&gt;" in page and "one launch &amp; 40 kB less" in page
