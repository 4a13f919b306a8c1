import numpy as np
import onnx
import pytest

from edgefuse.graph.fuse import serialise
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.passes.fuse_add_activation import PASS

from .check_pass import apply, check_pass, onnx_model


def branches(
    tail: str, *, z: str = "1,4,5,5", y: str = "1,4,5,5", opset: int = 18, outputs: str = "",
    kind: str = "float", **constants: object,
) -> onnx.ModelProto:  # fmt: skip
    text = f"""g ({kind}[1,4,5,5] x, {kind}[{z}] z, {kind} lo, {kind} six)
        => ({kind}[{y}] y{outputs}) {{
        {tail} }}"""
    given = {"lo": np.array(0.0), "six": np.array(6.0)} | constants
    return onnx_model(text, opset=opset, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("activation", "opset", "name", "kind"),
    [
        ("y = Relu(a)", 18, "AddRelu", "RELU"),
        ("y = Clip(a, lo, six)", 18, "AddClip", "RELU6"),
        ("y = Clip <min = 0.0, max = 6.0> (a)", 9, "AddClip", "RELU6"),
        ("y = LeakyRelu(a)", 18, "AddLeakyRelu", "LEAKYRELU"),
        ("y = HardSwish(a)", 14, "AddHardSwish", "HARDSWISH"),
        ("y = Gelu(a)", 20, "AddGelu", "GELU"),
        ("s = Sigmoid(a) y = Mul(s, a)", 18, "AddSilu", "SILU"),
    ],
)
def test_fires(activation: str, opset: int, name: str, kind: str) -> None:
    model = branches(f"a = Add(x, z) {activation}", opset=opset)
    check_pass(PASS, fires=[(model, 1, [name])])
    (node,) = apply(PASS, model).proto.graph.node
    assert {p.value for p in node.metadata_props if p.key == "edgefuse.activation"} == {kind}


def test_refusals() -> None:
    symbols = onnx_model("""g (float[N,4] x, float[M,4] z) => (float[K,4] y) {
        a = Add(x, z)
        y = Relu(a) }""")
    constant = onnx_model(
        """g (float[2,4] x, float[2,4] z) => (float[2,4] y) {
        a = Add(x, z)
        y = Relu(a) }""",
        z=1,
    )
    check_pass(
        PASS,
        ignores=[
            (branches("y = Add(x, z)"), ""),
            (branches("a = Add(x, z) y = Neg(a)"), ""),
            (branches("a = Add(x, z) y = Relu(a)", z="4,1,1"), "not known to be equal"),
            (constant, ""),
            (branches("a = Add(x, z) r = Relu(a) y = Mul(r, a)"), "(a) is also read by Mul"),
            (branches("a = Add(x, z) y = Relu(a)", outputs=", float[1,4,5,5] a"),
             "(a) is an output of the graph"),
            (branches("a = Add(x, z) y = Clip(a, lo, six)", six=6.0, overridable=["six"]),
             "a caller may override it"),
            (symbols, "not known to be equal"),
        ],
    )  # fmt: skip


def test_dynamic_batch_and_equal_operands() -> None:
    symbol = onnx_model("""g (float[N,4] x, float[N,4] z) => (float[N,4] y) {
        a = Add(x, z)
        y = Relu(a) }""")
    check_pass(
        PASS,
        fires=[
            (symbol, 1, ["AddRelu"]),
            (branches("a = Add(x, x) b = Add(a, z) y = Relu(b)"), 1, ["Add", "AddRelu"]),
        ],
    )


@pytest.mark.parametrize("kind", ["float16", "double", "bfloat16"])
def test_other_types(kind: str) -> None:
    model = branches("a = Add(x, z) y = Tanh(a)", kind=kind)
    check_pass(PASS, fires=[(model, 1, ["AddTanh"])], numbers=kind != "bfloat16")


def test_integers_are_no_candidates() -> None:
    model = onnx_model("""g (int32[2] x, int32[2] z) => (int32[2] y) {
        a = Add(x, z)
        y = Relu(a) }""")
    check_pass(PASS, ignores=[(model, "")], numbers=False)


@pytest.mark.parametrize(
    ("tail", "ops"),
    [
        ("p = MaxPool <kernel_shape = [1, 1]> (x) a = Add(p, z) y = Relu(a)",
         ["MaxPool", "AddRelu"]),
        ("c = Conv(x, w) r = Relu(c) a = Add(r, z) y = Relu(a)", ["ConvRelu", "AddRelu"]),
        ("c = Conv(x, w) a = Add(c, z) y = Relu(a)", ["ConvAddRelu"]),
        ("c = Conv(x, w) r = Relu(c) d = Conv(z, w) s = Relu(d) a = Add(r, s) y = Relu(a)",
         ["ConvRelu", "ConvRelu", "AddRelu"]),
    ],
)  # fmt: skip
def test_after_the_layers_have_taken_what_they_can(tail: str, ops: list[str]) -> None:
    text = f"""g (float[1,4,5,5] x, float[1,4,5,5] z, float[4,4,1,1] w) => (float[1,4,5,5] y) {{
        {tail} }}"""
    model, _ = run_passes(prepare(onnx_model(text, w=1)))
    assert [n.op_type for n in serialise(model).graph.node] == ops
