"""A goal in a recipe, from the samples to the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases.pipeline import Run, run, samples, write_recipe

from edgefuse.tflite.read import read_model
from quant.weights.networks import Net


def _network(middle: str = "") -> bytes:
    """x [1, 6, 6, 4] -> conv -> conv -> fully connected -> scores [1, 5]; ``middle`` in between."""
    net = Net(1)
    x = net.tensor("x", (1, 6, 6, 4))
    held = net.conv("first", x, (1, 6, 6, 8))
    if middle:
        held = net.simple(middle, "middle", (held,), (1, 6, 6, 8), options=("L2NormOptions", {}))
    held = net.conv("second", held, (1, 6, 6, 8), activation="NONE")
    return net.finish({"x": x}, {"scores": net.dense("scores", net.mean("pooled", held), 5)})


def _run(
    folder: Path, goal: dict[str, float], *, data: bytes = b"", labels: Any = None, **sections: Any
) -> Run:
    (folder / "given.tflite").write_bytes(data or _network())
    model = {
        "tflite": {"path": "given.tflite"},
        "inputs": [{"name": "x", "shape": [1, 6, 6, 4]}],
    }
    shapes = {"x": (6, 6, 4)}
    path = write_recipe(
        folder, "pursued", model, samples(shapes, 24, 1), samples(shapes, 12, 2), **sections
    )
    more = {} if labels is None else {"labels": np.asarray(labels)}
    np.savez(folder / "validation.npz", **samples(shapes, 20, 3), **more)
    text = path.read_text().replace("data:\n", "data:\n  validation: {arrays: validation.npz}\n")
    told = ", ".join(f"{key}: {value}" for key, value in goal.items())
    path.write_text(text + f"quantize:\n  input: float32\n  output: float32\n  goal: {{{told}}}\n")
    return run(path, until="quantize")


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "store"))


def _evidence(made: Run) -> dict[str, Any]:
    found: dict[str, Any] = made.report["quantisation"]["search"]
    return found


def test_a_goal_out_of_reach_ends_with_the_best_and_who_is_to_blame(tmp_path: Path) -> None:
    made = _run(tmp_path, {"min_sqnr_db": 90})
    assert made.report["exit_code"] == 1
    assert "candidates reaches the goal (min_sqnr_db 90)" in made.error
    assert "the layers with the largest shares of the noise" in made.error
    assert "check.permit_float allows none" in made.error
    best = next(made.out.rglob("best.tflite"))
    assert read_model(best).operators
    found = json.loads(best.with_name("search.json").read_text())
    assert not found["reached"] and len(found["trials"]) >= 8
    assert found["blamed"][0]["share_percent"] >= found["blamed"][1]["share_percent"]
    top = max(found["trials"], key=lambda trial: trial["score"]["sqnr_db"])
    assert found["chosen"] == top["technique"]


def test_a_goal_that_a_float_layer_reaches_needs_its_permission(tmp_path: Path) -> None:
    permitted = {"permit_float": ["CONV_2D", "FULLY_CONNECTED", "MEAN"]}
    made = _run(tmp_path, {"min_sqnr_db": 47}, check=permitted)
    assert made.report["exit_code"] == 0, made.error
    found = _evidence(made)
    assert found["reached"] and found["float_layers"]
    assert all(t["latency_ratio"] for t in found["trials"] if t["float_layers"])
    assert read_model(made.int8_file).float_operators()
    # Every layer but those that need not be.
    assert len(found["float_layers"]) >= 3


def test_an_easy_goal_costs_one_candidate(tmp_path: Path) -> None:
    made = _run(tmp_path, {"min_agreement": 0.5})
    assert made.report["exit_code"] == 0, made.error
    found = _evidence(made)
    assert len(found["trials"]) == 1 and found["chosen"] == "the recipe's own options"


def test_an_operator_that_torch_does_not_have_leaves_the_other_techniques(tmp_path: Path) -> None:
    made = _run(tmp_path, {"min_sqnr_db": 90}, data=_network("L2_NORMALIZATION"))
    assert made.report["exit_code"] == 1, made.error
    found = json.loads(next(made.out.rglob("search.json")).read_text())
    assert any("L2_NORMALIZATION" in text for text in found["refused"])
    assert {trial["technique"] for trial in found["trials"]} == {"the recipe's own options"}


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    made = _run(tmp_path, {"max_drop_points": 1}, labels=[5] * 20)
    assert made.report["exit_code"] == 3
    assert "data.validation: label 5" in made.error


def test_a_drop_without_labels_is_refused(tmp_path: Path) -> None:
    made = _run(tmp_path, {"max_drop_points": 1})
    assert made.report["exit_code"] in (2, 3)
    assert "labels" in made.error
