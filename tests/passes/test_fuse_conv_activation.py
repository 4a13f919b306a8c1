import numpy as np
import onnx
import onnx.inliner
import pytest

from edgefuse.graph.verify import compare, seeded_feed
from edgefuse.passes.fuse_conv_activation import PASS

from .check_pass import apply, check_pass, onnx_model


def after_conv(
    activation: str, *, bias: bool = True, opset: int = 18, layer: str = "Conv", **more: object
) -> onnx.ModelProto:
    declared = ", float[4] b" if bias else ""
    size = 5 if layer == "ConvTranspose" else 1
    text = f"""g (float[1,4,3,3] x, float[4,4,3,3] w{declared}, float lo, float hi)
        => (float[1,4,{size},{size}] y) {{
        t = {layer}(x, w{", b" if bias else ""})
        y = {activation} }}"""
    constants = {"w": 1, "lo": 0.0, "hi": 6.0} | ({"b": 2} if bias else {}) | more
    return onnx_model(text, opset=opset, **constants)  # type: ignore[arg-type]


CASES = [
    ("Relu(t)", 18, "ConvRelu"),
    ("Clip(t, lo, hi)", 18, "ConvClip"),
    ("Clip(t, , hi)", 18, "ConvClip"),
    ("Clip(t, lo)", 18, "ConvClip"),
    ("Clip <min = 0.0, max = 6.0> (t)", 9, "ConvClip"),
    ("Clip <max = 6.0> (t)", 9, "ConvClip"),
    ("LeakyRelu <alpha = 0.2> (t)", 18, "ConvLeakyRelu"),
    ("LeakyRelu(t)", 18, "ConvLeakyRelu"),
    ("HardSigmoid <beta = 0.4> (t)", 18, "ConvHardSigmoid"),
    ("HardSwish(t)", 18, "ConvHardSwish"),
    ("Sigmoid(t)", 18, "ConvSigmoid"),
    ('Gelu <approximate = "tanh"> (t)', 20, "ConvGelu"),
]


@pytest.mark.parametrize(("activation", "opset", "name"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_fires_and_inlines_to_the_same_bits(
    activation: str, opset: int, name: str, bias: bool
) -> None:
    model = after_conv(activation, bias=bias, opset=opset)
    check_pass(PASS, fires=[(model, 1, [name])])
    fused = apply(PASS, model).proto
    plain = onnx.inliner.inline_local_functions(fused)
    assert [n.op_type for n in plain.graph.node] == ["Conv", activation.split("(")[0].split()[0]]
    compare(model, plain, [seeded_feed(model, seed=3)], max_relative_error=0.0)


def test_transposed_and_metadata() -> None:
    model = after_conv("Relu(t)", layer="ConvTranspose")
    scopes = "['', 'up', 'up.0', 'conv']"
    for key, value in (
        ("pkg.torch.onnx.name_scopes", scopes),
        ("pkg.torch.onnx.stack_trace", "/somewhere/model.py"),
    ):
        model.graph.node[0].metadata_props.add(key=key, value=value)
    done = apply(PASS, model)
    assert done.ops == ["ConvTransposeRelu"]
    props = {p.key: p.value for p in done.proto.graph.node[0].metadata_props}
    assert props == {
        "pkg.torch.onnx.name_scopes": scopes,
        "edgefuse.activation": "RELU",
        "edgefuse.nodes": '["ConvTranspose_t", "Relu_y"]',
        "edgefuse.ops": '["ConvTranspose", "Relu"]',
    }
    (entry,) = done.ledger.entries
    assert (entry.module, entry.saved_launches) == ("up.0", 1)
    assert entry.saved_bytes == 4 * 5 * 5 * 4


def test_two_groups_share_one_function() -> None:
    model = onnx_model(
        """g (float[1,4,5,5] x, float[4,4,3,3] w) => (float[1,4,1,1] y) {
        a = Conv(x, w)
        b = Relu(a)
        c = Conv <strides = [2, 2]> (b, w)
        y = Relu(c) }""",
        w=1,
    )
    check_pass(PASS, fires=[(model, 2, ["ConvRelu", "ConvRelu"])])
    assert len(apply(PASS, model).proto.functions) == 1


def test_refusals() -> None:
    shared = onnx_model(
        """g (float[1,4,3,3] x, float[4,4,3,3] w) => (float[1,4,1,1] y, float[1,4,1,1] z) {
        t = Conv(x, w)
        y = Relu(t)
        z = Neg(t) }""",
        w=1,
    )
    output = onnx_model(
        """g (float[1,4,3,3] x, float[4,4,3,3] w) => (float[1,4,1,1] y, float[1,4,1,1] t) {
        t = Conv(x, w)
        y = Relu(t) }""",
        w=1,
    )
    pooled = onnx_model("""g (float[1,4,3,3] x) => (float[1,4,1,1] y) {
        t = MaxPool <kernel_shape = [3, 3]> (x)
        y = Relu(t) }""")
    override = after_conv("Clip(t, lo, hi)", overridable=["hi"])
    check_pass(
        PASS,
        ignores=[
            (shared, "(t) is also read by Neg"),
            (output, "is an output of the graph"),
            (pooled, ""),
            (override, "a caller may override it"),
        ],
    )


def test_computed_bounds() -> None:
    model = onnx_model(
        """g (float[1,4,3,3] x, float[4,4,3,3] w, float[2] z) => (float[1,4,1,1] y) {
        t = Conv(x, w)
        hi = ReduceMax <keepdims = 0> (z)
        y = Clip(t, , hi) }""",
        w=np.ones((4, 4, 3, 3)),
    )
    check_pass(PASS, ignores=[(model, "(hi) is computed at run time by ReduceMax")])


def test_names_of_the_body_may_be_taken_outside() -> None:
    model = onnx_model(
        """g (float[1,4,3,3] X, float[4,4,3,3] B, float W) => (float[1,4,1,1] conv_0) {
        t = Conv(X, B)
        relu_1 = Relu(t)
        conv_0 = Mul(relu_1, W) }""",
        B=1,
        W=2.0,
    )
    check_pass(PASS, fires=[(model, 1, ["ConvRelu", "Mul"])])
    plain = onnx.inliner.inline_local_functions(apply(PASS, model).proto)
    compare(model, plain, [seeded_feed(model, seed=3)], max_relative_error=0.0)


@pytest.mark.parametrize(
    ("tail", "kind", "ops"),
    [
        ("s = Sigmoid(t) y = Mul(t, s)", "SILU", "ConvSigmoidMul"),
        ("s = Sigmoid(t) y = Mul(s, t)", "SILU", "ConvSigmoidMul"),
        ("s = HardSigmoid <alpha = 0.16666667> (t) y = Mul(s, t)",
         "HARDSWISH", "ConvHardSigmoidMul"),
        ("a = Add(t, three) c = Clip(a, lo, six) m = Mul(t, c) y = Div(m, six)",
         "HARDSWISH", "ConvAddClipMulDiv"),
        ("p = Softplus(t) h = Tanh(p) y = Mul(t, h)", "MISH", "ConvSoftplusTanhMul"),
        ("d = Div(t, root) e = Erf(d) o = Add(e, one) m = Mul(t, o) y = Mul(m, half)", "GELU",
         "ConvDivErfAddMulMul"),
        ("d = Div(t, root) e = Erf(d) o = Add(one, e) h = Mul(half, t) y = Mul(o, h)", "GELU",
         "ConvDivErfAddMulMul"),
    ],
)  # fmt: skip
def test_spelt_out_activations(tail: str, kind: str, ops: str) -> None:
    model = onnx_model(
        f"""g (float[1,4,3,3] x, float[4,4,1,1] w, float three, float lo, float six, float root,
            float one, float half) => (float[1,4,3,3] y) {{
        t = Conv(x, w)
        {tail} }}""",
        w=1, three=np.array(3.0), lo=np.array(0.0), six=np.array(6.0),
        root=np.array(2.0**0.5), one=np.array(1.0), half=np.array(0.5),
    )  # fmt: skip
    done = apply(PASS, model)
    assert done.ops == [ops]
    props = {p.key: p.value for p in done.proto.graph.node[0].metadata_props}
    assert props["edgefuse.activation"] == kind


def test_an_unknown_function_behind_a_convolution_is_left_alone() -> None:
    model = onnx_model(
        """g (float[1,4,3,3] x, float[4,4,1,1] w) => (float[1,4,3,3] y) {
        t = Conv(x, w)
        s = Exp(t)
        r = Sqrt(s)
        y = Mul(t, r) }""",
        w=1,
    )
    check_pass(PASS, ignores=[(model, "")])
