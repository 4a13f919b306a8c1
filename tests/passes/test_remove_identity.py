import numpy as np
import onnx

from edgefuse.passes.remove_identity import PASS

from .check_pass import apply, check_pass, onnx_model

CHAIN = onnx_model("""g (float[1,4] x) => (float[1,4] y) {
    a = Identity(x)
    b = Relu(a)
    c = Dropout(b)
    y = Identity(c) }""")


def test_chain_and_output_name() -> None:
    check_pass(PASS, fires=[(CHAIN, 3, ["Relu"])])
    assert apply(PASS, CHAIN).proto.graph.output[0].name == "y"


def test_bias_through_identity_becomes_a_constant() -> None:
    model = onnx_model(
        """g (float[1,3,4,4] x, float[8,3,3,3] w, float[8] b) => (float[1,8,2,2] y) {
        c = Identity(b)
        y = Conv(x, w, c) }""",
        w=1,
        b=2,
    )
    check_pass(PASS, fires=[(model, 1, ["Conv"])])
    assert list(apply(PASS, model).proto.graph.node[0].input) == ["x", "w", "b"]


def test_left_alone() -> None:
    straight = onnx_model("g (float[1,4] x) => (float[1,4] y) { y = Identity(x) }")
    twice = onnx_model("""g (float[1,4] x) => (float[1,4] y, float[1,4] z) {
        y = Relu(x)
        z = Identity(y) }""")
    mask = onnx_model("""g (float[1,4] x) => (float[1,4] y, bool[1,4] m) {
        y, m = Dropout(x) }""")
    computed = onnx_model("""g (float[1,4] x, float r, bool t) => (float[1,4] y) {
        d = Dropout(x, r, t)
        y = Relu(d) }""", r=0.5)  # fmt: skip
    check_pass(PASS, ignores=[(straight, ""), (twice, ""), (mask, "the mask of Dropout")])
    check_pass(PASS, ignores=[(computed, "is a graph input")], numbers=False)


def test_identity_in_a_subgraph() -> None:
    model = onnx_model("""g (float[1,4] x, bool c) => (float[1,4] y) {
        y = If (c) <
            then_branch = a () => (float[1,4] u) { s = Identity(x) u = Relu(s) },
            else_branch = b () => (float[1,4] v) { v = Identity(x) } > }""")
    check_pass(PASS, fires=[(model, 1, ["If"])])


def neutral(operator: str, constant: str, number: float, x: str = "[1,4,4,4]") -> onnx.ModelProto:
    text = f"""g (float{x} x, float{constant} c) => (float{x} y) {{
        r = Relu(x)
        t = {operator}
        y = Relu(t) }}"""
    return onnx_model(text, c=np.full([int(e) for e in constant[1:-1].split(",") if e], number))


def test_constants_that_change_nothing() -> None:
    gone = ["Relu", "Relu"]
    check_pass(
        PASS,
        fires=[
            (neutral("Mul(r, c)", "[]", 1), 1, gone),
            (neutral("Mul(c, r)", "[4,1,1]", 1), 1, gone),
            (neutral("Add(c, r)", "[1]", 0), 1, gone),
            (neutral("Sub(r, c)", "[1,4,1,1]", 0), 1, gone),
            (neutral("Div(r, c)", "[]", 1, "[N,4]"), 1, gone),
            (neutral("Pow(r, c)", "[]", 1), 1, gone),
        ],
        ignores=[
            (neutral("Mul(r, c)", "[]", 2), ""),
            (neutral("Sub(c, r)", "[]", 0), ""),
            (neutral("Pow(c, r)", "[1,4,4,4]", 1), ""),
            (neutral("Add(r, c)", "[]", 1), ""),
        ],
    )


def test_a_neutral_constant_that_broadcasts_stays() -> None:
    wider = onnx_model(
        """g (float[1,4] x, float[3,4] c) => (float[3,4] y) {
        t = Add(x, c)
        y = Relu(t) }""", c=np.zeros((3, 4))
    )  # fmt: skip
    deeper = onnx_model(
        """g (float[1,4] x, float[1,1,1] c) => (float[1,1,4] y) {
        t = Mul(x, c)
        y = Relu(t) }""", c=np.ones((1, 1, 1))
    )  # fmt: skip
    override = onnx_model(
        """g (float[1,4] x, float[1] c) => (float[1,4] y) {
        t = Mul(x, c)
        y = Relu(t) }""", c=[1.0], overridable=["c"]
    )  # fmt: skip
    check_pass(PASS, ignores=[(wider, ""), (deeper, ""), (override, "")])


def padded(pads: list[int], opset: int = 18) -> onnx.ModelProto:
    return onnx_model(
        """g (float[1,2,N,3] x, int64[8] p) => (float[1,2,M,3] y) {
        t = Pad(x, p)
        y = Relu(t) }""", p=pads, opset=opset
    )  # fmt: skip


def test_pads_slices_and_joins_of_nothing() -> None:
    slices = """g (float[N,4] x, int64[2] s, int64[2] e) => (float[M,4] y) {
        t = Slice(x, s, e)
        y = Relu(t) }"""
    end = 2**63 - 1
    joined = onnx_model("g (float[2] x) => (float[2] y) { t = Concat <axis = 0> (x) y = Relu(t) }")
    check_pass(
        PASS,
        fires=[
            (padded([0] * 8), 1, ["Relu"]),
            (padded([0] * 8, opset=11), 1, ["Relu"]),
            (onnx_model(slices, s=[0, 0], e=[end, 4]), 1, ["Relu"]),
            (joined, 1, ["Relu"]),
        ],
        ignores=[
            (padded([0, 0, 0, 0, 0, 0, 1, 0]), ""),
            (onnx_model(slices, s=[0, 0], e=[4, 4]), ""),
            (onnx_model(slices, s=[1, 0], e=[end, 4]), ""),
        ],
    )
