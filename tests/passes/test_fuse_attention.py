import numpy as np
import onnx
import onnx.inliner
import pytest

from edgefuse.graph.verify import compare, seeded_feed
from edgefuse.passes.fuse_attention import PASS

from .check_pass import apply, check_pass, onnx_model

TURN = "kt = Transpose <perm = [0, 1, 3, 2]> (k)"


def attention(
    scores: str = "s = MatMul(q, kt)",
    *,
    turn: str = TURN,
    softmax: str = "p = Softmax <axis = -1> (s)",
    tail: str = "y = MatMul(p, v)",
    opset: int = 18,
    batch: str = "2",
    kind: str = "float",
    extra: str = "",
    outputs: str = "",
    **more: object,
) -> onnx.ModelProto:
    """Three heads, five queries of size 4, six keys."""
    given = {
        "c": (f"{kind} c", np.array(0.5)),
        "c1": (f"{kind}[1] c1", np.array([0.5])),
        "mask": (f"{kind}[5,6] mask", 3),
        "zero": (f"{kind} zero", np.array(0.0)),
        "low": (f"{kind} low", np.array(-1e4)),
        "flat": ("int64[3] flat", np.array([-1, 6, 4])),
        "full": ("int64[4] full", np.array([2, 3, 4, 6])),
        "rows": ("int64[3] rows", np.array([-1, 5, 6])),
    }
    body = f"{turn} {scores} {softmax} {tail}"
    words = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    used = {name: pair for name, pair in given.items() if name in words}
    declared = "".join(", " + pair[0] for pair in used.values())
    constants = {name: pair[1] for name, pair in used.items()} | more
    return onnx_model(
        f"""g ({kind}[{batch},3,5,4] q, {kind}[{batch},3,6,4] k, {kind}[{batch},3,6,7] v
            {declared}{extra}) => ({kind}[{batch},3,5,7] y{outputs}) {{ {body} }}""",
        opset=opset,
        **constants,  # type: ignore[arg-type]
    )


FIRES = {
    "plain": attention(),
    "scale behind": attention("r = MatMul(q, kt) s = Mul(r, c)"),
    "scale first": attention("r = MatMul(q, kt) s = Mul(c, r)"),
    "divided": attention("r = MatMul(q, kt) s = Div(r, c)"),
    "scale on q": attention("a = Mul(q, c) s = MatMul(a, kt)"),
    "scale on both": attention("a = Mul(q, c1) b = Mul(kt, c1) s = MatMul(a, b)"),
    "scale before the turn": attention(
        "a = Mul(q, c) s = MatMul(a, kt)",
        turn="b = Mul(c, k) kt = Transpose <perm = [0, 1, 3, 2]> (b)",
    ),
    "constant mask": attention("r = MatMul(q, kt) s = Add(r, mask)"),
    "scale and mask": attention("r = MatMul(q, kt) t = Mul(r, c) s = Add(mask, t)"),
    "computed mask": attention(
        "r = MatMul(q, kt) n = Neg(m) s = Add(r, n)", extra=", float[2,1,1,6] m"
    ),
    "chosen mask": attention(
        "r = MatMul(q, kt) s = Where(m, r, low)", extra=", bool[2,1,5,6] m"
    ),
    "chosen the other way round": attention(
        "r = MatMul(q, kt) s = Where(m, low, r)", extra=", bool[5,6] m"
    ),
    "guard": attention(
        "r = MatMul(q, kt) s = Add(r, mask)",
        tail="n = IsNaN(p) w = Where(n, zero, p) y = MatMul(w, v)",
    ),
    "turn as three": attention(
        turn="k1 = Reshape(k, flat) k2 = Transpose <perm = [0, 2, 1]> (k1) kt = Reshape(k2, full)"
    ),
    "turned outside": attention(turn="kt = Transpose <perm = [0, 1, 3, 2]> (k)"),
    "opset 11": attention(opset=11, softmax="p = Softmax <axis = 3> (s)"),
    "axis 3": attention(softmax="p = Softmax <axis = 3> (s)"),
    "casts": attention(
        "r = MatMul(q, kt) s = Cast <to = 11> (r)",
        tail="w = Cast <to = 1> (p) y = MatMul(w, v)",
    ),
    "float16": attention("r = MatMul(q, kt) s = Mul(r, c)", kind="float16"),
    "dynamic": attention("r = MatMul(q, kt) s = Mul(r, c)", batch="N"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    model = FIRES[name]
    outside = ["Neg"] if name == "computed mask" else []
    check_pass(PASS, fires=[(model, 1, [*outside, "Attention"])])
    plain = onnx.inliner.inline_local_functions(apply(PASS, model).proto)
    assert sorted(n.op_type for n in plain.graph.node) == sorted(
        n.op_type for n in model.graph.node
    )
    compare(model, plain, [seeded_feed(model, seed=3)], max_relative_error=0.0)


def test_keys_that_something_else_reads_are_turned_outside() -> None:
    shared = attention(tail="y = MatMul(p, v) z = Neg(kt)", outputs=", float[2,3,4,6] z")
    given = onnx_model(
        """g (float[2,5,4] q, float[2,4,6] k, float[2,6,7] v) => (float[2,5,7] y) {
        s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v) }"""
    )
    split = onnx_model(
        """g (float[2,3,5,4] q, float[2,6,3,4] k, float[2,3,6,7] v) => (float[2,3,5,7] y) {
        kt = Transpose <perm = [0, 2, 3, 1]> (k) s = MatMul(q, kt) p = Softmax(s)
        y = MatMul(p, v) }"""
    )
    check_pass(
        PASS,
        fires=[
            (shared, 1, ["Transpose", "Attention", "Neg"]),
            (given, 1, ["Attention"]),
            (split, 1, ["Transpose", "Attention"]),
        ],
    )


def test_a_view_of_the_scores_and_back() -> None:
    model = onnx_model(
        """g (float[6,5,4] q, float[6,4,6] k, float[6,6,7] v, float[2,1,5,6] mask,
            int64[4] full, int64[3] flat) => (float[6,5,7] y) {
        r = MatMul(q, k) a = Reshape(r, full) b = Add(a, mask) s = Reshape(b, flat)
        p = Softmax(s) y = MatMul(p, v) }""",
        full=[2, 3, 5, 6], flat=[6, 5, 6],
    )  # fmt: skip
    check_pass(PASS, fires=[(model, 1, ["Attention"])])


def test_two_attentions_of_one_structure_share_a_function() -> None:
    model = onnx_model(
        """g (float[2,5,4] q, float[2,4,5] k, float[2,5,4] v) => (float[2,5,4] y) {
        s = MatMul(q, k) p = Softmax(s) t = MatMul(p, v)
        u = MatMul(t, k) w = Softmax(u) y = MatMul(w, v) }"""
    )
    check_pass(PASS, fires=[(model, 2, ["Attention", "Attention"])])
    assert len(apply(PASS, model).proto.functions) == 1


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (attention(softmax="p = Softmax <axis = 2> (s)"), "is over axis 2, and not over the last"),
        (attention(softmax="p = Softmax(s)", opset=11), "is over axis 1, and not over the last"),
        (attention(tail="y = MatMul(p, v) z = Neg(p)", outputs=", float[2,3,5,6] z"),
         "the output of Softmax 'Softmax_p' (p) is also read by Neg"),
        (attention(outputs=", float[2,3,5,6] p"), "(p) is an output of the graph"),
        (attention(outputs=", float[2,3,5,6] s"), "(s) is an output of the graph"),
        (attention("r = MatMul(q, kt) s = Mul(r, t)", extra=", float[1] t"),
         "the scale of Mul 'Mul_s' (t) is a graph input"),
        (attention("r = MatMul(q, kt) s = Mul(r, c)", overridable=["c"]),
         "a caller may override it"),
        (attention("r = MatMul(q, kt) s = Mul(r, mask)"), "the scale (mask) of Mul 'Mul_s' is no"),
        (attention("r = MatMul(q, kt) s = Tanh(r)"), "Tanh 'Tanh_s' between the scores and the"),
        (attention("r = MatMul(q, kt) s = Mul(r, r)"), "is read by Mul 'Mul_s' more than once"),
        (attention(tail="o = Neg(p) y = MatMul(o, v)"), ""),
        (attention("s = Identity(m)", turn="", extra=", float[2,3,5,6] m"), ""),
    ],
)  # fmt: skip
def test_refusals(model: onnx.ModelProto, reason: str) -> None:
    check_pass(PASS, ignores=[(model, reason)])


@pytest.mark.parametrize("between", ["s = Identity(t)", "s = Tanh(t)", "s = Add(t, b)"])
def test_a_classifier_is_no_attention(between: str) -> None:
    declared = ", float[6] b" if "b)" in between else ""
    model = onnx_model(
        f"""g (float[5,4] x, float[4,6] w, float[6,7] v{declared}) => (float[5,7] y) {{
        t = MatMul(x, w) {between} p = Softmax(s) y = MatMul(p, v) }}""",
        w=1, v=2, **({"b": 3} if declared else {}),
    )  # fmt: skip
    check_pass(PASS, ignores=[(model, "")])
