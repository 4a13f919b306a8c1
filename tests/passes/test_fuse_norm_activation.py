import onnx
import onnx.inliner
import pytest

from edgefuse.graph.verify import compare, seeded_feed
from edgefuse.passes.fuse_norm_activation import PASS

from .check_pass import apply, check_pass, onnx_model

NORMS = {
    "LayerNormalization": "LayerNormalization <axis = -1> (x, s, b)",
    "InstanceNormalization": "InstanceNormalization(x, c, d)",
    "GroupNormalization": "GroupNormalization <num_groups = 2> (x, c, d)",
}


def model(norm: str, tail: str, *, opset: int = 21, outputs: str = "", **more: object) -> (
    onnx.ModelProto
):  # fmt: skip
    given = {"s": "float[6] s", "b": "float[6] b", "c": "float[4] c", "d": "float[4] d",
             "w": "float[6,6] w", "k": "float[4,4,1,1] k"}  # fmt: skip
    body = f"t = {norm} {tail}"
    used = {n: text for n, text in given.items() if f" {n})" in body or f" {n}," in body}
    return onnx_model(
        f"g (float[2,4,5,6] x, {', '.join(used.values())}) => (float[2,4,5,6] y{outputs}) "
        f"{{ {body} }}",
        opset=opset, **{name: seed for seed, name in enumerate(used)}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("tail", "name", "kind"),
    [
        ("y = Relu(t)", "Relu", "RELU"),
        ("y = Gelu(t)", "Gelu", "GELU"),
        ("y = LeakyRelu <alpha = 0.1> (t)", "LeakyRelu", "LEAKYRELU"),
        ("i = Sigmoid(t) y = Mul(t, i)", "Silu", "SILU"),
    ],
)
def test_fires(norm: str, tail: str, name: str, kind: str) -> None:
    proto = model(NORMS[norm], tail)
    check_pass(PASS, fires=[(proto, 1, [norm + name])])
    fused = apply(PASS, proto).proto
    props = {p.key: p.value for p in fused.graph.node[0].metadata_props}
    assert props["edgefuse.activation"] == kind
    plain = onnx.inliner.inline_local_functions(fused)
    compare(proto, plain, [seeded_feed(proto, seed=3)], max_relative_error=0.0)


def test_a_reshape_in_between() -> None:
    """As replace_layer_norm_axes leaves it behind."""
    proto = onnx_model(
        """g (float[2,12] x, float[12] s, int64[3] full) => (float[2,3,4] y) {
        t = LayerNormalization <axis = -1> (x, s) r = Reshape(t, full) i = Sigmoid(r)
        y = Mul(r, i) }""",
        s=1, full=[2, 3, 4],
    )  # fmt: skip
    other = onnx_model(
        """g (float[2,12] x, float[12] s, int64[3] full) => (float[2,3,4] y) {
        t = LayerNormalization <axis = -1> (x, s) r = Reshape(t, full) y = Exp(r) }""",
        s=1, full=[2, 3, 4],
    )  # fmt: skip
    check_pass(PASS, fires=[(proto, 1, ["LayerNormalizationSilu"])], ignores=[(other, "")])


def test_without_a_bias() -> None:
    proto = model("LayerNormalization <axis = -1> (x, s)", "y = Relu(t)", opset=17)
    check_pass(PASS, fires=[(proto, 1, ["LayerNormalizationRelu"])])


@pytest.mark.parametrize(
    ("norm", "tail", "reader"),
    [
        ("LayerNormalization", "y = MatMul(t, w)", "MatMul 'MatMul_y'"),
        ("LayerNormalization", "y = Conv(t, k)", "Conv 'Conv_y'"),
        ("InstanceNormalization", "y = Conv(t, k)", "Conv 'Conv_y'"),
        ("GroupNormalization", "y = Conv(t, k)", "Conv 'Conv_y'"),
        ("LayerNormalization",
         "u = Transpose <perm = [0, 1, 3, 2]> (t) v = Transpose <perm = [0, 1, 3, 2]> (u) "
         "y = Conv(v, k)", "Conv 'Conv_y'"),
    ],
)  # fmt: skip
def test_a_linear_layer_behind_it_cannot_take_it(norm: str, tail: str, reader: str) -> None:
    reason = (
        f"{norm} '{norm}_t' cannot be folded into {reader}: its mean and variance are those of "
        "each input, so they are no constants"
    )
    check_pass(PASS, ignores=[(model(NORMS[norm], tail), reason)])


def test_left_alone() -> None:
    layer = NORMS["LayerNormalization"]
    check_pass(
        PASS,
        ignores=[
            (model(layer, "y = Relu(t) z = Exp(t)", outputs=", float[2,4,5,6] z"), "read by Exp"),
            (model(layer, "y = Relu(t)", outputs=", float[2,4,5,6] t"), "output of the graph"),
            (model(layer, "y = Add(t, x)"), ""),
            (model(layer, "y = Exp(t)"), ""),
        ],
    )


@pytest.mark.parametrize("tail", ["z = Neg(m)", "z = Identity(m)"])
def test_statistics_that_something_else_reads(tail: str) -> None:
    read = onnx_model(
        f"""g (float[2,4,6] x, float[6] s) => (float[2,4,6] y, float[2,4,1] z) {{
        n, m = LayerNormalization(x, s) y = Relu(n) {tail} }}""",
        s=1,
    )
    output = onnx_model(
        """g (float[2,4,6] x, float[6] s) => (float[2,4,6] y, float[2,4,1] m) {
        n, m = LayerNormalization(x, s) y = Relu(n) }""",
        s=1,
    )
    reason = "the mean or the deviation of LayerNormalization 'LayerNormalization_n' is read"
    check_pass(PASS, ignores=[(read, reason), (output, reason)])
