"""How the file was quantised: as data, on the page, on the terminal."""

from __future__ import annotations

import copy
import html as markup
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgefuse.recipe import Recipe
from edgefuse.recipe.quantize import Quantize
from edgefuse.report import html, search_chart
from edgefuse.report.quantisation import quantisation, quantisation_section
from edgefuse.report.search import trial_rows
from edgefuse.report.table import verdict_table
from edgefuse.report.units import DASH, TIMES
from edgefuse.runner import Outcome
from edgefuse.stage import REPRODUCER, STAGES

from .sample import failing, passing
from .searched import asked_for, given, in_vain, searched
from .test_html import Outline

_PARTS = {"asked": asked_for, "searched": searched, "vain": in_vain, "given": given}


def _page(part: dict[str, Any]) -> str:
    """The section alone."""
    return quantisation_section({"quantisation": part})


def _text(part: dict[str, Any]) -> str:
    """Its words, a space between cells."""
    return Outline(re.sub(r"</(dt|dd|td|th|li|h3|p)>", r" </\1>", _page(part))).text


@pytest.mark.parametrize(
    "said",
    [
        "int8 weights and activations, scales per channel",
        "percentiles, 0.005% cut from each end; 70 tensors, at most 0.01% of a tensor's values",
        "100 samples; not settled: the last doubling moved 22 of 70 ranges by more than 4 int8",
        "about 280 would settle nine of ten",
        "14,773 channels in 42 groups, relative error in float 8.9e-03",
        "GPTQ, 53 layers on 100 samples; 14.7% of their weights changed",
        "of the last layer, by 0.035 in the mean and 0.147 at most",
        "evaluation samples reach 5.1 times as far as calibration samples",
        "calibrate on samples of the kind that the model will see",
    ],
)
def test_what_was_done_is_said(said: str) -> None:
    assert said in _text(asked_for())


def test_settled_ranges_and_a_plain_file() -> None:
    part = asked_for() | {"equalized": False, "lint": []}
    part["convergence"] |= {"settled_at": 50, "enough_samples": None}
    part["options"] |= {"rounding": "nearest", "correct_bias": "none", "ranges": "mse"}
    part["method"] = "mse"
    text = _text(part)
    assert "the ranges had settled by 50" in text and "would settle" not in text
    assert "least squared error; 70 tensors" in text and "rounding to nearest" in text
    assert "none in this file; the search could have used it" in text
    assert "bias correction none" in text and "Lint found nothing." in text


def test_nothing_quantised_leaves_the_section_out() -> None:
    assert "Quantisation</h2>" not in html.render(passing())
    assert "Quantisation</h2>" in html.render(passing() | {"quantisation": asked_for()})
    assert "Quantisation" in Outline(html.render(passing())).text.split("Not in this report")[1]


def test_a_models_own_scales() -> None:
    text = _text(given())
    assert "62 activations, 53 weights, 53 biases; 4 more tensors follow" in text
    assert "no scale in the model: calibrated" in text and "logits" in text
    assert "rounding to nearest" not in text


def test_the_path_of_a_search() -> None:
    text = _text(searched())
    assert "Agreement at least 97.50%, drop at most 1.00 points: reached by 3 layers in" in text
    trials = searched()["search"]["trials"]
    places = [text.index(f"{i} {trial['technique']}") for i, trial in enumerate(trials, 1)]
    assert places == sorted(places)
    assert f"7 3 layers in float 98.00% 0.00 26.00 dB 3 0.47{TIMES} 41.2 s ✓ reached" in text
    assert f"1 the recipe's own options 89.00% 3.00 15.31 dB 0 {DASH} 41.2 s ✕ missed" in text
    assert "Judged on 100 samples of data.validation" in text
    assert "model_1/relu6_3/Relu6 +3 DEPTHWISE_CONV_2D 31.0%" in text


def test_the_options_make_the_file_without_a_search() -> None:
    for part in (searched(), in_vain()):
        (shown,) = re.findall(r"<code>(quantize:.*?)</code>", _page(part), re.DOTALL)
        written = yaml.safe_load(markup.unescape(shown))
        assert written == {"quantize": part["search"]["options"]}
        assert Quantize.model_validate(written["quantize"]).equalize
    part = searched()
    part["search"]["options"] = {}
    assert "The recipe's own options make this file" in _text(part)
    part["search"]["options"] = {"qat": "the recipe's"}
    assert "The recipe's own options and its qat make this file" in _text(part)


def test_a_search_in_vain() -> None:
    text = _text(in_vain())
    assert "not reached; 3 candidates tried, the nearest is equalised channels, GPTQ" in text
    assert "check.permit_float allows none" in text
    assert "These options make the nearest file" in text
    assert "Left beside this page: reproducer/best.tflite, reproducer/search.json" in text
    assert "rounding to nearest" not in text  # nobody knows: there is no file


def test_techniques_that_do_not_know_the_model() -> None:
    part = searched()
    part["search"]["refused"] = ["equalised channels, GPTQ: no <such> group"]
    assert "equalised channels, GPTQ: no <such> group" in _text(part)


def test_charts_have_a_text_alternative_and_say_their_figures() -> None:
    dots, frontier = (draw(searched()["search"]) for draw in _CHARTS)
    (told,) = re.findall(r'aria-label="([^"]*)"', dots)
    assert told.startswith("7 candidates against the goal") and "98.50% at best" in told
    assert "agreement ≥ 97.50%" in dots and dots.count("mark hollow") == 2 * 5
    (told,) = re.findall(r'aria-label="([^"]*)"', frontier)
    assert f"96.00% at 0.39{TIMES}" in told and f"98.50% at 0.53{TIMES}" in told
    assert "the recipe" not in frontier  # it was not timed


_CHARTS = (search_chart.dot_chart, search_chart.frontier_chart)


def test_every_mark_is_inside_its_drawing() -> None:
    for threshold in (-1.0, 0.0, 0.5, 5.0):
        search = searched()["search"]
        search["goal"] = {"max_drop_points": threshold, "min_sqnr_db": 40.0}
        search["trials"][3]["score"]["sqnr_db"] = 999.0
        for draw in _CHARTS:
            drawn = draw(search)
            width, height = map(float, re.findall(r'viewBox="0 0 (\S+) (\S+?)"', drawn)[0])
            marks = re.findall(r'cx="(\S+)" cy="(\S+)"', drawn)
            assert marks and all(0 < float(x) < width for x, _ in marks)
            assert all(0 < float(y) < height for _, y in marks)


def test_a_candidate_that_another_beats_is_off_the_frontier() -> None:
    points = [(0.5, 0.96), (0.4, 0.95), (0.6, 0.94), (0.4, 0.93), (0.7, 0.96)]
    assert search_chart.frontier(points) == [(0.4, 0.95), (0.5, 0.96)]


def test_a_single_candidate_is_no_chart() -> None:
    search = searched()["search"]
    search["trials"] = search["trials"][:1]
    assert [draw(search) for draw in _CHARTS] == ["", ""]


def test_the_terminal_has_the_path() -> None:
    text = verdict_table(passing() | {"quantisation": searched()})
    assert "3 layers in float            98.00%          0.00  26.00 dB" in text
    assert "drop at most 1.00 points: reached by 3 layers in float" in " ".join(text.split())
    vain = verdict_table(failing() | {"quantisation": in_vain()})
    assert "float layers" not in vain  # a column without a figure
    assert "see reproducer/best.tflite, reproducer/search.json" in " ".join(vain.split())
    assert "\x1b[32mreached" in verdict_table({"quantisation": searched()}, colour=True)
    assert "search" not in verdict_table(passing() | {"quantisation": asked_for()})


def test_many_candidates_are_cut_in_the_middle() -> None:
    search = searched()["search"]
    search["trials"] = [t | {"technique": f"no. {i}"} for i in range(5) for t in search["trials"]]
    head, table = trial_rows(search)
    assert [row[0] for row in table[5:8]] == ["no. 0", "… 23 more", "no. 4"]
    assert {len(row) for row in table} == {len(head)}


@pytest.mark.parametrize("width", [40, 80, 100])
def test_lines_fit(width: int) -> None:
    part = searched()
    part["search"]["trials"][0]["technique"] = "equalised " * 30
    lines = verdict_table({"quantisation": part}, width, encoding="ascii").splitlines()
    assert max(map(len, lines)) <= width


def _absences() -> Any:
    for name, make in _PARTS.items():
        for key in make():
            yield pytest.param({k: v for k, v in make().items() if k != key}, id=f"{name}-{key}")
            yield pytest.param(make() | {key: None}, id=f"{name}-null-{key}")
    for key in searched()["search"]:
        search = {k: v for k, v in searched()["search"].items() if k != key}
        yield pytest.param(searched() | {"search": search}, id=f"search-{key}")
    hollow: dict[str, Any] = {"trials": [{}, {}], "blamed": [{}], "options": None}
    yield pytest.param({"search": hollow, "lint": [{}]}, id="hollow")


@pytest.mark.parametrize("part", list(_absences()))
def test_any_part_may_be_missing(part: dict[str, Any]) -> None:
    Outline(_page(part))
    assert verdict_table({"quantisation": part})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "n/a", True, 0, -1.5, 1e30])
def test_odd_numbers_are_not_drawn_wrong(value: Any) -> None:
    part = searched()
    for trial in part["search"]["trials"][2:5]:
        trial |= {"latency_ratio": value, "seconds": value}
        trial["score"] = dict.fromkeys(trial["score"], value)
    page = _page(part)
    Outline(page)
    assert not re.search(r'(?:x|y|cx|cy|d|width)="[^"]*(?:nan|inf)', page)
    assert verdict_table({"quantisation": part})


@pytest.mark.parametrize("attack", ["<script>alert(1)</script>", "\" onmouseover='x'", "a\x00\n b"])
@pytest.mark.parametrize("make", [searched, given])
def test_every_string_is_escaped(attack: str, make: Any) -> None:
    def planted(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: planted(v) for k, v in value.items()} | {attack: attack}
        if isinstance(value, list):
            return [planted(v) for v in value]
        return attack if isinstance(value, str) else value

    page = _page(planted(make()))
    outline = Outline(page)
    assert "script" not in outline.tags and "\x00" not in page
    assert not [k for k, _ in outline.attributes if k.startswith("on")]


def test_pages_are_equal_for_equal_documents() -> None:
    assert _page(searched()) == _page(json.loads(json.dumps(searched())))


def _recipe(**quantize: Any) -> Recipe:
    fields: dict[str, Any] = {
        "schema": 1,
        "name": "tiny",
        "model": {"onnx": {"path": "model.onnx"}, "inputs": [{"name": "x", "shape": [1, 2]}]},
        "data": {
            role: {"arrays": f"{role}.npz"} for role in ("calibration", "validation", "evaluation")
        },
        "quantize": quantize,
    }
    return Recipe.model_validate(fields)


def _outcome(name: str, status: Any, evidence: dict[str, Any]) -> Outcome:
    return Outcome(STAGES.all()[name], status, evidence=evidence)


def test_the_document_holds_all_evidence(tmp_path: Path) -> None:
    search = searched()["search"]
    evidence = {k: v for k, v in asked_for().items() if k not in ("options", "equalisation")}
    evidence |= {"search": search, "summary": "short", "warnings": ["known"]}
    equalize = {"equalize": {"groups": 2, "channels": 9}, "parity": {"max_rel_to_peak": 0.01}}
    outcomes = [_outcome("equalize", "reused", equalize), _outcome("quantize", "ran", evidence)]
    recipe = _recipe(goal={"min_agreement": 0.975}, tail_percent=0.02)
    before = copy.deepcopy(evidence)
    part = quantisation(recipe, outcomes, tmp_path)
    assert part is not None and evidence == before
    assert part["search"] == search and part["lint"] == evidence["lint"]
    assert part["equalisation"] == {"groups": 2, "channels": 9, "max_relative_error": 0.01}
    assert part["options"]["rounding"] == "gptq" and part["options"]["tail_percent"] == 0.02
    assert not {"goal", "summary", "warnings", "left"} & {*part, *part["options"]}
    json.dumps(part, allow_nan=False)


def test_the_document_holds_the_search_of_a_failed_run(tmp_path: Path) -> None:
    recipe, search = _recipe(goal={"min_agreement": 0.99}), in_vain()["search"]
    failed = [_outcome("quantize", "failed", {})]
    assert quantisation(recipe, failed, tmp_path) is None
    (tmp_path / REPRODUCER).mkdir()
    (tmp_path / REPRODUCER / "search.json").write_text("{")
    assert quantisation(recipe, failed, tmp_path) is None
    (tmp_path / REPRODUCER / "search.json").write_text(json.dumps(search))
    part = quantisation(recipe, failed, tmp_path)
    assert part is not None and part["search"] == search
    assert part["left"] == ["reproducer/search.json"]
    blocked = [_outcome("quantize", "blocked", {})]
    assert quantisation(recipe, blocked, tmp_path) is None
    assert quantisation(recipe, [], tmp_path) is None
