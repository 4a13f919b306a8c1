"""The table and the page of blame: every layer, whatever is in it, and nothing that acts."""

from __future__ import annotations

from typing import Any

import pytest

from edgefuse.report.blame import blame_table, cost_chart, network_chart, render
from edgefuse.report.units import DASH

from .test_html import Outline

EVIL = '<script>alert("x")</script>'


def _layer(place: int, share: float, **fields: Any) -> dict[str, Any]:
    judged = {"noise_ratio": share / 100, "sqnr_db": 30.0, "agreement_loss_points": 3.125}
    return {
        "rank": place + 1,
        "operator": f"CONV_2D#{place}",
        "modules": [f"features.{place}.conv"],
        "tensor": f"tensor {place}",
        "alone": {"sqnr_db": 40.0 + place, "cosine": 0.9999},
        "accumulated": {"sqnr_db": 35.0 - place, "cosine": 0.998},
        "range": {"low": 0.0, "high": 6.0, "quantiles": {"p50": 1.0}, "saturated_percent": 0.01},
        "weights": {"error_percent": 0.5, "worst_channel": 3},
        "bias": {"max_steps": 1000.0},
        "only_quantized": judged,
        "only_float": {**judged, "noise_ratio": 1 - share / 100},
        "not_measured": "",
        "noise_share_percent": share,
        "suspicions": [],
        **fields,
    }


def _document(*layers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "recipe": "tiny",
        "samples": 32,
        "classifier": True,
        "full": {"noise_ratio": 1.0, "sqnr_db": 17.5, "agreement_loss_points": 6.25},
        "seconds": 90.0,
        "command": "edgefuse blame tiny.yaml",
        "layers": list(layers),
        "moves": ["PAD#7"],
        **fields,
    }


LAYERS = [_layer(place, 40.0 - 2 * place) for place in range(20)]


def test_the_table_shows_the_costliest_and_the_suspicious() -> None:
    last = _layer(19, 0.1, suspicions=["range 0..1.2 against values 0..6: 12% saturated"])
    text = blame_table(_document(*LAYERS[:19], last), paths=["blame.html"])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[1] for line in lines[1:13]] == [f"CONV_2D#{k}" for k in range(12)]
    assert lines[13].split()[1] == "CONV_2D#19" and lines[14] == "… and 7 more"
    assert lines[1].split() == [
        *("features.0.conv", "CONV_2D#0", "40.0%", "40.0", "35.0", "30.0", "3.1", "30.0", "3.1")
    ]
    assert "CONV_2D#19 (features.19.conv): range 0..1.2 against values" in text
    assert "not judged: PAD#7: only moves values" in text
    assert "int8 17.5 dB, 6.2 points of agreement lost; 32 samples, 90.0 s -> blame.html" in text


def test_ascii_streams_get_ascii() -> None:
    text = blame_table(_document(*LAYERS), encoding="ascii")
    assert text.isascii() and "... and 8 more" in text


def test_the_page_is_one_page_and_nothing_acts() -> None:
    bad = _layer(0, 50.0, modules=[EVIL], operator=EVIL, suspicions=[EVIL], tensor=EVIL)
    page = render(_document(bad, *LAYERS[1:], recipe=EVIL, warnings=[EVIL]))
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert EVIL in " ".join(Outline(page).words)
    for title in ("Suspicions", "What each layer costs", "Along the network", "Ranges"):
        assert f"<h2>{title}</h2>" in page
    assert page.count('role="img" aria-label="') == 2


def test_the_charts_say_what_the_rows_say() -> None:
    document = _document(*LAYERS[:3])
    chart = cost_chart(document)
    assert chart.count('class="span"') == chart.count('class="was"') == 3
    assert "features.0.conv with 40.0%" in chart and "! " not in chart.partition("</svg>")[0]
    line = network_chart(document)
    assert line.count("<circle") == 3 and "features.2.conv: alone 42.0 dB" in line
    assert "the least is 33.0 dB, the last 33.0 dB" in line
    marked = _document(_layer(0, 9.0, suspicions=["odd"]), LAYERS[1])
    assert "! features.0.conv" in cost_chart(marked) and ">!</text>" in network_chart(marked)


@pytest.mark.parametrize(
    "document",
    [
        {},
        _document(),
        _document(_layer(0, 0.0, only_quantized=None, only_float=None, not_measured="it cannot")),
        _document(_layer(0, float("nan"), alone={}, accumulated={}, range={}, weights=None)),
        _document(LAYERS[0], full={"noise_ratio": 0.0, "sqnr_db": None}, classifier=False),
    ],
)
def test_any_part_may_be_missing(document: dict[str, Any]) -> None:
    assert blame_table(document).endswith("\n")
    page = render(document)
    assert page.startswith("<!doctype html>") and "None</td>" not in page
    if document.get("layers") and document["layers"][0].get("not_measured"):
        assert "it cannot" in page and DASH in page
