"""The shipped recipes, for real: weights and pictures from a registry, gates, bundle, report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgefuse.recipe import Recipe
from edgefuse.tflite.read import read_model
from edgefuse.yaml_file import load

CONFIGS = Path(__file__).parent.parent / "configs"
# XNNPACK has no int8 HARD_SWISH.
SLOWER_IN_INT8 = {"mobilenet_v3"}


def _run(recipe: str, out: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "edgefuse.cli", "run", str(CONFIGS / recipe)]
    done = subprocess.run([*command, "--out", str(out), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def test_mobilenet_from_registries_alone(tmp_path: Path) -> None:
    report = _run("mobilenet.yaml", tmp_path)
    assert report["verdict"] == "pass"
    assert {gate["name"] for gate in report["gates"]} == {"accuracy", "latency", "memory"}
    fired = {row["name"]: row["fired"] for row in report["fusion"]["passes"]}
    assert fired["fold_conv_batch_norm"] == 52
    assert fired["fuse_conv_activation"] == 35
    assert fired["fuse_residual_add"] == 10
    assert report["fusion"]["operators"] == {"before": 151, "after": 54}
    peak = report["fusion"]["peak_bytes"]
    assert peak["before"] >= 1.6 * peak["after"] > 0
    model = read_model(tmp_path / "mobilenet_full_integer_quant.tflite")
    counts = model.operator_counts()
    assert (counts["CONV_2D"], counts["DEPTHWISE_CONV_2D"]) == (35, 17)
    assert (sum(counts.values()), counts["PAD"]) == (69, 5)
    assert "TRANSPOSE" not in counts and not model.float_operators()
    assert sum(op.activation == "RELU6" for op in model.operators) == 35
    assert {t.dtype for t in model.tensors} <= {"int8", "int32"}
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["weights"] == "given"
    assert len((tmp_path / "bundle" / "labels.txt").read_text().splitlines()) == 1000
    again = _run("mobilenet.yaml", tmp_path)
    assert {stage["status"] for stage in again["stages"]} == {"reused"}
    assert again["artifacts"] == report["artifacts"]
    assert again["warnings"] == report["warnings"]


def test_mobilenet_on_a_folder_of_labelled_pictures(
    tmp_path: Path, require_data: Callable[[str], Path]
) -> None:
    require_data("imagenet-sample/labels.csv")
    report = _run("mobilenet-imagenet.yaml", tmp_path, "--until", "gate_accuracy")
    accuracy = next(gate for gate in report["gates"] if gate["name"] == "accuracy")
    assert accuracy["figures"]["samples"] == 400
    assert accuracy["figures"]["agreement_percent"] >= 93
    assert accuracy["figures"]["drop_points"] <= 2.5


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_decidable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "EDGEFUSE_DATA", "/nowhere")
    recipe = load(path, Recipe)
    assert recipe.gates.accuracy and recipe.gates.memory
    if recipe.target == "tflm":
        assert recipe.gates.latency is None and not recipe.release, "nothing there tells the time"
        return
    assert recipe.gates.latency
    ratio = recipe.gates.latency.max_ratio_to_float
    assert ratio is not None and ratio <= (2 if recipe.name in SLOWER_IN_INT8 else 0.8)
    assert recipe.gates.latency.max_p90_ms is None
