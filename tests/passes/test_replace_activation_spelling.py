import numpy as np

from edgefuse.passes.replace_activation_spelling import PASS

from .check_pass import apply, check_pass, onnx_model

SIGNATURE = "g (float[1,4,3,3] x, float a, float b) => (float[1,4,3,3] y)"


def bounded(body: str, **options: object) -> object:
    values = {"a": 0.0, "b": 6.0} | options
    return onnx_model(f"{SIGNATURE} {{ {body} }}", **values)  # type: ignore[arg-type]


def test_every_spelling_of_relu6() -> None:
    spellings = [
        "m = Max(x, a) y = Min(m, b)",
        "m = Max(a, x) y = Min(b, m)",
        "m = Relu(x) y = Min(m, b)",
        "m = Min(x, b) y = Relu(m)",
        "m = Relu(x) y = Clip(m, , b)",
        "m = Clip(x, a) y = Clip(m, , b)",
        "m = Relu(x) y = Clip(m, a, b)",
        "k = Relu(x) m = Relu(k) y = Clip(m, a, b)",
    ]
    for text in spellings:
        done = apply(PASS, bounded(text))
        assert done.ops == ["Clip"], text
        low, high = (float(done.constant(n)) for n in done.proto.graph.node[0].input[1:])
        assert (low, high) == (0.0, 6.0)


def test_to_relu_and_to_nothing() -> None:
    check_pass(
        PASS,
        fires=[
            (bounded("y = Max(x, a)"), 1, ["Relu"]),
            (bounded("y = Clip(x, a)"), 1, ["Relu"]),
            (bounded("m = Relu(x) y = Clip(m, a)"), 1, ["Relu"]),
            (bounded("y = Clip(x, a, b)", b=np.finfo(np.float32).max), 1, ["Relu"]),
            (bounded("n = Neg(x) m = Clip(n) y = Neg(m)"), 1, ["Neg", "Neg"]),
            (bounded("y = Min(x, b)"), 1, ["Clip"]),
        ],
    )


def test_a_subgraph_keeps_the_clip_that_hands_out_an_outer_value() -> None:
    model = onnx_model(
        """g (bool c, float[1,4] x) => (float[1,4] y) {
        n = Neg(x)
        y = If (c) <
            then_branch = a () => (float[1,4] t) { t = Clip(n) },
            else_branch = b () => (float[1,4] e) { e = Abs(n) }
        > }"""
    )
    check_pass(PASS, ignores=[(model, "")])


def test_composition_of_bounds() -> None:
    disjoint = bounded("m = Clip(x, a, b) y = Clip(m, b)")
    done = apply(PASS, disjoint)
    assert done.ops == ["Clip"]
    assert [float(done.constant(n)) for n in done.proto.graph.node[0].input[1:]] == [6.0, 6.0]


def test_attributes_of_old_operator_sets() -> None:
    text = "g (float[1,4] x) => (float[1,4] y) {{ m = Relu(x) y = Clip {} (m) }}"
    both = onnx_model(text.format("<max = 6.0>"), opset=10)
    done = apply(PASS, both)
    assert done.ops == ["Clip"]
    assert {a.name: a.f for a in done.proto.graph.node[0].attribute} == {"min": 0.0, "max": 6.0}
    absent = onnx_model(text.format(""), opset=9)
    check_pass(PASS, fires=[(absent, 1, ["Relu"])])


def test_refusals() -> None:
    computed = onnx_model(
        """g (float[1,4] x, float[1,4] z) => (float[1,4] y) {
        m = ReduceMax <keepdims = 0> (z)
        y = Clip(x, , m) }"""
    )
    check_pass(
        PASS,
        ignores=[
            (bounded("y = Clip(x, a, b)"), ""),
            (bounded("y = Relu(x)"), ""),
            (computed, "the max bound of Clip 'Clip_y' (m) is computed at run time by ReduceMax"),
            (bounded("y = Clip(x, a, b)", overridable=["b"]), "a caller may override it"),
            (bounded("y = Min(x, b)", overridable=["b"]), "a caller may override it"),
            (bounded("y = Clip(x, b, a)"), "cross"),
        ],
    )


def test_a_shared_inner_activation_is_left() -> None:
    model = onnx_model(
        """g (float[1,4] x, float b) => (float[1,4] y, float[1,4] z) {
        m = Relu(x)
        y = Clip(m, , b)
        z = Neg(m) }""",
        b=6.0,
    )
    check_pass(PASS, ignores=[(model, "the output of Relu 'Relu_m' (m) is also read by")])


def test_bounds_that_are_no_scalar() -> None:
    vector = onnx_model(
        "g (float[1,4] x, float[4] b) => (float[1,4] y) { y = Min(x, b) }", b=[1.0, 2.0, 3.0, 4.0]
    )
    rank = onnx_model("g (float[4] x, float[1,1] b) => (float[1,4] y) { y = Min(x, b) }", b=[[1.0]])
    two = onnx_model("g (float[4] x, float[4] z) => (float[4] y) { y = Max(x, z) }")
    integer = onnx_model("g (int64[4] x, int64 b) => (int64[4] y) { y = Max(x, b) }", b=0)
    check_pass(PASS, ignores=[(vector, "has 4 values"), (rank, "rank"), (two, ""), (integer, "")])


def test_half_precision_bounds_keep_their_type() -> None:
    model = onnx_model(
        "g (float16[4] x, float16 b) => (float16[4] y) { m = Relu(x) y = Min(m, b) }", b=6.0
    )
    check_pass(PASS, fires=[(model, 1, ["Clip"])])
