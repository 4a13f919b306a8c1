"""A model at other input shapes: what follows, what is rebound, what is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from edgefuse.errors import RecipeError
from edgefuse.graph.cost import kernel_of
from edgefuse.graph.fuse import fuse_file
from edgefuse.graph.shapes import Reshaped, at_shapes, spelt_out
from edgefuse.graph.verify import Runner, compare

HEAD = '<ir_version: 10, opset_import: ["": 18]> g '
IDENTITY = "float[4,4,1,1] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}"


def at(text: str, **shapes: tuple[int, ...]) -> Reshaped:
    return at_shapes(onnx.parser.parse_model(text), shapes, where="recipe.yaml:9")


def shapes_of(found: Reshaped) -> list[tuple[int, ...]]:
    return [tuple(int(e) for e in n.outputs[0].shape) for n in found.model.graph]


def ones(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(shape, np.float32)}


def fused(text: str, folder: Path, feed: dict[str, np.ndarray]) -> onnx.ModelProto:
    source, destination = folder / "m.onnx", folder / "f.onnx"
    onnx.save(onnx.parser.parse_model(text), source)
    fuse_file(source, destination, feeds=[feed])
    return onnx.load(destination)


CONV = (
    HEAD + f"(float[1,4,8,8] x) => (float[1,4,8,8] y)<{IDENTITY}>{{ c = Conv(x, w) y = Relu(c) }}"
)


def test_a_group_spelt_out_is_the_plain_graph(tmp_path: Path) -> None:
    proto = fused(CONV, tmp_path, ones(1, 4, 8, 8))
    (group,) = proto.graph.node
    assert group.domain == "edgefuse"
    model = spelt_out(proto)
    assert [n.op_type for n in model.graph] == ["Conv", "Relu"]
    assert {kernel_of(n) for n in model.graph} == {group.name}
    assert [v.name for v in model.graph.outputs] == ["y"] and not model.functions
    assert tuple(model.graph[0].outputs[0].shape) == (1, 4, 8, 8)
    x = np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)
    assert compare(proto, model, [{"x": x}]).max_abs == 0


def test_batch_and_size_follow_the_input(tmp_path: Path) -> None:
    proto = fused(CONV, tmp_path, ones(1, 4, 8, 8))
    found = at_shapes(proto, {"x": (3, 4, 5, 7)})
    assert shapes_of(found) == [(3, 4, 5, 7)] * 2 and found.rebound == ()
    assert [n.domain for n in found.proto.graph.node] == ["edgefuse"]
    assert Runner(found.proto)(ones(3, 4, 5, 7))["y"].shape == (3, 4, 5, 7)
    # The model that was given is as it was.
    assert Runner(proto)(ones(1, 4, 8, 8))["y"].shape == (1, 4, 8, 8)


FLAT = (
    HEAD + "(float[1,4,2,2] x) => (float[1,16] y)<int64[2] to = {1,16}>"
    "{ r = Relu(x) y = Reshape(r, to) }"
)


def test_a_batch_in_a_reshape_is_replaced() -> None:
    found = at(FLAT, x=(5, 4, 2, 2))
    assert shapes_of(found) == [(5, 4, 2, 2), (5, 16)]
    assert len(found.rebound) == 1
    x = np.random.default_rng(1).normal(size=(5, 4, 2, 2)).astype(np.float32)
    np.testing.assert_array_equal(Runner(found.proto)({"x": x})["y"], x.clip(0).reshape(5, 16))


def test_minus_one_beside_a_batch_is_replaced_too() -> None:
    text = FLAT.replace("{1,16}", "{1,-1}")
    assert shapes_of(at(text, x=(5, 4, 2, 2)))[-1] == (5, 16)
    # And this one follows by itself.
    free = FLAT.replace("{1,16}", "{-1,16}")
    found = at(free, x=(5, 4, 2, 2))
    assert shapes_of(found)[-1] == (5, 16) and found.rebound == ()


def test_a_resize_keeps_the_batch_it_is_given() -> None:
    text = (
        HEAD + "(float[1,2,3,3] x) => (float[1,2,6,6] y)<int64[4] sizes = {1,2,6,6}>"
        '{ y = Resize <mode="nearest"> (x, , , sizes) }'
    )
    found = at(text, x=(4, 2, 3, 3))
    assert shapes_of(found) == [(4, 2, 6, 6)] and found.rebound
    assert Runner(found.proto)(ones(4, 2, 3, 3))["y"].shape == (4, 2, 6, 6)


def test_a_shape_that_is_computed_follows_by_itself() -> None:
    text = (
        HEAD + "(float[1,4,2,2] x) => (float[1,16] y)<int64[1] rest = {16}>"
        "{ n = Shape <start=0, end=1> (x) to = Concat <axis=0> (n, rest) y = Reshape(x, to) }"
    )
    found = at(text, x=(5, 4, 2, 2))
    assert shapes_of(found)[-1] == (5, 16) and found.rebound == ()


def test_an_axis_that_only_looks_like_the_batch_is_left() -> None:
    text = (
        HEAD + "(float[2,2] x) => (float[2,2] y)<int64[2] to = {2,-1}>"
        "{ t = Transpose(x) r = Reshape(t, to) y = Transpose(r) }"
    )
    found = at(text, x=(4, 2))
    assert shapes_of(found) == [(2, 4), (2, 4), (4, 2)] and found.rebound == ()


def test_what_is_taken_out_of_a_list_has_a_shape() -> None:
    text = (
        HEAD + "(float[1,3,6] x) => (float[1,3,2] y)<int64 size = {2}, int64 at = {1}>"
        "{ l = SplitToSequence <axis=2> (x, size) y = SequenceAt(l, at) }"
    )
    found = at(text, x=(4, 3, 6))
    given = np.arange(72, dtype=np.float32).reshape(4, 3, 6)
    assert np.array_equal(Runner(found.proto)({"x": given})["y"], given[..., 2:4])


@pytest.mark.parametrize(
    ("text", "shapes", "said"),
    [
        # Rows of batch and height in one axis: 4 is no batch.
        (
            FLAT.replace("{1,16}", "{4,4}").replace("[1,16]", "[4,4]"),
            {"x": (5, 4, 2, 2)},
            r"Reshape '.*' holds the exported shape as a constant: it cannot make \[4, 4\] of "
            r"\[5, 4, 2, 2\] \(x \[5, 4, 2, 2\] instead of \[1, 4, 2, 2\]\)",
        ),
        # A size other than the exported one does not fit the constant target.
        (FLAT, {"x": (1, 4, 3, 3)}, r"Reshape '.*' holds the exported shape as a constant"),
        # A constant of the exported batch beside the input, as a class token has it.
        (
            HEAD + "(float[2,1,2] x) => (float[2,2,2] y)<float[2,1,2] c = {1,2,3,4}>"
            "{ y = Concat <axis=1> (c, x) }",
            {"x": (3, 1, 2)},
            r"Concat '.*' cannot take .*3, ?1, ?2",
        ),
        (
            HEAD + "(float[1,4] x) => (float[1,2] y)<float[4,2] w = {1,2,3,4,5,6,7,8}>"
            "{ y = MatMul(x, w) }",
            {"x": (1, 5)},
            r"MatMul '.*' cannot take .*1, ?5",
        ),
    ],
)
def test_refused_by_name(text: str, shapes: dict[str, tuple[int, ...]], said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        at(text, **shapes)
    assert caught.value.where == "recipe.yaml:9" and "leave the bucket out" in caught.value.hint


def test_inputs_of_different_batches_rebind_nothing() -> None:
    text = (
        HEAD + "(float[1,4] x, float[2,4] z) => (float[2,2] y, float[2,4] w)<int64[2] to = {2,2}>"
        "{ y = Reshape(x, to) w = Relu(z) }"
    )
    with pytest.raises(RecipeError, match="holds the exported shape as a constant"):
        at(text, x=(3, 4), z=(6, 4))
