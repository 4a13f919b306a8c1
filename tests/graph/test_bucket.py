"""Buckets that are proven, and every way in which one is refused."""

from __future__ import annotations

import onnx.parser
import pytest

from edgefuse.errors import ParityError, RecipeError
from edgefuse.graph.bucket import Proven, prove

HEAD = '<ir_version: 10, opset_import: ["": 18]> g '
PLAIN = (
    HEAD + "(float[1,4] x) => (float[1,2] y)<float[4,2] w = {1,2,3,4,5,6,7,8}>{ y = MatMul(x, w) }"
)


def proven(text: str, other: str = "", **shapes: tuple[int, ...]) -> Proven:
    models = [onnx.parser.parse_model(t) for t in (text, other or text)]
    return prove(*models, shapes, label="bucket", where="shapes.buckets.1")


def test_the_shipped_shape_needs_no_rows() -> None:
    found = proven(PLAIN, x=(1, 4))
    assert found.evidence["fused_to_unfused"]["max_relative_error"] == 0
    assert "batch_to_rows" not in found.evidence and found.evidence["rebound"] == []


@pytest.mark.parametrize("batch", [2, 3, 64])
def test_another_batch_is_compared_row_by_row(batch: int) -> None:
    found = proven(PLAIN, x=(batch, 4))
    assert found.evidence["batch_to_rows"]["max_relative_error"] < 1e-6
    assert found.evidence["batch_to_rows"]["samples"] == min(batch, 3)
    assert found.fused.model.graph.outputs[0].shape == [batch, 2]


def test_an_exported_batch_that_does_not_divide_the_new_one() -> None:
    text = PLAIN.replace("[1,", "[2,")
    assert proven(text, x=(3, 4)).evidence["batch_to_rows"]["samples"] == 3
    assert proven(text, x=(1, 4)).evidence["batch_to_rows"]["samples"] == 1


def test_a_rebound_batch_is_named_and_proven() -> None:
    text = HEAD + "(float[1,2,2] x) => (float[1,4] y)<int64[2] to = {1,4}> { y = Reshape(x, to) }"
    found = proven(text, x=(6, 2, 2))
    assert found.evidence["rebound"] == ["Reshape_y"]
    assert found.evidence["batch_to_rows"]["max_relative_error"] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # Softmax over the batch mixes the samples.
        (
            HEAD + "(float[2,4] x) => (float[2,4] y) { y = Softmax <axis=0> (x) }",
            "bucket: each row against the model at batch 2: .* it mixes the samples of a batch",
        ),
        # An output that does not grow with the batch.
        (
            HEAD + "(float[2,4] x) => (float y) { y = ReduceSum <keepdims=0> (x) }",
            r"output 'y' is \[\], and \[\] at batch 2: it does not grow with the batch, lost in "
            "ReduceSum 'ReduceSum_y'",
        ),
        # The exported batch as a stride through rows of another meaning.
        (
            HEAD + "(float[2,4] x) => (float[2,4] y)<int64[2] to = {4,2}, int64[2] back = {-1,4}>"
            "{ r = Reshape(x, to) t = Transpose(r) y = Reshape(t, back) }",
            r"holds the exported shape as a constant: it cannot make \[4, 2\] of \[6, 4\]",
        ),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        proven(text, x=(6, 4))
    assert caught.value.where == "shapes.buckets.1" and caught.value.exit_code == 2


def test_a_fusion_that_holds_only_at_the_exported_shape() -> None:
    mean = HEAD + "(float[1,4] x) => (float[1,1] y)<int64[1] a = {1}> { y = ReduceMean(x, a) }"
    baked = (
        HEAD + "(float[1,4] x) => (float[1,1] y)<int64[1] a = {1}, float n = {0.25}>"
        "{ s = ReduceSum(x, a) y = Mul(s, n) }"
    )
    assert proven(mean, baked, x=(1, 4)).evidence["fused_to_unfused"]["samples"] == 1
    with pytest.raises(ParityError, match="bucket: the fused model against the unfused one"):
        proven(mean, baked, x=(1, 8))


def test_inputs_that_change_by_different_factors() -> None:
    text = (
        HEAD + "(float[1,4] x, float[1,4] z) => (float[1,4] y, float[1,4] w)"
        "{ y = Relu(x) w = Relu(z) }"
    )
    with pytest.raises(RecipeError, match="change by different factors"):
        proven(text, x=(2, 4), z=(3, 4))


def test_shapes_that_no_memory_holds() -> None:
    with pytest.raises(RecipeError, match="not enough memory") as caught:
        proven(PLAIN, x=(1 << 48, 4))
    assert caught.value.where == "shapes.buckets.1"


def test_equal_runs_give_equal_evidence() -> None:
    first, second = (proven(PLAIN, x=(5, 4)).evidence for _ in range(2))
    assert first == second
