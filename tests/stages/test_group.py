"""The stage of dynamic fusion, on a small recipe: its document, its key, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from edgefuse.commands.run import run_recipe
from edgefuse.errors import UsageError
from edgefuse.plan import Selection

FIGURES = {
    "launch_us": {"value": 1000, "source": "made up: launches are dear"},
    "bytes_per_s": {"value": 1e9, "source": "made up"},
    "flops_per_s": {"value": 1e9, "source": "made up"},
}


def write(folder: Path, buckets: list[Any], balance: Any = FIGURES) -> Path:
    """A depthwise convolution, a projection, and a Reshape that holds the batch."""
    text = (
        '<ir_version: 10, opset_import: ["": 18]> g (float[1,4,3,3] x) => (float[1,18] y)'
        "<float[4,1,1,1] d = {1,2,3,4}, float[2,4,1,1] p = {1,2,3,4,5,6,7,8}, int64[2] to = {1,18}>"
        "{ h = Conv <group=4> (x, d) a = Relu(h) c = Conv(a, p) y = Reshape(c, to) }"
    )
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    x = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    target = {"name": "board", "summary": "s", "transport": "local", "runtime": "litert"}
    if balance is not None:
        target["balance"] = balance
    (folder / "targets").mkdir(exist_ok=True)
    (folder / "targets" / "board.yaml").write_text(yaml.safe_dump(target))
    recipe = {
        "schema": 1,
        "name": "net",
        "target": "board",
        "model": {"onnx": {"path": "m.onnx"}, "inputs": [{"name": "x", "shape": [1, 4, 3, 3]}]},
        "data": {"calibration": {"arrays": "data.npz"}, "evaluation": {"arrays": "data.npz"}},
        "shapes": {"buckets": buckets},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report, and the stage's document."""
    selection = Selection(until="group")
    report, out = run_recipe(path, selection=selection, out=path.parent / "out", quiet=True)
    file = out / "net_kernels.json"
    return report, json.loads(file.read_text()) if file.is_file() else {}


def row_of(report: dict[str, Any]) -> dict[str, Any]:
    return next(stage for stage in report["stages"] if stage["name"] == "group")


def test_every_bucket_is_proven_planned_and_cached(folder: Path) -> None:
    path = write(folder, [1, 5])
    report, document = run(path)
    assert report["error"] is None, report["error"]
    assert document["balance"]["launch_s"] == 1e-3
    assert document["balance"]["sources"]["launch_us"].startswith("made up")
    one, five = document["buckets"]
    assert (one["bucket"], five["bucket"]) == ("batch 1", "batch 5")
    assert five["inputs"] == {"x": [5, 4, 3, 3]}
    assert len(five["kernels"]) == 1 and len(five["kernels"][0]) == 2
    assert five["unfused"]["launches"] == 3 and five["before"]["launches"] == 2
    assert five["after"]["launches"] == 1 and five["after"]["vector_flops"] > 0
    assert five["proof"]["batch_to_rows"]["max_relative_error"] < 1e-6
    assert five["proof"]["rebound"] and "batch_to_rows" not in one["proof"]
    assert "saves" in five["decisions"][0]["reason"]
    summary = "batch 1: 3 -> 2 -> 1 kernels; batch 5: 3 -> 2 -> 1 kernels"
    assert row_of(report)["summary"] == summary
    again, same = run(path)
    assert row_of(again)["status"] == "reused" and same == document


def test_another_balance_is_another_plan(folder: Path) -> None:
    run(write(folder, [1]))
    cheap = {**FIGURES, "launch_us": {"value": 1e-6, "source": "made up: launches are free"}}
    report, document = run(write(folder, [1], cheap))
    assert row_of(report)["status"] == "ran"
    assert document["balance"]["launch_s"] == pytest.approx(1e-12)
    # A new bucket is a new plan too; the stages before it are reused.
    report, document = run(write(folder, [1, 2], cheap))
    assert [s["status"] for s in report["stages"]] == ["reused", "reused", "ran"]
    assert len(document["buckets"]) == 2


def test_without_a_balance_the_buckets_are_proven_and_nothing_is_chosen(folder: Path) -> None:
    report, document = run(write(folder, [1, 2], None))
    assert report["error"] is None and document["balance"] is None
    assert any("the target has no balance" in text for text in report["warnings"])
    for bucket in document["buckets"]:
        assert bucket["decisions"] == [] and all(len(k) == 1 for k in bucket["kernels"])
    assert document["buckets"][1]["proof"]["batch_to_rows"]["samples"] == 2


def test_a_bucket_that_cannot_be_is_refused_with_its_place(folder: Path) -> None:
    path = write(folder, [1, {"x": [1, 4, 5, 5]}])
    report, document = run(path)
    assert document == {} and report["exit_code"] == 2
    error = report["error"]
    assert "Reshape" in error["message"] and "[1, 18]" in error["message"]
    assert "recipe.yaml" in error["where"] and "shapes.buckets.1" in error["where"]


def test_no_shapes_no_stage(folder: Path) -> None:
    path = write(folder, [1])
    path.write_text(path.read_text().split("shapes:")[0])
    with pytest.raises(UsageError, match="no such stage in this recipe"):
        run(path)
