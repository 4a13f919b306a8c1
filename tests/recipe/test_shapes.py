"""Shape buckets: what they mean, and every one that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from fake_stages import recipe
from pydantic import ValidationError

from edgefuse.recipe import Recipe
from edgefuse.recipe.shapes import Bucket, resolve


def made(buckets: Any, *shapes: list[Any]) -> Recipe:
    inputs = [{"name": f"in{k}", "shape": shape} for k, shape in enumerate(shapes or ([1, 2],))]
    model = {"onnx": {"path": "model.onnx"}, "inputs": inputs}
    return recipe(model=model, shapes={"buckets": buckets})


def resolved(found: Recipe) -> tuple[Bucket, ...]:
    assert found.shapes is not None
    return resolve(found.shapes.buckets, found.model.inputs)


def test_a_number_is_the_batch_of_every_input() -> None:
    found = resolved(made([1, 64], [1, 3, 8, 8], [1, 5]))
    assert [b.label for b in found] == ["batch 1", "batch 64"]
    assert found[1].as_mapping() == {"in0": (64, 3, 8, 8), "in1": (64, 5)}


def test_a_mapping_gives_shapes_and_leaves_the_others() -> None:
    found = resolved(made([{"in1": [1, 7]}, 1, {"in0": [2, 4], "in1": [2, 5]}], [1, 2], [1, 5]))
    assert found[0] == Bucket("in1 1x7", (("in0", (1, 2)), ("in1", (1, 7))))
    assert found[2].label == "in0 2x4, in1 2x5"


def test_without_shapes_nothing_is_planned() -> None:
    assert recipe().shapes is None


@pytest.mark.parametrize(
    ("buckets", "shapes", "said"),
    [
        ([], [[1, 2]], "at least 1 item"),
        ([0, 1], [[1, 2]], "a bucket is a batch greater than 0"),
        ([1, -3], [[1, 2]], "a bucket is a batch greater than 0"),
        ([1, True], [[1, 2]], "a bucket is a batch greater than 0"),
        ([1, "N"], [[1, 2]], "not 'N'"),
        ([1, 2.5], [[1, 2]], "not 2.5"),
        ([1, {}], [[1, 2]], "a bucket is a batch greater than 0"),
        ([1, {"in0": [2, 0]}], [[1, 2]], "the shape of 'in0' must be positive sizes"),
        ([1, {"in0": ["N", 2]}], [[1, 2]], "the shape of 'in0' must be positive sizes"),
        ([1, {"in0": 4}], [[1, 2]], "the shape of 'in0' must be positive sizes"),
        ([1, 1], [[1, 2]], "'batch 1' and 'batch 1' are the same shapes"),
        ([1, {"in0": [1, 2]}], [[1, 2]], "'batch 1' and 'in0 1x2' are the same shapes"),
        ([2, 4], [[1, 2]], "none has the shapes of model.inputs (in0 [1, 2])"),
        ([2, 4], [[1, 2]], "add 1 to the buckets"),
        ([{"in0": [2, 2]}], [[1, 2], [3, 2]], "add {in0: [1, 2], in1: [3, 2]} to the buckets"),
        ([1, {"in9": [1, 2]}], [[1, 2]], "no input is called 'in9'; did you mean in0?"),
        ([1, {"picture": [1, 2]}], [[1, 2]], "no input is called 'picture' (inputs: in0)"),
        ([1, {"in0": [1, 2, 3]}], [[1, 2]], "'in0' has 2 axes in model.inputs, and 3 here"),
        ([1, 2], [[1, 2], [3, 2]], "that of 'in1' is 3, of 'in0' 1: give the shapes by input"),
    ],
)
def test_refused(buckets: Any, shapes: list[list[int]], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        made(buckets, *shapes)
    assert said in str(caught.value)


@pytest.mark.parametrize("size", ["N", "batch", 0, -1, None])
def test_a_size_that_is_not_static_names_the_remedy(size: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        made([1], [size, 2])
    assert "must be an integer greater than 0" in str(caught.value)
    assert "shapes: {buckets: [1, 64]}" in str(caught.value)


def test_a_tflite_file_has_one_shape() -> None:
    model = {"tflite": {"path": "m.tflite"}, "inputs": [{"name": "x", "shape": [1, 2]}]}
    with pytest.raises(ValidationError, match="has one shape"):
        recipe(model=model, shapes={"buckets": [1]})
