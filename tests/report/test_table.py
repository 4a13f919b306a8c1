"""The plain-text verdict: complete, narrow, and safe for any terminal."""

from __future__ import annotations

import pytest

from edgefuse.report import table, units
from edgefuse.report.table import verdict_table

from .sample import early, failing, passing


def test_passing_run():
    text = verdict_table(passing())
    assert "convert   ran     21.1 s  65 operators, NHWC" in text
    assert "accuracy  agreement_percent       91.20%       88.00%       ≥ 85.00%  pass" in text
    assert "52 Conv+BatchNorm folded, 35 Conv+ReLU6 fused; 87 launches and 19.95 MiB of" in text
    assert "11 candidates refused (see report.html)" in " ".join(text.split())
    last = "pass: mobilenet_v2 on host -> build/mobilenet_v2/mobilenet_v2.bundle"
    assert text.splitlines()[-1] == last


def test_failing_run():
    text = verdict_table(failing(), paths=["build/mobilenet_v2/report.html"])
    assert "GateFailed: configs/mobilenet_v2.yaml:41: accuracy" in text
    assert "hint: Look at the fusion contract first" in text
    assert "inconclusive  ~1,100 samples\n" in text
    assert text.splitlines()[-1].startswith("fail: mobilenet_v2")
    assert text.endswith("report.html\n")


def test_early_end_and_empty_document():
    assert "SourceError: No such weights." in verdict_table(early())
    assert verdict_table({}) == "incomplete: unnamed recipe\n"


@pytest.mark.parametrize("key", sorted(passing()))
def test_any_part_may_be_missing(key):
    assert verdict_table({k: v for k, v in passing().items() if k != key})
    assert verdict_table(passing() | {key: None})


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_lines_fit(width, encoding):
    report = failing()
    report["stages"][0]["summary"] = "a very long summary " * 20
    report["stages"][1]["summary"] = "模型" * 80
    report["warnings"].append("x" * 300)
    report["description"] = report["recipe"] = "mobilenet" * 30
    lines = verdict_table(report, width, encoding=encoding, paths=["p" * 200]).splitlines()
    assert max(map(table._cells, lines)) <= min(width, 100)
    assert any("…" in line or "..." in line for line in lines)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "ANSI_X3.4-1968"])
def test_other_encodings_get_ascii(encoding):
    report = passing() | {"recipe": "modèle 模型"}
    text = verdict_table(report, encoding=encoding)
    assert text.isascii()
    assert ">= 85.00%" in text
    assert "0.41x" in text


def test_colour_only_on_request_and_control_codes_never():
    report = failing() | {"recipe": "a\x1b[31mb\nc"}
    assert "\x1b" not in verdict_table(report)
    coloured = verdict_table(report, colour=True)
    assert "\x1b[31mfail" in coloured
    assert "\x1b[31mb" not in coloured
    assert "\x1b[32mpass" in coloured


def test_equal_documents_give_equal_tables():
    assert verdict_table(failing()) == verdict_table(failing())


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("fold_conv_batchnorm", "Conv+BatchNorm folded"),
        ("fold_conv_batch_norm", "Conv+BatchNorm folded"),
        ("fuse_conv_relu6", "Conv+ReLU6 fused"),
        ("remove_identity", "identity removed"),
        ("replace_hard_swish", "hard swish replaced"),
        ("something", "something"),
    ],
)
def test_pass_phrases(name, phrase):
    assert table.pass_phrase(name) == phrase


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (512, "bytes", "512 bytes"),
        (3_790_112, "bytes", "3.61 MiB"),
        (91.2, "%", "91.20%"),
        (24.31, "dB", "24.31 dB"),
        (0.0000024, "", "2.4e-06"),
        (1_200, "samples", "1,200 samples"),
        (None, "%", "\N{EN DASH}"),
        (float("nan"), "%", "nan"),
    ],
)
def test_quantities(value, unit, shown):
    assert units.quantity(value, unit) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.04 s"), (48.6, "48.6 s"), (185, "3 min 05 s"), (7_320, "2 h 02 min")],
)
def test_seconds(seconds, shown):
    assert units.seconds_text(seconds) == shown
