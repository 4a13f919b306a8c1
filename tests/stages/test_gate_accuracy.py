"""The accuracy gate: its figures on arrays, and a whole judgement of two hand-written files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from tflite.tiny import float_file, int8_file, weights

from edgefuse.artifact import Signature, TensorSpec
from edgefuse.data import Entry, Sample, SampleSet
from edgefuse.errors import DataError
from edgefuse.graph.qdq import take_out
from edgefuse.recipe import AccuracyGate
from edgefuse.stages.gate_accuracy import _against_qdq, _least_sqnr, run
from edgefuse.target import load_target
from edgefuse.tflite.read import read_model, signature_of
from edgefuse.tflite.runtime import open_model

GROUPS = [f"picture {k}" for k in range(40)]
RESAMPLING = {"resamples": 200, "seed": 0}


def test_a_ruined_second_output_is_not_hidden_by_the_first() -> None:
    random = np.random.default_rng(0)
    good, ruined = random.normal(size=(40, 10)), random.normal(size=(40, 3))
    near = good + random.normal(size=good.shape) * 1e-3
    first = _least_sqnr([good], [near], GROUPS, RESAMPLING)
    both = _least_sqnr([good, ruined], [near, -ruined], GROUPS, RESAMPLING)
    assert first is not None and both is not None
    assert first[0].point > 50 and first[1].bound <= first[0].point
    assert both[0].point < 0 and both[1].bound <= both[0].point


def test_equal_outputs_have_no_noise_to_judge() -> None:
    zeros, same = np.zeros((40, 2)), np.ones((40, 2))
    assert _least_sqnr([zeros, same], [zeros, same], GROUPS, RESAMPLING) is None
    assert _least_sqnr([zeros, same], [zeros, same + 0.1], GROUPS, RESAMPLING) is not None


def _samples(labels: list[int], feeds: list[dict[str, Any]]) -> SampleSet:
    entries = tuple(Entry(f"p{k}", f"p{k}", label) for k, label in enumerate(labels))

    def stream(_: Any) -> Iterator[Sample]:
        for entry, feed in zip(entries, feeds):
            yield Sample(feed, entry.label, entry.group, entry.name)

    return SampleSet("d", entries, (), {}, "folder", stream)


def _judge(folder: Path, shift: int = 0, **gate: Any) -> tuple[dict[str, Any], list[str]]:
    """60 samples labelled by the float model, every tenth one wrongly, and two models."""
    files = {"convert": folder / "float.tflite", "quantize": folder / "int8.tflite"}
    files["convert"].write_bytes(float_file(weights()))
    files["quantize"].write_bytes(int8_file(files["convert"]))
    draw = np.random.default_rng(5)
    shape = (1, 8, 8, 3)
    feeds = [{"picture": draw.standard_normal(shape).astype(np.float32)} for _ in range(60)]
    model = open_model(files["convert"])
    labels = [int(model.run_float(feed)["logits"].argmax()) for feed in feeds]
    labels = [(label + (k % 10 == 0)) % 5 + shift for k, label in enumerate(labels)]
    warnings: list[str] = []
    work = folder / f"work{len(list(folder.glob('work*')))}"
    work.mkdir()
    context: Any = SimpleNamespace(
        samples=lambda role: _samples(labels, feeds),
        roles=frozenset(("calibration", "evaluation")),
        downloads=None,
        progress=lambda *_: None,
        warn=warnings.append,
        target=load_target("host").model_copy(update={"kernels": "builtin"}),
        work=work,
        log=folder / "log",
        file_name="accuracy.json",
    )
    one_input = SimpleNamespace(name="picture", shape=shape)
    recipe: Any = SimpleNamespace(
        gates=SimpleNamespace(accuracy=AccuracyGate(**gate)),
        model=SimpleNamespace(batch=1, source="tflite", inputs=[one_input]),
        preprocess=None,
        seed=0,
    )
    inputs: Any = {
        name: SimpleNamespace(path=path, signature=signature_of(read_model(path)))
        for name, path in files.items()
    }
    return run(inputs, recipe, context).evidence, warnings


def test_an_undecided_drop_says_what_was_lost_and_how_many_samples_would_do(
    tmp_path: Path,
) -> None:
    found, warnings = _judge(tmp_path, max_drop_points=3.0)
    figures = found["figures"]
    drop = 100 * (figures["lost"] - figures["gained"]) / 60
    assert figures["drop_points"] == pytest.approx(drop, abs=1e-3)
    low, high = figures["drop_interval_points"]
    assert low <= drop < high
    assert 0 < figures["mcnemar_p"] <= 1
    assert figures["top1_float_percent"] == 90.0
    (check,) = found["checks"]
    assert check["verdict"] == found["verdict"] == "inconclusive"
    assert 60 < check["needed_samples"] < 1000
    assert f"needs about {check['needed_samples']:,} samples" in found["summary"]
    assert not warnings


def test_a_decided_check_needs_nothing(tmp_path: Path) -> None:
    found, _ = _judge(tmp_path, max_drop_points=60.0, min_sqnr_db=200.0)
    answers = {check["name"]: check for check in found["checks"]}
    assert answers["drop"]["verdict"] == "pass" and answers["sqnr"]["verdict"] == "fail"
    assert {check["needed_samples"] for check in found["checks"]} == {None}


def test_labels_beyond_the_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.evaluation: label \d+ .* none of the 5 classes"):
        _judge(tmp_path, shift=2, max_drop_points=8.0)
    found, warnings = _judge(tmp_path, shift=2, min_sqnr_db=1.0)
    assert found["verdict"] == "pass" and "drop_points" not in found["figures"]
    assert "top-1 is not measured" in warnings[0]


def test_a_qdq_model_is_compared_with_itself_too(tmp_path: Path) -> None:
    """Three channels, channels last in the int8 file; the QDQ model rounds to quarters and cuts."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,2,2] x) => (float[1,3,2,2] y) '
    pair = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d)"
    proto = onnx.parser.parse_model(f"{text} <float s = {{0.25}}, int8 z = {{0}}> {{ {pair} }}")
    taken = take_out(proto)
    assert taken is not None
    onnx.save(taken.proto, tmp_path / "m.onnx")
    draw = np.random.default_rng(0)
    feeds = [{"x": draw.standard_normal((1, 3, 2, 2)).astype(np.float32)} for _ in range(6)]
    exact = np.concatenate([np.maximum(np.rint(f["x"] * 4) / 4, 0) for f in feeds])
    last = np.moveaxis(exact, 1, -1)
    spec = TensorSpec("y", (1, 2, 2, 3), "float32")
    inputs: Any = {
        "export": SimpleNamespace(path=tmp_path / "m.onnx"),
        "convert": SimpleNamespace(signature=Signature((), (spec,))),
    }
    context: Any = SimpleNamespace(
        samples=lambda role: _samples([0] * 6, feeds), downloads=None, progress=lambda *_: None
    )
    recipe: Any = SimpleNamespace(model=SimpleNamespace(batch=1))

    def against(rows: Any) -> dict[str, Any]:
        return _against_qdq(inputs, recipe, context, [rows.reshape(6, -1)])

    assert against(last) == {"agreement_percent": 100.0, "sqnr_db": "exact"}
    assert against(last * 0.9) == {"agreement_percent": 100.0, "sqnr_db": 20.0}
    other = np.where(np.arange(6).reshape(6, 1, 1, 1) < 3, last, last.max() - last)
    assert against(other)["agreement_percent"] == 50.0
    onnx.save(proto, tmp_path / "m.onnx")
    assert against(last) == {}
    del inputs["export"]
    assert against(last) == {}
