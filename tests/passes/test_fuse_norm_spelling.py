import onnx
import onnx.inliner
import pytest

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.verify import compare, seeded_feed
from edgefuse.passes.fuse_norm_spelling import PASS

from .check_pass import apply, check_pass, onnx_model
from .norm_spellings import ROOT, written_group_norm, written_norm


def rms(**more: object) -> onnx.ModelProto:
    return written_norm(centre="none", **({"tail": "scale"} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("square", ["pow", "mul"])
@pytest.mark.parametrize("root", ROOT)
def test_every_spelling_of_rms_norm(square: str, root: str) -> None:
    check_pass(PASS, fires=[(rms(square=square, root=root), 1, ["RmsNormalization"])])


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
@pytest.mark.parametrize("keepdims", [True, False])
def test_opsets(opset: int, keepdims: bool) -> None:
    layer = written_norm(opset=opset, keepdims=keepdims)
    check_pass(
        PASS,
        fires=[
            (rms(opset=opset, keepdims=keepdims), 1, ["RmsNormalization"]),
            (layer, 1, ["LayerNormalization"]),
        ],
    )
    fused = apply(PASS, layer).proto
    assert fused.graph.node[0].domain == "edgefuse"
    plain = onnx.inliner.inline_local_functions(fused)
    assert [n.op_type for n in plain.graph.node] == [n.op_type for n in layer.graph.node]
    compare(layer, plain, [seeded_feed(layer, seed=3)], max_relative_error=0.0)


@pytest.mark.parametrize("kind", ["float16", "double", "bfloat16"])
def test_other_types(kind: str) -> None:
    check_pass(
        PASS,
        fires=[
            (rms(kind=kind), 1, ["RmsNormalization"]),
            (written_norm(kind=kind), 1, ["LayerNormalization"]),
        ],
        numbers=kind != "bfloat16",
    )
    if kind != "bfloat16":  # not a type of InstanceNormalization
        group = written_group_norm(kind=kind)
        check_pass(PASS, fires=[(group, 1, ["GroupNormalization"])], numbers=kind == "float16")


@pytest.mark.parametrize(
    ("axes", "scale"), [((1, 2), (5, 8)), ((2,), (8,)), ((0, 1, 2), (2, 5, 8)), ((-1,), ())]
)
def test_axes_and_scales_of_rms_norm(axes: tuple[int, ...], scale: tuple[int, ...]) -> None:
    check_pass(PASS, fires=[(rms(axes=axes, scale=scale), 1, ["RmsNormalization"])])


@pytest.mark.parametrize("shape", ["N,T,D", "N,5,8", "8"])
def test_shapes_of_rms_norm(shape: str) -> None:
    check_pass(PASS, fires=[(rms(shape=shape, tail="none"), 1, ["RmsNormalization", "Identity"])])


def test_group_and_instance_norm() -> None:
    instance = written_norm("2,8,5,6", axes=(2, 3), scale=(8, 1, 1), opset=13, kind="float16")
    check_pass(
        PASS,
        fires=[
            (written_group_norm(), 1, ["GroupNormalization"]),
            (written_group_norm(opset=13, batch="N"), 1, ["GroupNormalization"]),
            (written_group_norm(text="y = Neg(k)"), 1, ["GroupNormalization", "Neg"]),
            (instance, 1, ["InstanceNormalization"]),
        ],
    )


@pytest.mark.parametrize(
    ("tail", "name", "kind"),
    [
        ("t = Mul(n, s) y = Relu(t)", "Relu", "RELU"),
        ("t = Mul(n, s) g = Sigmoid(t) y = Mul(t, g)", "Silu", "SILU"),
        ("t = Mul(n, s) y = HardSwish(t)", "HardSwish", "HARDSWISH"),
    ],
)
def test_the_activation_joins_the_group(tail: str, name: str, kind: str) -> None:
    layer = written_norm(text=tail, opset=16)
    square = rms(text=tail)
    group = written_group_norm(text=tail.replace("n,", "k,"))
    for model, norm in ((layer, "Layer"), (square, "Rms"), (group, "Group")):
        check_pass(PASS, fires=[(model, 1, [f"{norm}Normalization{name}"])])
        props = {p.key: p.value for p in apply(PASS, model).proto.graph.node[0].metadata_props}
        assert props["edgefuse.activation"] == kind


def test_two_of_one_name_and_two_structures() -> None:
    model = written_norm(
        opset=16,
        text="""t = Mul(n, s) u = Add(t, b) p2 = Mul(u, u)
        v2 = ReduceMean <axes = [-1]> (p2) e2 = Add(v2, epsilon) q2 = Sqrt(e2) y = Div(u, q2)""",
    )
    check_pass(PASS, fires=[(model, 2, ["LayerNormalization", "RmsNormalization"])])
    twice = written_norm(
        opset=16,
        tail="none",
        text="""m2 = ReduceMean <axes = [-1]> (n) c2 = Sub(n, m2) p2 = Mul(c2, c2)
        v2 = ReduceMean <axes = [-1]> (p2) e2 = Add(v2, epsilon) q2 = Sqrt(e2) y = Div(c2, q2)""",
    )
    check_pass(PASS, fires=[(twice, 2, ["LayerNormalization", "LayerNormalization_2"])])


def test_refusals() -> None:
    norm = onnx_model(
        """g (float[2,5,8] x, float two, int64[1] axes) => (float[2,5,1] y) {
        p = Pow(x, two) v = ReduceMean(p, axes) y = Sqrt(v) }""",
        two=2.0, axes=[-1],
    )  # fmt: skip
    root = onnx_model("g (float[2,5] x) => (float[2,5] y) { a = Abs(x) y = Sqrt(a) }")
    check_pass(
        PASS,
        ignores=[
            (rms(shape="2,8,5", axes=(1,), scale=(8, 1)), "averages over the axes [1] of 3"),
            (rms(text="y = Mul(n, q)"), "(q) is also read by Mul"),
            (rms(text="y = Mul(n, s) z = Neg(v)", outputs=", float[2,5,1] z"), "read by Neg"),
            (norm, "is not (x - mean)"),
            (root, ""),
            (written_norm("2,8,5", axes=(1,), scale=(8, 1)), ""),
            (written_group_norm(inner_scale=2.0), ""),
        ],
    )


def test_an_overridable_scale_stays_outside() -> None:
    check_pass(PASS, fires=[(rms(overridable=["s"]), 1, ["RmsNormalization", "Mul"])])


def test_a_centred_value_may_be_what_is_normalised() -> None:
    """x - bias is no mean: RMSNorm of the difference."""
    model = onnx_model(
        """g (float[2,8] x, float[8] b, float epsilon, int64[1] axes) => (float[2,8] y) {
        c = Sub(x, b) p = Mul(c, c) v = ReduceMean(p, axes) e = Add(v, epsilon) q = Sqrt(e)
        y = Div(c, q) }""",
        b=1, epsilon=1e-6, axes=[-1],
    )  # fmt: skip
    check_pass(PASS, fires=[(model, 1, ["Sub", "RmsNormalization"])])


def refusals(model: onnx.ModelProto) -> list[tuple[str, str, str]]:
    _, ledger = run_passes(prepare(model))
    return [(e.pass_name, e.reason, e.remedy) for e in ledger.entries if e.status == "refused"]


def test_what_a_group_stands_in_for_stays_in_the_ledger() -> None:
    assert refusals(written_norm(opset=13)) == [
        (
            "replace_norm_spelling",
            "opset 13 has no LayerNormalization: it can only become a group",
            "export at opset 17 or later",
        )
    ]


def test_a_norm_over_other_axes_is_explained_though_its_root_joins_a_chain() -> None:
    found = refusals(written_norm("2,8,5,8", axes=(1,)))
    assert ("replace_norm_spelling", "averages over the axes [1] of 4") in [
        (name, reason.split("ReduceMean_v' ")[-1].split(":")[0]) for name, reason, _ in found
    ]
