import onnx
import pytest

from edgefuse.passes.remove_kept_axes import PASS

from .check_pass import apply, check_pass, onnx_model


def net(body: str, result: str = "1,8", *, opset: int = 18, x: str = "1,8,6,5") -> onnx.ModelProto:
    return onnx_model(f"g (float[{x}] x) => (float[{result}] y) {{ {body} }}", opset=opset)


TARGET = "s = Constant <value = int64[2] {1, 8}> ()"
AXES = "a = Constant <value = int64[2] {2, 3}> ()"


@pytest.mark.parametrize(
    ("body", "opset", "operator"),
    [
        ("p = GlobalAveragePool(x) y = Flatten(p)", 18, "ReduceMean"),
        ("p = GlobalAveragePool(x) y = Flatten(p)", 11, "ReduceMean"),
        (f"{TARGET} p = GlobalAveragePool(x) y = Reshape(p, s)", 13, "ReduceMean"),
        (f"{TARGET} {AXES} p = ReduceMean(x, a) y = Reshape(p, s)", 18, "ReduceMean"),
        (f"{TARGET} p = ReduceMean <axes = [-1, -2]> (x) y = Reshape(p, s)", 13, "ReduceMean"),
        (f"{AXES} p = ReduceSum <keepdims = 1> (x, a) y = Squeeze(p, a)", 13, "ReduceSum"),
        (f"{AXES} p = ReduceMax <axes = [2, 3]> (x) y = Squeeze(p, a)", 13, "ReduceMax"),
    ],
)
def test_fires(body: str, opset: int, operator: str) -> None:
    check_pass(PASS, fires=[(net(body, opset=opset), 1, [operator])])


def test_one_dimension_and_three() -> None:
    line = net("p = GlobalAveragePool(x) y = Flatten(p)", x="2,8,7", result="2,8")
    solid = net("p = GlobalAveragePool(x) y = Flatten(p)", x="2,8,3,4,5", result="2,8")
    check_pass(PASS, fires=[(line, 1, ["ReduceMean"]), (solid, 1, ["ReduceMean"])])


def test_dynamic_batch() -> None:
    model = net("p = GlobalAveragePool(x) y = Flatten(p)", x="N,8,6,5", result="N,8")
    assert apply(PASS, model).ops in (["ReduceMean"], ["GlobalAveragePool", "Flatten"])


def test_left_alone() -> None:
    eight = "s = Constant <value = int64[1] {8}> ()"
    check_pass(
        PASS,
        ignores=[
            (net(f"{eight} p = GlobalAveragePool(x) y = Reshape(p, s)", "8"), ""),
            (net("p = ReduceMean <axes = [2, 3], keepdims = 0> (x) y = Flatten(p)", opset=13), ""),
            (
                net(
                    "p = GlobalAveragePool(x) q = Neg(p) r = Flatten(p) t = Flatten(q) y = Add(r,t)"
                ),
                "",
            ),
            (net("p = MaxPool <kernel_shape = [6, 5]> (x) y = Flatten(p)"), ""),
        ],
    )
