"""The latency gate: which of its two thresholds judges, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tflite.tiny import Builder, float_file, weights

from edgefuse.devices.device import Cost
from edgefuse.devices.kinds.host import Host
from edgefuse.errors import RecipeError
from edgefuse.recipe import LatencyGate
from edgefuse.stages.gate_latency import (
    _operators,
    _require_float_where_asked,
    _require_same_model,
    _suspects,
    run,
)
from edgefuse.target import load_target


@pytest.mark.parametrize(
    ("dot", "limit", "told"),
    [(True, 0.8, ""), (False, 1.25, "has no int8 dot product"), (None, 0.8, "is unknown")],
)
def test_only_a_cpu_known_to_lack_it_gets_the_other_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dot: bool | None, limit: float, told: str
) -> None:
    rows = ((1.0,) * 20,) * 3
    conditions = {"int8_dot_product": dot}
    monkeypatch.setattr(
        Host,
        "cost",
        lambda _, files, feeds, **__: Cost("ms", "measured", (rows,) * len(files), (), conditions),
    )
    gate = LatencyGate(max_ratio_to_float=0.8, max_ratio_without_int8_dot=1.25)
    recipe: Any = SimpleNamespace(gates=SimpleNamespace(latency=gate), seed=0)
    warnings: list[str] = []
    context: Any = SimpleNamespace(
        work=tmp_path,
        file_name="latency.json",
        log=tmp_path / "log",
        progress=lambda *_: None,
        warn=warnings.append,
        target=load_target("host"),
    )
    model: Any = SimpleNamespace(path=tmp_path / "m")
    model.path.write_bytes(float_file(weights()))
    evidence = run({"convert": model, "quantize": model}, recipe, context).evidence
    assert evidence["checks"][0]["threshold"] == limit
    assert evidence["figures"]["int8_dot_product"] is dot
    assert [told in w for w in warnings] == ([True] if told else [])


def test_case_32_the_operators_that_cost_int8_its_time_are_named(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 4)), b.tensor("y", (1, 4))
    q = b.tensor("q", (1, 4), "int8", scales=[0.1])
    inner, back = b.tensor("inner", (1, 4)), b.tensor("back", (1, 4), "int8", scales=[0.1])
    b.op("QUANTIZE", (x,), (q,))
    b.op("DEQUANTIZE", (q,), (inner,))
    b.op("ADD", (inner, inner), (y,))
    b.op("QUANTIZE", (y,), (back,))
    paths = tmp_path / "float.tflite", tmp_path / "int8.tflite"
    paths[1].write_bytes(b.finish({"x": x}, {"back": back}))
    b = Builder()
    x, y = b.tensor("x", (1, 4)), b.tensor("y", (1, 4))
    b.op("ADD", (x, x), (y,))
    paths[0].write_bytes(b.finish({"x": x}, {"y": y}))
    found = _operators(*paths)
    assert found["added"] == {"DEQUANTIZE": 1, "QUANTIZE": 2}
    assert "ADD" in found["float"]
    told = _suspects(found)
    assert "1 DEQUANTIZE, 2 QUANTIZE which the float file has not" in told
    assert "1 ADD" in told and "stayed float" in told
    assert _suspects(_operators(paths[0], paths[0]) | {"float": {}}) == ""


def test_a_baseline_with_other_inputs_is_another_model(tmp_path: Path) -> None:
    files = {}
    for name, width in (("int8", 4), ("baseline", 5), ("same", 4)):
        b = Builder()
        x, y = b.tensor("x", (1, width)), b.tensor("y", (1, width))
        b.op("ADD", (x, x), (y,))
        files[name] = tmp_path / name
        files[name].write_bytes(b.finish({"x": x}, {"y": y}))
    with pytest.raises(RecipeError, match="another model: its inputs are x"):
        _require_same_model(files, tmp_path / "old.tar")
    _require_same_model({**files, "baseline": files["same"]}, tmp_path / "old.tar")


def test_an_npu_runs_no_float_model_to_compare_with() -> None:
    gate = LatencyGate(max_ratio_to_float=0.8)
    _require_float_where_asked(gate, load_target("host"))
    with pytest.raises(RecipeError, match="ethos-u55-128 runs no float model"):
        _require_float_where_asked(gate, load_target("ethos-u55-128"))
