import itertools

import numpy as np
import onnx
import pytest

from edgefuse.graph.verify import run_onnx
from edgefuse.passes.replace_norm_spelling import PASS

from .check_pass import apply, check_pass, onnx_model
from .norm_spellings import FOLDED, ROOT, TAIL, written_group_norm, written_norm

EVERY = list(itertools.product(("once", "twice", "two means"), ("pow", "mul", "mul twice"), ROOT))


def attributes(proto: onnx.ModelProto, op_type: str) -> dict[str, object]:
    node = next(n for n in proto.graph.node if n.op_type == op_type)
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize(("centre", "square", "root"), EVERY)
def test_every_spelling_of_the_middle(centre: str, square: str, root: str) -> None:
    model = written_norm(centre=centre, square=square, root=root)
    done = apply(PASS, model)
    assert done.ops == ["LayerNormalization"], [e.reason for e in done.ledger.entries]


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("tail", TAIL)
def test_every_tail(tail: str, keepdims: bool) -> None:
    model = written_norm(tail=tail, keepdims=keepdims)
    left = ["Identity"] if tail == "none" else []
    check_pass(PASS, fires=[(model, 1, ["LayerNormalization", *left])])
    found = apply(PASS, model)
    assert attributes(found.proto, "LayerNormalization") == {
        "axis": -1, "epsilon": pytest.approx(1e-3)
    }  # fmt: skip
    inputs = list(found.proto.graph.node[0].input)
    assert len(inputs) == 2 + ("bias" in tail)
    assert "s" in inputs or "scale" not in tail


def test_the_scale_on_the_side_of_the_root() -> None:
    model = written_norm(root="reciprocal", text=FOLDED)
    model.graph.node.pop(next(i for i, n in enumerate(model.graph.node) if n.output[0] == "n"))
    check_pass(PASS, fires=[(model, 1, ["LayerNormalization"])])


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("keepdims", [True, False])
def test_opsets(opset: int, keepdims: bool) -> None:
    check_pass(
        PASS,
        fires=[(written_norm(opset=opset, keepdims=keepdims), 1, ["LayerNormalization"])],
    )


@pytest.mark.parametrize(
    ("axes", "scale", "axis"),
    [((-2, -1), (5, 8), -2), ((2,), (8,), -1), ((1, 2), (8,), -2), ((0, 1, 2), (2, 5, 8), -3),
     ((2, 1), (5, 1), -2), ((-1,), (1, 1, 8), -1), ((-1,), (), -1), ((1, 2), (1, 5, 1), -2)],
)  # fmt: skip
def test_axes_and_scales(axes: tuple[int, ...], scale: tuple[int, ...], axis: int) -> None:
    done = apply(PASS, written_norm(axes=axes, scale=scale))
    assert done.ops == ["LayerNormalization"]
    assert attributes(done.proto, "LayerNormalization")["axis"] == axis


@pytest.mark.parametrize("shape", ["N,5,8", "N,T,8", "N,N,8"])
@pytest.mark.parametrize("keepdims", [True, False])
def test_dynamic_extents(shape: str, keepdims: bool) -> None:
    check_pass(PASS, fires=[(written_norm(shape, keepdims=keepdims), 1, ["LayerNormalization"])])


@pytest.mark.parametrize(
    ("shape", "axes", "scale"),
    [("2,8,5,6", (2, 3), (8, 1, 1)), ("2,8,5,6", (-1, -2), (1, 8, 1, 1)), ("2,8,6", (2,), (8, 1)),
     ("2,8,3,4,5", (2, 3, 4), (8, 1, 1, 1)), ("N,8,H,W", (2, 3), (8, 1, 1))],
)  # fmt: skip
def test_instance_normalization(shape: str, axes: tuple[int, ...], scale: tuple[int, ...]) -> None:
    model = written_norm(shape, axes=axes, scale=scale)
    check_pass(PASS, fires=[(model, 1, ["InstanceNormalization"])])
    plain = written_norm(shape, axes=axes, tail="none")
    wanted = "LayerNormalization" if len(axes) == 1 else "InstanceNormalization"
    check_pass(PASS, fires=[(plain, 1, [wanted, "Identity"])])


def test_the_scale_tells_layer_from_instance() -> None:
    layer = written_norm("2,8,5,6", axes=(2, 3), scale=(5, 6))
    instance = written_norm("2,8,5,6", axes=(2, 3), scale=(8, 1, 1))
    channels_too = written_norm("2,8,5,6", axes=(2, 3), scale=(8, 5, 6))
    check_pass(
        PASS,
        fires=[
            (layer, 1, ["LayerNormalization"]),
            (instance, 1, ["InstanceNormalization"]),
            (channels_too, 1, ["InstanceNormalization", "Mul", "Add"]),
        ],
    )


def test_group_normalization() -> None:
    model = written_group_norm(opset=21)
    check_pass(
        PASS,
        fires=[
            (model, 1, ["GroupNormalization"]),
            (written_group_norm(opset=21, batch="N"), 1, ["GroupNormalization"]),
            (written_group_norm(opset=21, text="y = Mul(s, k)"), 1, ["GroupNormalization"]),
            (written_group_norm(opset=21, text="y = Neg(k)"), 1, ["GroupNormalization", "Neg"]),
            (written_group_norm(opset=21, text="y = Add(k, b)"), 1, ["GroupNormalization"]),
            (written_group_norm(opset=21, target=(2, 2, 4, 30)), 1, ["GroupNormalization"]),
        ],
        ignores=[
            (written_group_norm(opset=18), "opset 18 has no GroupNormalization"),
            (written_group_norm(opset=21, inner_scale=2.0), "is not 1 for every group"),
            (written_group_norm(opset=21, target=(1, 2, 240)), "is not known to stay"),
            (written_group_norm(opset=21, batch="N", target=(-1, 2, 120)), ""),
        ],
    )
    assert attributes(apply(PASS, model).proto, "GroupNormalization") == {
        "epsilon": pytest.approx(1e-3), "num_groups": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "outputs", "reason"),
    [
        ("t = Mul(n, s) y = Add(t, b) z = Neg(m)", ", float[2,5,1] z",
         "ReduceMean 'ReduceMean_m' (m) is also read by Neg"),
        ("t = Mul(n, s) y = Add(t, b) z = Exp(v)", ", float[2,5,1] z", "(v) is also read by Exp"),
        ("t = Mul(n, s) y = Add(t, b) z = Exp(c)", ", float[2,5,8] z", "(c) is also read by Exp"),
        ("t = Mul(n, s) y = Add(t, b)", ", float[2,5,1] q", "(q) is an output of the graph"),
    ],
)  # fmt: skip
def test_inner_values_that_something_else_reads(extra: str, outputs: str, reason: str) -> None:
    check_pass(PASS, ignores=[(written_norm(text=extra, outputs=outputs), reason)])


def test_a_normalised_value_that_is_read_twice_keeps_its_scale_outside() -> None:
    model = written_norm(text="t = Mul(n, s) y = Add(t, b) z = Exp(n)", outputs=", float[2,5,8] z")
    check_pass(PASS, fires=[(model, 1, ["LayerNormalization", "Mul", "Add", "Exp"])])


def test_a_residual_around_it_stays_outside() -> None:
    model = written_norm(text="t = Mul(n, s) u = Add(t, b) y = Add(u, x)")
    check_pass(PASS, fires=[(model, 1, ["LayerNormalization", "Add"])])


def test_two_in_a_row() -> None:
    second = """t = Mul(n, s) x2 = Add(t, b) m2 = ReduceMean(x2, axes) c2 = Sub(x2, m2)
        p2 = Mul(c2, c2) v2 = ReduceMean(p2, axes) e2 = Add(epsilon, v2) q2 = Sqrt(e2)
        y = Div(c2, q2)"""
    check_pass(
        PASS,
        fires=[(written_norm(text=second), 2, ["LayerNormalization", "LayerNormalization"])],
    )


@pytest.mark.parametrize("kind", ["float16", "double", "bfloat16"])
def test_other_types_keep_their_precision(kind: str) -> None:
    model = written_norm(kind=kind)
    name = {"float16": "FLOAT16", "double": "DOUBLE", "bfloat16": "BFLOAT16"}[kind]
    check_pass(PASS, ignores=[(model, f"this one in {name}")], numbers=kind != "bfloat16")


def test_overridable_scale_and_epsilon() -> None:
    scale = written_norm(overridable=["s"])
    epsilon = written_norm(overridable=["epsilon"])
    check_pass(
        PASS,
        fires=[(scale, 1, ["LayerNormalization", "Mul", "Add"])],
        ignores=[(epsilon, "a caller may override it")],
    )


def test_refusals() -> None:
    per_token = onnx_model(
        """g (float[2,5,8] x, float[5,1] epsilon, int64[1] axes) => (float[2,5,8] y) {
        m = ReduceMean(x, axes) c = Sub(x, m) p = Mul(c, c) v = ReduceMean(p, axes)
        e = Add(v, epsilon) q = Sqrt(e) y = Div(c, q) }""",
        epsilon=np.ones((5, 1)), axes=[-1],
    )  # fmt: skip
    computed = onnx_model(
        """g (float[2,5,8] x, int64[1] axes) => (float[2,5,8] y) {
        m = ReduceMean(x, axes) c = Sub(x, m) p = Mul(c, c) v = ReduceMean(p, axes)
        w = Abs(m) e = Add(v, w) q = Sqrt(e) y = Div(c, q) }""",
        axes=[-1],
    )
    other_axes = onnx_model(
        """g (float[2,8,8] x, float epsilon, int64[1] axes, int64[1] others)
            => (float[2,8,8] y) {
        m = ReduceMean(x, axes) c = Sub(x, m) p = Mul(c, c) v = ReduceMean(p, others)
        e = Add(v, epsilon) q = Sqrt(e) y = Div(c, q) }""",
        epsilon=1e-3, axes=[1], others=[2],
    )  # fmt: skip
    negative = onnx_model(
        """g (float[2,5,8] x, float epsilon, int64[1] axes) => (float[2,5,8] y) {
        m = ReduceMean(x, axes) c = Sub(x, m) p = Mul(c, c) v = ReduceMean(p, axes)
        e = Add(v, epsilon) q = Sqrt(e) y = Div(c, q) }""",
        epsilon=-1e-3, axes=[-1],
    )  # fmt: skip
    check_pass(
        PASS,
        ignores=[
            (written_norm("2,8,5,8", axes=(1,)), "averages over the axes [1] of 4"),
            (written_norm("2,5,8,8", axes=(1, 3)), "averages over the axes [1, 3] of 4"),
            (per_token, "is no scalar"),
            (negative, "the epsilon (epsilon) of Add 'Add_e' is below 0"),
            (computed, "the epsilon of Add 'Add_e' (w) is computed at run time by Abs"),
            (other_axes, "is not (x - mean) / sqrt(variance + epsilon)"),
            (written_norm(text="y = Mul(n, q)"), "(q) is also read by Mul"),
            (written_norm("2,5,D", tail="none"), "the extents of x are not static"),
            (written_norm(opset=16), "opset 16 has no LayerNormalization"),
            (written_norm(centre="none", tail="scale"), ""),
        ],
    )


@pytest.mark.parametrize(
    "model",
    [
        written_norm("2,8,1", scale=(1,)),
        written_norm("2,8,1,1", axes=(2, 3), scale=(8, 1, 1)),
        onnx_model(
            """g (float[2,3] x, float epsilon, int64[0] axes) => (float[2,3] y) {
            m = ReduceMean <noop_with_empty_axes = 1> (x, axes) c = Sub(x, m) p = Mul(c, c)
            v = ReduceMean <noop_with_empty_axes = 1> (p, axes) e = Add(v, epsilon)
            q = Sqrt(e) y = Div(c, q) }""",
            epsilon=1e-3, axes=np.zeros(0),
        ),
    ],
)  # fmt: skip
def test_means_of_one_element(model: onnx.ModelProto) -> None:
    """onnxruntime has no LayerNormalization of one element."""
    check_pass(PASS, ignores=[(model, "averages over one element")])


def test_a_deviation_is_no_variance() -> None:
    """(x - mean) / (sqrt(variance) + epsilon), as some write it, is another function."""
    model = onnx_model(
        """g (float[2,5,8] x, float epsilon, int64[1] axes) => (float[2,5,8] y) {
        m = ReduceMean(x, axes) c = Sub(x, m) p = Mul(c, c) v = ReduceMean(p, axes)
        q = Sqrt(v) e = Add(q, epsilon) y = Div(c, e) }""",
        epsilon=1e-3, axes=[-1],
    )  # fmt: skip
    check_pass(PASS, ignores=[(model, "is not (x - mean) / sqrt(variance + epsilon)")])


def test_inside_a_subgraph() -> None:
    text = """g (bool flag, float[2,8] x, float two, float epsilon, int64[1] axes)
        => (float[2,8] y) {
        y = If (flag) <
            then_branch = t () => (float[2,8] n) {
                m = ReduceMean(x, axes) c = Sub(x, m) p = Pow(c, two)
                v = ReduceMean(p, axes) e = Add(v, epsilon) q = Sqrt(e) n = Div(c, q) },
            else_branch = f () => (float[2,8] k) { k = Neg(x) }> }"""
    model = onnx_model(text, two=2.0, epsilon=1e-3, axes=[-1])
    done = apply(PASS, model)
    assert done.ledger.fired(PASS.name) == 1
    (branch,) = (a.g for a in done.proto.graph.node[0].attribute if a.name == "then_branch")
    assert [n.op_type for n in branch.node] == ["LayerNormalization"]


CASE = np.array([[1, 2], [3, 7]], np.float32)
NORMALISED = {1e-3: [[-0.99800, 0.99800], [-0.99988, 0.99988]]}


def case_10(text: str, **constants: object) -> onnx.ModelProto:
    return onnx_model(
        f"""g (float[2,2] x, float two, float epsilon, int64[1] axes{text.split("|")[0]})
            => (float[2,2] y) {{ {text.split("|")[1]} }}""",
        two=2.0, epsilon=1e-3, **({"axes": [-1]} | constants),  # type: ignore[arg-type]
    )  # fmt: skip


def value(proto: onnx.ModelProto, x: np.ndarray = CASE) -> np.ndarray:
    (output,) = run_onnx(apply(PASS, proto).proto, [{"x": x}])
    return np.asarray(output["y"])


KEEP = """m = ReduceMean(x, axes) c = Sub(x, m) p = Pow(c, two) v = ReduceMean(p, axes)
    e = Add(v, epsilon) q = Sqrt(e)"""
DROP = KEEP.replace("ReduceMean(", "ReduceMean <keepdims = 0> (")
WIDE = """m0 = ReduceMean <keepdims = 0> (x, axes) m = Unsqueeze(m0, axes) c = Sub(x, m)
    p = Pow(c, two) v0 = ReduceMean <keepdims = 0> (p, axes) v = Unsqueeze(v0, axes)
    e = Add(v, epsilon) q = Sqrt(e)"""


def test_case_10_keepdims_1_over_the_last_axis_is_the_true_one() -> None:
    model = case_10(f"|{KEEP} y = Div(c, q)")
    assert apply(PASS, model).ops == ["LayerNormalization"]
    np.testing.assert_allclose(value(model), NORMALISED[1e-3], atol=1e-5)


def test_case_10_keepdims_0_made_wide_again_is_the_true_one() -> None:
    model = case_10(f"|{WIDE} y = Div(c, q)")
    assert apply(PASS, model).ops == ["LayerNormalization"]
    np.testing.assert_allclose(value(model), NORMALISED[1e-3], atol=1e-5)


def test_case_10_keepdims_0_takes_the_means_off_the_wrong_way_round() -> None:
    """x - [1.5, 5]: column 0 loses the mean of row 0. Its own squares are averaged by row."""
    model = case_10(f"|{DROP} y = Div(c, q)")
    centre = CASE - [1.5, 5.0]
    wanted = centre / np.sqrt((centre**2).mean(-1) + 1e-3)
    np.testing.assert_allclose(value(model), wanted, rtol=1e-5)
    check_pass(PASS, ignores=[(model, "is not (x - mean) / sqrt(variance + epsilon)")])


def test_case_10_over_the_first_axis() -> None:
    model = case_10(f"|{KEEP} y = Div(c, q)", axes=[0])
    np.testing.assert_allclose(value(model), [[-0.9995, -0.99992], [0.9995, 0.99992]], atol=1e-5)
    check_pass(PASS, ignores=[(model, "averages over the axes [0] of 2")])


def test_case_10_a_scale_of_the_wrong_shape_stays_behind() -> None:
    """[[2], [3]] scales rows, where LayerNormalization scales columns."""
    model = case_10(f", float[2,1] s|{KEEP} n = Div(c, q) y = Mul(n, s)", s=[[2.0], [3.0]])
    assert apply(PASS, model).ops == ["LayerNormalization", "Mul"]
    np.testing.assert_allclose(value(model), [[-1.996, 1.996], [-2.99963, 2.99963]], atol=1e-4)
    right = case_10(f", float[2] s|{KEEP} n = Div(c, q) y = Mul(n, s)", s=[2.0, 3.0])
    assert apply(PASS, right).ops == ["LayerNormalization"]
    np.testing.assert_allclose(value(right), [[-1.996, 2.99401], [-1.99975, 2.99963]], atol=1e-4)


@pytest.mark.parametrize("keepdims", [True, False])
def test_case_10_rank_1(keepdims: bool) -> None:
    """Without keepdims the mean of a vector is a scalar, which does broadcast rightly."""
    body = KEEP if keepdims else DROP
    model = onnx_model(
        f"""g (float[2] x, float two, float epsilon, int64[1] axes) => (float[2] y) {{
        {body} y = Div(c, q) }}""",
        two=2.0, epsilon=1e-3, axes=[0],
    )  # fmt: skip
    assert apply(PASS, model).ops == ["LayerNormalization"]
    np.testing.assert_allclose(value(model, CASE[1]), NORMALISED[1e-3][1], atol=1e-5)


def test_case_10_epsilon_counts() -> None:
    """On a row of nearly equal values epsilon is most of the denominator."""
    model = case_10(f"|{KEEP} y = Div(c, q)")
    x = np.array([[1, 1.02], [3, 3]], np.float32)
    np.testing.assert_allclose(value(model, x), [[-0.30151, 0.30151], [0, 0]], atol=1e-4)
