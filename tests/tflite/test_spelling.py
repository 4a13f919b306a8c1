import numpy as np
import onnx
import pytest
from passes.check_pass import onnx_model

from edgefuse.graph.verify import compare
from edgefuse.tflite.spelling import spell_hard_sigmoids, spell_picture_means

X = {"x": np.linspace(-5, 5, 101).astype(np.float32).reshape(1, 101)}


def model(body: str, opset: int = 18) -> onnx.ModelProto:
    return onnx_model(f"g (float[1,101] x) => (float[1,101] y) {{ {body} }}", opset=opset)


def test_hard_sigmoids_become_a_clip_to_six_and_a_product() -> None:
    given = model(
        "a = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) hard_sigmoid_3 = Neg(a) "
        "y = HardSigmoid <alpha = 0.16666667> (hard_sigmoid_3)"
    )
    spelt = onnx.ModelProto()
    spelt.CopyFrom(given)
    assert spell_hard_sigmoids(spelt) == 2
    wanted = ["Add", "Clip", "Mul", "Neg", "Add", "Clip", "Mul"]
    assert [n.op_type for n in spelt.graph.node] == wanted
    assert len(spelt.graph.initializer) == 4
    onnx.checker.check_model(spelt, full_check=True)
    compare(given, spelt, [X], max_relative_error=1e-6)


def test_other_slopes_and_old_operator_sets_are_left_alone() -> None:
    for given in (
        model("y = HardSigmoid(x)"),
        model("y = HardSigmoid <alpha = 0.16666667, beta = 0.4> (x)"),
        model("y = HardSigmoid <alpha = 0.16666667> (x)", opset=9),
        model("y = Sigmoid(x)"),
    ):
        before = given.SerializeToString(deterministic=True)
        assert spell_hard_sigmoids(given) == 0
        assert given.SerializeToString(deterministic=True) == before


def classifier(mean: str, opset: int = 18, result: str = "1,5") -> onnx.ModelProto:
    text = f"g (float[1,4,6,6] x, float[4,5] w) => (float[{result}] y) {{ a = Relu(x) {mean} }}"
    proto = onnx_model(text, opset=opset, w=1)
    return onnx.shape_inference.infer_shapes(proto)


@pytest.mark.parametrize(
    ("mean", "opset"),
    [
        ("m = ReduceMean <axes = [2, 3], keepdims = 0> (a) y = Gemm(m, w)", 13),
        ("m = ReduceMean <axes = [-1, -2], keepdims = 0> (a) y = Gemm(m, w)", 17),
    ],
)
def test_the_mean_in_front_of_a_classifier_is_a_pooling(mean: str, opset: int) -> None:
    given = classifier(mean, opset)
    spelt = onnx.ModelProto()
    spelt.CopyFrom(given)
    assert spell_picture_means(spelt) == 1
    assert [n.op_type for n in spelt.graph.node] == ["Relu", "GlobalAveragePool", "Flatten", "Gemm"]
    onnx.checker.check_model(spelt, full_check=True)
    feed = {"x": np.random.default_rng(0).normal(size=(1, 4, 6, 6)).astype(np.float32)}
    compare(given, spelt, [feed], max_relative_error=1e-6)


def test_other_means_are_left_alone() -> None:
    for given in (
        classifier(
            "m = ReduceMean <axes = [1, 2], keepdims = 0> (a) t = Neg(m) y = Neg(t)", 13, "1,6"
        ),
        classifier("y = ReduceMean <axes = [2, 3], keepdims = 0> (a)", 13, "1,4"),
        classifier("m = ReduceMean <axes = [2, 3]> (a) y = Neg(m)", 13, "1,4,1,1"),
    ):
        assert spell_picture_means(given) == 0
