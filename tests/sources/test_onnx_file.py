"""ONNX files as sources: static shapes, and everything surprising refused with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edgefuse.errors import RecipeError, SourceError
from edgefuse.recipe import Model
from edgefuse.sources import onnx_file

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '


def with_weights(text: str, **arrays: Any) -> Any:
    """A model of text, with initializers: the text's own can hold no array."""
    model = onnx.parser.parse_model(text)
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(array), name))
    return model


def load(path: Path, text: str | Any, outputs: tuple[str, ...] = (), **shapes: list[int]) -> Any:
    """The loaded proto, inputs pinned to the shapes by name."""
    model = onnx.parser.parse_model(text) if isinstance(text, str) else text
    file = path / "m.onnx"
    file.write_bytes(model.SerializeToString())
    inputs = [{"name": name, "shape": shape} for name, shape in shapes.items()]
    wanted = {"onnx": {"path": "m.onnx"}, "inputs": inputs, "outputs": outputs}
    return onnx_file.load(file, Model.model_validate(wanted))


def shapes_of(proto: Any) -> dict[str, list[int]]:
    return {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.input, *proto.graph.output)
    }


def outputs(proto: Any, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_dynamic_batch_is_pinned(tmp_path: Path, batch: int) -> None:
    text = HEAD + (
        "(float[N,3,H,W] x) => (float[N,C] y) {"
        "c = Conv(x, w)\n p = GlobalAveragePool(c)\n y = Flatten(p) }"
    )
    w = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)
    proto = load(tmp_path, with_weights(text, w=w), x=[batch, 3, 8, 8])
    assert shapes_of(proto) == {"x": [batch, 3, 8, 8], "y": [batch, 4]}
    x = np.random.default_rng(1).standard_normal((batch, 3, 8, 8)).astype(np.float32)
    (y,) = outputs(proto, {"x": x})
    assert np.allclose(y, x.mean((2, 3)) @ w[:, :, 0, 0].T, atol=1e-5)


SHAPE = """
    s = Shape(x)
    zero = Constant <value: tensor = int64 {0}> ()
    n = Gather <axis: int = 0> (s, zero)
    axes = Constant <value: tensor = int64[1] {0}> ()
    n1 = Unsqueeze(n, axes)
    rest = Constant <value: tensor = int64[1] {-1}> ()
    to = Concat <axis: int = 0> (n1, rest)
"""


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_shapes_computed_from_a_dynamic_batch(tmp_path: Path, batch: int) -> None:
    """As exporters write ``x.view(x.shape[0], -1)``."""
    text = HEAD + f"(float[N,3,2,2] x) => (float[N,M] y) {{ {SHAPE} y = Reshape(x, to) }}"
    assert shapes_of(load(tmp_path, text, x=[batch, 3, 2, 2]))["y"] == [batch, 12]


def test_shapes_computed_with_arithmetic_and_slices(tmp_path: Path) -> None:
    """As exporters write an upsampling to twice the input's size."""
    text = HEAD + (
        "(float[1,3,H,W] x) => (float[1,3,A,B] y) {"
        "s = Shape(x)\n two = Constant <value: tensor = int64[1] {2}> ()\n"
        "four = Constant <value: tensor = int64[1] {4}> ()\n"
        "zero = Constant <value: tensor = int64[1] {0}> ()\n"
        "head = Slice(s, zero, two)\n tail = Slice(s, two, four)\n size = Mul(tail, two)\n"
        "sizes = Concat <axis: int = 0> (head, size)\n none = Constant <value_floats=[1.0]> ()\n"
        'y = Resize <mode: string = "nearest"> (x, , , sizes) }'
    )
    assert shapes_of(load(tmp_path, text, x=[1, 3, 5, 7]))["y"] == [1, 3, 10, 14]


@pytest.mark.parametrize("pair", ["", "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"])
def test_axes_computed_from_constants(tmp_path: Path, pair: str) -> None:
    """As the dynamo exporter writes a mean over two axes, when nothing optimises its graph."""
    text = HEAD + (
        "(float[N,3,5,7] x) => (float[N,C] y) <float s = {0.1}, uint8 z = {128}> {"
        f"{pair}\n axes = Constant <value: tensor = int64[2] {{2, 3}}> ()\n"
        "flat = Constant <value: tensor = int64[1] {-1}> ()\n both = Reshape(axes, flat)\n"
        f"y = ReduceMean <keepdims: int = 0> ({'d' if pair else 'x'}, both) }}"
    )
    model = onnx.parser.parse_model(text.replace('"": 17', '"": 18'))
    assert shapes_of(load(tmp_path, model, x=[2, 3, 5, 7]))["y"] == [2, 3]


def test_a_shape_that_values_decide_is_refused(tmp_path: Path) -> None:
    text = HEAD + ("(float[1,4] x) => (int64[2,M] y) { y = NonZero(x) }")
    with pytest.raises(SourceError, match="output 'y' keeps a dynamic shape"):
        load(tmp_path, text, x=[1, 4])


def test_sizes_of_zero_or_minus_one_are_dynamic(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for size in (-1, 0):
        dims[0].dim_value = size
        assert shapes_of(load(tmp_path, model, x=[2, 4])) == {"x": [2, 4], "y": [2, 4]}


def test_a_stale_output_shape_is_inferred_anew(tmp_path: Path) -> None:
    text = HEAD + "(float[N,4] x) => (float[1,4] y) { h = Relu(x)\n y = Sigmoid(h) }"
    assert shapes_of(load(tmp_path, text, x=[2, 4]))["y"] == [2, 4]


def test_an_output_without_a_shape(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert shapes_of(load(tmp_path, model, x=[3, 4]))["y"] == [3, 4]


def test_initializers_among_the_inputs_are_no_inputs(tmp_path: Path) -> None:
    text = HEAD + "(float[1,4] x, float[4] w) => (float[1,4] y) <float[4] w = {1,2,3,4}> {"
    assert set(shapes_of(load(tmp_path, text + " y = Mul(x, w) }", x=[1, 4]))) == {"x", "w", "y"}


def test_external_data_come_inside(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    text = HEAD + "(float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }"
    model = with_weights(text, w=w)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    wanted = {"onnx": {"path": "m"}, "inputs": [{"name": "x", "shape": [1, 64]}]}
    proto = onnx_file.load(path, Model.model_validate(wanted))
    (tensor,) = proto.graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(tensor), w)
    assert not tensor.external_data


RELU = HEAD + "(float[1,4] x) => (float[1,4] y) { y = Relu(x) }"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RELU.replace("Relu", "Relux"), "unsupported operator Relux"),
        (RELU.replace('"": 17', '"": 17, "a.b": 1').replace("Relu", "a.b.Relu"),
         "unsupported operator a.b.Relu"),
        (RELU.replace('"": 17', '"": 6'), "opset 6 is not supported"),
        (RELU.replace('"": 17', '"": 1000'), "opset 1000 is not supported"),
        (RELU.replace("Relu(x)", "Gelu(x)"), "unsupported operator Gelu in opset 17"),
        (RELU.replace("Relu(x)", "Relu(z)"), "the ONNX checker refuses it"),
        (RELU.replace("Relu(x)", "Relu(x, x)"), "the ONNX checker refuses it"),
        (HEAD + "(float[1,4] x) => (int64[2,N] y) { y = NonZero(x) }", "keeps a dynamic shape"),
        (HEAD + "(float[1,4] x, bool b) => (float[1,4] y) { y = If(b) <"
         "then_branch = t () => (float[1,4] p) { p = Nope(x) },"
         "else_branch = e () => (float[1,4] q) { q = Relu(x) }> }", "unsupported operator Nope"),
        (HEAD + "(double[1,4] x) => (double[1,4] y) { y = Relu(x) }", "'x' is DOUBLE"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, text: str, said: str) -> None:
    shapes = {"x": [1, 4], **({"b": [1]} if "bool b" in text else {})}
    with pytest.raises(SourceError) as caught:
        load(tmp_path, text, **shapes)
    assert said in caught.value.message
    assert caught.value.where == str(tmp_path / "m.onnx") and caught.value.hint


def test_a_pinned_size_that_does_not_fit_the_graph(tmp_path: Path) -> None:
    text = HEAD + "(float[N,4] x) => (float[N,4] y) { y = Add(x, w) }"
    model = with_weights(text, w=np.ones((2, 4)))
    with pytest.raises(SourceError) as caught:
        load(tmp_path, model, x=[3, 4])
    assert caught.value.hint and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("{ y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s) }", "BatchNorm"),
        ("{ t = Constant <value = bool {1}> ()\n r = Constant <value = float {0.5}> ()\n"
         " y = Dropout(x, r, t) }", "Dropout"),
    ],
)  # fmt: skip
def test_training_mode(tmp_path: Path, text: str, node: str) -> None:
    head = HEAD + "(float[1,4] x) => (float[1,4] y) <float[4] s = {1,1,1,1}> "
    with pytest.raises(SourceError, match=f"exported in training mode: {node}") as caught:
        load(tmp_path, head + text, x=[1, 4])
    assert "model.eval()" in caught.value.hint


def test_training_mode_before_opset_14(tmp_path: Path) -> None:
    text = HEAD.replace("17", "9") + (
        "(float[1,4] x) => (float[1,4] y) <float[4] s = {1,1,1,1}>"
        "{ y, m, v, a, b = BatchNormalization(x, s, s, s, s) }"
    )
    with pytest.raises(SourceError, match="training mode"):
        load(tmp_path, text, x=[1, 4])


def test_inactive_dropout_and_inference_are_fine(tmp_path: Path) -> None:
    text = HEAD + (
        "(float[1,4] x) => (float[1,4] y) <float[4] s = {1,1,1,1}>"
        "{ b = BatchNormalization(x, s, s, s, s)\n t = Constant <value = bool {0}> ()\n"
        "r = Constant <value = float {0.5}> ()\n y = Dropout(b, r, t) }"
    )
    assert load(tmp_path, text, x=[1, 4]).graph.node


@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_nan(tmp_path: Path, place: str) -> None:
    nan = onnx.numpy_helper.from_array(np.array([1, np.nan, 1, 1], np.float32), "w")
    model = with_weights(HEAD + "(float[1,4] x) => (float[1,4] y) { y = Mul(x, w) }")
    if place == "initializer":
        model.graph.initializer.append(nan)
    else:
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=nan))
    with pytest.raises(SourceError, match="weights hold NaN in"):
        load(tmp_path, model, x=[1, 4])


def test_infinity_is_a_value(tmp_path: Path) -> None:
    text = HEAD + "(float[1,4] x) => (float[1,4] y) { y = Min(x, w) }"
    model = with_weights(text, w=[0, -np.inf, 0, 0])
    assert load(tmp_path, model, x=[1, 4]).graph.node


@pytest.mark.parametrize(
    ("outputs", "shapes", "said"),
    [
        ((), {"z": [1, 4]}, r"model.inputs names \['z'\], the file has \['x'\]"),
        ((), {"x": [1, 5]}, r"'x' has shape \[1, 5\], the file has \[1, 4\]"),
        ((), {"x": [4]}, r"'x' has shape \[4\]"),
        (("z",), {"x": [1, 4]}, r"model.outputs names \['z'\], the file has \['y'\]"),
    ],
)
def test_another_signature(tmp_path: Path, outputs, shapes, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        load(tmp_path, RELU, outputs, **shapes)
    assert caught.value.hint
