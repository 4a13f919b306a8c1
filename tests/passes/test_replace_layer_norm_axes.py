import onnx
import pytest

from edgefuse.passes.replace_layer_norm_axes import PASS

from .check_pass import apply, check_pass, onnx_model

OPS = ["Reshape", "LayerNormalization", "Reshape"]


def norm(
    *, shape: str = "2,3,5,4", axis: int = -2, scale: str = "5,4", bias: bool = True,
    opset: int = 17, kind: str = "float", attributes: str = "", outputs: str = "y",
    extra: str = "", **more: object,
) -> onnx.ModelProto:  # fmt: skip
    declared = f", {kind}[{scale}] b" if bias else ""
    return onnx_model(
        f"""g ({kind}[{shape}] x, {kind}[{scale}] s{declared}) => ({kind}[{shape}] y{extra}) {{
        {outputs} = LayerNormalization <axis = {axis}{attributes}> (x, s{", b" if bias else ""})
        }}""",
        opset=opset, **({"s": 1} | ({"b": 2} if bias else {}) | more),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "axis", "scale"),
    [("2,3,5,4", -2, "5,4"), ("2,3,5,4", 1, "3,5,4"), ("2,3,5,4", 0, "2,3,5,4"),
     ("N,3,5,4", 2, "5,4"), ("N,T,5,4", -2, "5,4")],
)  # fmt: skip
@pytest.mark.parametrize("bias", [True, False])
def test_fires(shape: str, axis: int, scale: str, bias: bool) -> None:
    model = norm(shape=shape, axis=axis, scale=scale, bias=bias)
    check_pass(PASS, fires=[(model, 1, OPS)])


def test_epsilon_and_type_are_kept() -> None:
    check_pass(
        PASS,
        fires=[
            (norm(attributes=", epsilon = 0.5"), 1, OPS),
            (norm(kind="float16", opset=21), 1, OPS),
            (norm(kind="double"), 1, OPS),
        ],
    )
    done = apply(PASS, norm(attributes=", epsilon = 0.5")).proto.graph.node[1]
    values = {a.name: onnx.helper.get_attribute_value(a) for a in done.attribute}
    assert values == {"axis": -1, "epsilon": 0.5}


def test_left_alone() -> None:
    mean = norm(outputs="y, m", extra=", float[2,3,1,1] m")
    check_pass(
        PASS,
        ignores=[
            (norm(axis=-1, scale="4"), ""),
            (norm(axis=3, scale="4"), ""),
            (mean, "the mean or the deviation of LayerNormalization"),
            (norm(shape="2,3,H,4", scale="2,4"), "the axes from 2 on of x are not all static"),
            (norm(scale="1,1,5,4"), "has shape [1, 1, 5, 4], the axes have [5, 4]"),
            (norm(overridable=["b"]), "the bias of LayerNormalization"),
            (norm(overridable=["s"]), "a caller may override it"),
        ],
    )
