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
