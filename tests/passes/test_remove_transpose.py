import onnx

from edgefuse.passes.remove_transpose import PASS

from .check_pass import apply, check_pass, onnx_model

X = "[2,3,4,5]"


def turned(body: str, y: str, x: str = X) -> onnx.ModelProto:
    """``body`` from ``x``; ``t`` goes through a Relu to the output."""
    return onnx_model(f"g (float{x} x) => (float{y} y) {{ {body} y = Relu(t) }}")


def test_pairs_and_identity() -> None:
    to_last, to_first = "<perm = [0,2,3,1]>", "<perm = [0,3,1,2]>"
    check_pass(
        PASS,
        fires=[
            (turned("t = Transpose <perm = [0,1,2,3]> (x)", X), 1, ["Relu"]),
            (turned(f"a = Transpose {to_last} (x) t = Transpose {to_first} (a)", X), 1, ["Relu"]),
            (turned("a = Transpose(x) t = Transpose(a)", X), 1, ["Relu"]),
            (turned(f"a = Transpose {to_last} (x) t = Transpose {to_last} (a)", "[2,5,3,4]"), 1,
             ["Transpose", "Relu"]),
            (turned(f"a = Transpose {to_last} (x) b = Transpose {to_last} (a) "
                    f"t = Transpose {to_last} (b)", X), 2, ["Relu"]),
            (turned("a = Transpose <perm = [1,0]> (x) t = Transpose(a)", "[N,4]", "[N,4]"), 1,
             ["Relu"]),
        ],
        ignores=[(turned("t = Transpose <perm = [1,0]> (x)", "[4,N]", "[N,4]"), "")],
    )  # fmt: skip


def test_the_order_of_composition() -> None:
    body = "a = Transpose <perm = [1,2,0]> (x) t = Transpose <perm = [0,2,1]> (a)"
    done = apply(PASS, turned(body, "[4,3,5]", "[3,4,5]"))
    assert list(done.proto.graph.node[0].attribute[0].ints) == [1, 0, 2]


def test_pairs_meet_through_pointwise_operators() -> None:
    body = """a = Transpose <perm = [0,2,3,1]> (x)
        c = Constant <value_float = 2.0> ()
        m = Mul(c, a)
        s = Sigmoid(m)
        t = Transpose <perm = [0,3,1,2]> (s)"""
    dynamic = body.replace("[0,2,3,1]", "[1,0]").replace("[0,3,1,2]", "[1,0]")
    check_pass(
        PASS,
        fires=[
            (turned(body, X), 1, ["Mul", "Sigmoid", "Relu"]),
            (turned(dynamic, "[N,4]", "[N,4]"), 1, ["Mul", "Sigmoid", "Relu"]),
        ],
    )


def test_what_stays() -> None:
    channel = onnx_model(
        """g (float[2,3,4,5] x, float[3] c) => (float[2,3,4,5] y) {
        a = Transpose <perm = [0,2,3,1]> (x)
        m = Mul(a, c)
        y = Transpose <perm = [0,3,1,2]> (m) }""", c=1
    )  # fmt: skip
    other = turned("a = Transpose <perm = [0,2,3,1]> (x) r = Neg(a) "
                   "t = Transpose <perm = [0,2,3,1]> (r)", "[2,5,3,4]")  # fmt: skip
    middle = onnx_model("""g (float[2,3,4] x) => (float[2,3,4] y, float[2,4,3] z) {
        a = Transpose <perm = [0,2,1]> (x)
        z = Relu(a)
        y = Transpose <perm = [0,2,1]> (z) }""")
    shared = onnx_model("""g (float[2,3,4] x) => (float[4,2,3] y, float[2,4,3] z) {
        a = Transpose <perm = [0,2,1]> (x)
        z = Relu(a)
        t = Transpose <perm = [1,0,2]> (a)
        y = Neg(t) }""")
    squared = turned("a = Transpose(x) s = Mul(a, a) t = Transpose(s)", X)
    straight = onnx_model("g (float[3] x) => (float[3] y) { y = Transpose <perm = [0]> (x) }")
    check_pass(
        PASS,
        ignores=[
            (channel, ""),
            (other, ""),
            (middle, ""),
            (shared, "the output of Transpose 'Transpose_a' (a) is also read by Relu"),
            (squared, ""),
            (straight, ""),
        ],
    )


def test_a_pair_goes_even_where_the_first_is_read_too() -> None:
    model = onnx_model("""g (float[2,3,4] x) => (float[2,3,4] y, float[2,4,3] z) {
        a = Transpose <perm = [0,2,1]> (x)
        z = Relu(a)
        t = Transpose <perm = [0,2,1]> (a)
        y = Neg(t) }""")
    check_pass(PASS, fires=[(model, 1, ["Transpose", "Relu", "Neg"])])


def test_names_of_outputs_survive() -> None:
    model = onnx_model("""g (float[2,3] x) => (float[2,3] y) {
        r = Relu(x)
        a = Transpose(r)
        y = Transpose(a) }""")
    done = apply(PASS, model)
    assert (done.ops, done.proto.graph.output[0].name) == (["Relu"], "y")


def test_across_a_branch() -> None:
    model = onnx_model("""g (float[2,3] x, bool c) => (float[2,3] y) {
        a = Transpose(x)
        y = If (c) <
            then_branch = p () => (float[2,3] u) { u = Transpose(a) },
            else_branch = q () => (float[2,3] v) { w = Transpose(a) v = Neg(w) } > }""")
    done = apply(PASS, model)
    assert done.ledger.fired(PASS.name) == 1
    branches = [a.g for a in done.proto.graph.node[-1].attribute]
    assert sorted([n.op_type for n in b.node] for b in branches) == [["Neg"], ["Transpose"]]
