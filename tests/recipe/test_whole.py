"""The recipe's own rules: what fits together, what a gate needs, what may be released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_stages import recipe
from pydantic import ValidationError

from edgefuse.recipe import (
    AccuracyGate,
    Blob,
    LatencyGate,
    MemoryGate,
    Model,
    Preprocess,
    Recipe,
    Samples,
    Split,
    TorchModel,
)
from edgefuse.recipe.fusion import Contract, Fuse
from edgefuse.recipe.quantize import Quantize
from edgefuse.target import list_targets, load_target
from edgefuse.yaml_file import load

CONFIGS = Path(__file__).parents[2] / "configs"
INPUTS = [{"name": "x", "shape": [1, 2]}]
TORCH = {"callable": "m:f", "weights": "random"}
GATES = {
    "accuracy": {"min_sqnr_db": 10},
    "memory": {"max_arena_bytes": 1},
    "latency": {"max_ratio_to_float": 1},
}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_recipe_is_valid(path: Path) -> None:
    found = load(path, Recipe)
    assert found.name == path.stem and found.gates.accuracy is not None
    assert found.target in list_targets()
    assert found.fuse.skip == () and found.check.permit_float == ()


def test_every_shipped_target_is_valid() -> None:
    assert {"host", "host-tflite-runtime"} <= set(list_targets())
    for name, path in list_targets().items():
        assert load_target(str(path)).name == name


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(ValidationError):
        recipe().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (Model, {"inputs": INPUTS}, "exactly one of torch, onnx, tflite"),
        (Model, {"inputs": INPUTS, "torch": TORCH}, "needs the names of its outputs"),
        (Model, {"inputs": INPUTS, "torch": TORCH, "outputs": ["x"]}, "names must differ"),
        (Model, {"inputs": [], "onnx": {"path": "m"}}, "at least 1"),
        (Model, {"inputs": [{"name": "x", "shape": [1.5]}], "onnx": {"path": "m"}}, "integer"),
        (Model, {"inputs": [{"name": "x", "shape": [0]}], "onnx": {"path": "m"}}, "greater than 0"),
        (TorchModel, {"callable": "m", "weights": "random"}, "pattern"),
        (TorchModel, {"callable": "m:f"}, "Field required"),
        (Blob, {"file": "f", "sha256": "a" * 64, "mirrors": ["http://x/y"]}, "a mirror is https"),
        (Blob, {"file": "f", "sha256": "a" * 64, "mirrors": ["wheel:x#y"]}, "a mirror is https"),
        (Blob, {"file": "f", "sha256": "a" * 64, "mirrors": ["wheel:x==1"]}, "a mirror is https"),
        (Blob, {"file": "f", "sha256": "A" * 64, "mirrors": ["file:x"]}, "pattern"),
        (Preprocess, {"crop": [8, 8], "std": [1, 0, 1]}, "must be positive"),
        (Preprocess, {"crop": [8]}, "crop"),
        (Preprocess, {"crop": [8, 8], "scale": "1/0"}, "division by zero"),
        (Preprocess, {"crop": [8, 8], "mean": [float("inf"), 0, 0]}, "finite"),
        (Samples, {}, "exactly one of manifest, folder, arrays"),
        (Samples, {"folder": "a", "arrays": "b"}, "exactly one"),
        (Samples, {"manifest": "a", "split": {"first": 1}}, "split needs a folder"),
        (Samples, {"arrays": "a", "crops": {"count": 1}}, "crops need pictures"),
        (Split, {}, "give first, after, or both"),
        (AccuracyGate, {}, "a gate without a threshold"),
        (AccuracyGate, {"resamples": 500}, "a gate without a threshold"),
        (AccuracyGate, {"min_agreement_percent": 101}, "less than or equal to 100"),
        (MemoryGate, {}, "Field required"),
        (LatencyGate, {}, "a gate without a threshold"),
        (LatencyGate, {"max_ratio_without_int8_dot": 2, "max_p90_ms": 3}, "needs max_ratio"),
        (Fuse, {"skip": ["fold_conv_batchnorm"]}, "did you mean fold_conv_batch_norm?"),
        (
            Contract,
            {"fused": {"nothing_near": 1}},
            "no pass is called 'nothing_near' (passes",
        ),
        (Contract, {"fused": {"fold_constants": 0}}, "greater than 0"),
        (Contract, {"operators": {"conv_2d": 1}}, "pattern"),
        (Contract, {"operators": {"CONV_2D": -1}}, "greater than or equal to 0"),
        (Contract, {"max_float_operators": -1}, "greater than or equal to 0"),
    ],
)
def test_refused(kind: Any, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)
    assert said in str(caught.value)


def test_numbers_may_be_fractions() -> None:
    assert Preprocess.model_validate({"crop": [8, 8], "scale": "1/255"}).scale == 1 / 255
    assert Preprocess.model_validate({"crop": [8, 8], "scale": " 2 / 4 "}).scale == 0.5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"goal": {"max_drop_points": 100}}, "reached by anything"),
        ({"goal": {"max_drop_points": -1}}, "better than float"),
        ({"goal": {"min_agreement": 50}}, "write 0.5 for 50%"),
        ({"goal": {"min_agreement": 200}}, "less than or equal to 1"),
        ({"goal": {"min_sqnr_db": 50}, "output": "uint8"}, "an output of 8 bits"),
        ({"goal": {"min_sqnr_db": 20}, "head": "classes"}, "head: values"),
    ],
)
def test_goals_that_contradict_themselves(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Quantize.model_validate(fields)
    assert said in str(caught.value)


def test_goals_that_can_be_met() -> None:
    for fields in (
        {"goal": {"min_agreement": 1}},
        {"goal": {"min_sqnr_db": 90}, "output": "float32"},
        {"goal": {"min_sqnr_db": 45}},
        {"goal": {"max_drop_points": 0}, "head": "classes"},
    ):
        assert Quantize.model_validate(fields).goal


def test_a_goal_reaches_the_gate() -> None:
    data = {role: {"arrays": f"{role}.npz"} for role in ("calibration", "evaluation", "validation")}
    model = {"onnx": {"path": "m.onnx"}, "inputs": INPUTS}

    def judged(goal: dict[str, Any], gate: dict[str, Any]) -> Recipe:
        sections = {"quantize": {"goal": goal}, "gates": {"accuracy": gate}}
        return Recipe.model_validate(
            {"schema": 1, "name": "n", "model": model, "data": data, **sections}
        )

    assert judged({"min_agreement": 0.97}, {"min_agreement_percent": 97})
    assert judged({"max_drop_points": 0.3}, {"max_drop_points": 4, "min_sqnr_db": 30})
    with pytest.raises(ValidationError, match="min_agreement is met at 90"):
        judged({"min_agreement": 0.9}, {"min_agreement_percent": 95})
    with pytest.raises(ValidationError, match="min_sqnr_db is met at 10"):
        judged({"min_sqnr_db": 10}, {"min_sqnr_db": 12})


def test_release_needs_weights_and_every_gate() -> None:
    assert recipe(release=True, gates=GATES).release
    for missing in GATES:
        with pytest.raises(ValidationError, match="all gates"):
            recipe(release=True, gates={k: v for k, v in GATES.items() if k != missing})
    model = {"torch": TORCH, "inputs": INPUTS, "outputs": ["y"]}
    assert recipe(model=model).model.random_weights
    with pytest.raises(ValidationError, match="random weights can never be released"):
        recipe(release=True, gates=GATES, model=model)


def test_pictures_need_a_contract() -> None:
    data = {"calibration": {"folder": "a"}, "evaluation": {"arrays": "b"}}
    with pytest.raises(ValidationError, match="picture data needs a preprocess section"):
        recipe(data=data)
    assert recipe(data=data, preprocess={"crop": [8, 8]}).preprocess


def test_the_schema_describes_every_field() -> None:
    schema = Recipe.model_json_schema(by_alias=True)
    assert "schema" in schema["properties"] and schema["additionalProperties"] is False
    assert schema["$defs"]["Blob"]["properties"]["mirrors"]["description"]
    for name, section in schema["$defs"].items():
        assert section.get("description"), f"{name} has no docstring"
