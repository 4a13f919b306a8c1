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
    ("Gelu(t)", 20, "ConvGelu"),
    ('Gelu <approximate = "tanh"> (t)', 20, "ConvGelu"),
    ("Tanh(t)", 18, "ConvTanh"),
    ("Mish(t)", 18, "ConvMish"),
    ("Elu <alpha = 0.7> (t)", 18, "ConvElu"),
    ("Softplus(t)", 18, "ConvSoftplus"),
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


SPELT = [
    ("s = Sigmoid(t) y = Mul(t, s)", "SILU", "ConvSilu"),
    ("s = Sigmoid(t) y = Mul(s, t)", "SILU", "ConvSilu"),
    ("s = HardSigmoid <alpha = 0.16666667> (t) y = Mul(s, t)", "HARDSWISH", "ConvHardSwish"),
    ("a = Add(t, three) r = Clip(a, lo, six) m = Mul(t, r) y = Div(m, six)", "HARDSWISH",
     "ConvHardSwish"),
    ("a = Add(t, three) r = Clip(a, lo, six) y = Div(r, six)", "HARDSIGMOID", "ConvHardSigmoid"),
    ("p = Softplus(t) h = Tanh(p) y = Mul(t, h)", "MISH", "ConvMish"),
    ("m = Mul(t, q) s = Sigmoid(m) y = Mul(s, t)", "QUICKGELU", "ConvQuickGelu"),
    ("d = Div(t, root) e = Erf(d) o = Add(e, one) m = Mul(t, o) y = Mul(m, half)", "GELU",
     "ConvGelu"),
    ("d = Div(t, root) e = Erf(d) o = Add(one, e) h = Mul(half, t) y = Mul(o, h)", "GELU",
     "ConvGelu"),
    ("p = Pow(t, three) m = Mul(p, c) a = Add(t, m) n = Mul(a, k) h = Tanh(n) o = Add(h, one) "
     "g = Mul(t, half) y = Mul(g, o)", "GELU_TANH", "ConvGeluTanh"),
]  # fmt: skip


def spelt(tail: str, *, outputs: str = "", layer: str = "Conv") -> onnx.ModelProto:
    scalars = {"three": 3.0, "lo": 0.0, "six": 6.0, "root": 2.0**0.5, "one": 1.0, "half": 0.5}
    scalars |= {"q": 1.702, "c": 0.044715, "k": 0.7978845608028654}
    declared = "".join(f", float {name}" for name in scalars)
    arrays = {name: np.array(value) for name, value in scalars.items()}
    return onnx_model(
        f"""g (float[1,4,3,3] x, float[4,4,1,1] w{declared}) => (float[1,4,3,3] y{outputs}) {{
        t = {layer}(x, w)
        {tail} }}""",
        w=1, **arrays,
    )  # fmt: skip


@pytest.mark.parametrize(("tail", "kind", "name"), SPELT)
def test_spelt_out_activations(tail: str, kind: str, name: str) -> None:
    for layer in ("Conv", "ConvTranspose"):
        done = apply(PASS, spelt(tail, layer=layer))
        assert done.ops == [name.replace("Conv", layer)]
        props = {p.key: p.value for p in done.proto.graph.node[0].metadata_props}
        assert props["edgefuse.activation"] == kind


@pytest.mark.parametrize("tail", [row[0] for row in SPELT])
def test_a_spelt_out_activation_that_shares_its_input_is_refused(tail: str) -> None:
    shared = spelt(f"{tail} z = Neg(t)", outputs=", float[1,4,3,3] z")
    check_pass(PASS, ignores=[(shared, "the output of Conv 'Conv_t' (t) is also read by Neg")])
    output = spelt(tail, outputs=", float[1,4,3,3] t")
    check_pass(PASS, ignores=[(output, "(t) is an output of the graph")])


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("activation", "opset", "name"), CASES)
def test_every_activation_of_an_output_that_is_read_twice_is_refused(
    activation: str, opset: int, name: str, layer: str
) -> None:
    model = after_conv(activation, opset=opset, layer=layer)
    extra = onnx.helper.make_node("Neg", ["t"], ["z"])
    shape = [1, 4, 5, 5] if layer == "ConvTranspose" else [1, 4, 1, 1]
    model.graph.node.append(extra)
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, shape))
    check_pass(
        PASS, ignores=[(model, f"the output of {layer} '{layer}_t' (t) is also read by Neg")]
    )


def test_kinds_of_single_operators() -> None:
    kinds = {}
    for activation, opset, _ in CASES:
        done = apply(PASS, after_conv(activation, opset=opset), numbers=False)
        props = {p.key: p.value for p in done.proto.graph.node[0].metadata_props}
        kinds[activation] = props["edgefuse.activation"]
    assert kinds["Clip(t, lo, hi)"] == "RELU6" and kinds["Clip(t, lo)"] == "RELU"
    assert kinds["Clip(t, , hi)"] == "CLIP" and kinds["Clip <max = 6.0> (t)"] == "CLIP"
    assert kinds["Gelu(t)"] == "GELU" and kinds['Gelu <approximate = "tanh"> (t)'] == "GELU_TANH"
    assert kinds["HardSwish(t)"] == "HARDSWISH"


def test_per_channel_slopes() -> None:
    def model(slope: str, **options: object) -> onnx.ModelProto:
        text = f"""g (float[1,4,3,3] x, float[4,4,1,1] w, float[{slope}] s)
            => (float[1,4,3,3] y) {{
            t = Conv(x, w)
            y = PRelu(t, s) }}"""
        return onnx_model(text, w=1, s=2, **options)  # type: ignore[arg-type]

    check_pass(
        PASS,
        fires=[(model("4,1,1"), 1, ["ConvPRelu"]), (model("1"), 1, ["ConvPRelu"])],
        ignores=[(model("4,1,1", overridable=["s"]), "the slope of PRelu 'PRelu_y' (s) is also")],
    )


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
