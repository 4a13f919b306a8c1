import onnx

from edgefuse.passes.remove_reshape import PASS

from .check_pass import apply, check_pass, onnx_model


def viewed(body: str, y: str, x: str = "[2,3,4]", **shapes: list[int]) -> onnx.ModelProto:
    """``body`` from ``r``, Relu of ``x``, to ``t``; each keyword is a constant shape."""
    declared = "".join(f", int64[{len(s)}] {name}" for name, s in shapes.items())
    text = f"g (float{x} x{declared}) => (float{y} y) {{ r = Relu(x) {body} y = Neg(t) }}"
    return onnx_model(text, **shapes)


def test_what_changes_nothing() -> None:
    gone, x, n = ["Relu", "Neg"], "[2,3,4]", "[N,3,4]"
    reshape = "t = Reshape(r, s)"
    check_pass(
        PASS,
        fires=[
            (viewed(reshape, x, s=[2, 3, 4]), 1, gone),
            (viewed(reshape, x, s=[0, 0, -1]), 1, gone),
            (viewed(reshape, x, s=[-1, 3, 4]), 1, gone),
            (viewed(reshape, n, n, s=[-1, 3, 4]), 1, gone),
            (viewed(reshape, n, n, s=[0, 3, 4]), 1, gone),
            (viewed(reshape, n, n, s=[0, -1, 4]), 1, gone),
            (viewed("t = Flatten(r)", "[N,4]", "[N,4]"), 1, gone),
            (viewed("t = Flatten <axis = -1> (r)", "[2,4]", "[2,4]"), 1, gone),
            (viewed("t = Expand(r, s)", x, s=[2, 3, 4]), 1, gone),
            (viewed("t = Expand(r, s)", n, n, s=[3, 1]), 1, gone),
        ],
        ignores=[
            (viewed(reshape, "[3,2,4]", s=[3, 2, 4]), ""),
            (viewed(reshape, "[N,4,3]", n, s=[-1, 4, 3]), ""),
            (viewed(reshape, "[2,3,M]", n, s=[2, 3, -1]), ""),
            (viewed(reshape, "[N,M,4]", "[N,M,4]", s=[-1, 1, 4]), ""),
            (viewed("t = Flatten(r)", "[2,12]"), ""),
            (viewed("t = Flatten <axis = 0> (r)", "[1,8]", "[2,4]"), ""),
            (viewed("t = Expand(r, s)", "[1,2,3,4]", s=[1, 2, 3, 4]), ""),
            (viewed("t = Expand(r, s)", "[2,3,4]", "[2,1,4]", s=[2, 3, 4]), ""),
            (viewed("t = Expand(r, s)", "[2,3,4]", n, s=[2, 3, 4]), ""),
        ],
        numbers=False,
    )


def test_numbers_of_what_changes_nothing() -> None:
    for model in (
        viewed("t = Reshape(r, s)", "[N,3,4]", "[N,3,4]", s=[0, -1, 4]),
        viewed("t = Reshape <allowzero = 1> (r, s)", "[0,4]", "[0,4]", s=[0, 4]),
    ):
        assert apply(PASS, model).ops == ["Relu", "Neg"]


def test_a_series_becomes_one() -> None:
    one = ["Relu", "Reshape", "Neg"]
    cases = [
        viewed("a = Reshape(r, s) t = Reshape(a, u)", "[4,6]", s=[6, 4], u=[4, 6]),
        viewed("a = Reshape(r, s) t = Reshape(a, u)", "[6,2,2]", s=[6, 4], u=[0, 2, -1]),
        viewed("a = Flatten(r) t = Reshape(a, u)", "[N,6,2]", "[N,3,4]", u=[-1, 6, 2]),
        viewed("a = Reshape(r, s) t = Flatten(a)", "[N,12]", "[N,3,4]", s=[-1, 6, 2]),
        viewed("a = Squeeze(r, s) t = Unsqueeze(a, u)", "[2,1,4]", "[2,4,1]", s=[2], u=[1]),
        viewed("a = Unsqueeze(r, s) t = Reshape(a, u)", "[12,2]", s=[0], u=[12, 2]),
    ]
    check_pass(PASS, fires=[(model, 1, one) for model in cases])
    three = viewed("a = Flatten(r) b = Reshape(a, s) t = Reshape(b, u)", "[2,3,4]", s=[24],
                   u=[2, 3, 4])  # fmt: skip
    check_pass(PASS, fires=[(three, 3, ["Relu", "Neg"])])


def test_added_axes_that_are_taken_out_again() -> None:
    dynamic = viewed("a = Unsqueeze(r, s) t = Squeeze(a, u)", "[N,M]", "[N,M]", s=[1], u=[-2])
    back = viewed("a = Squeeze(r, s) t = Unsqueeze(a, s)", "[N,1,M]", "[N,1,M]", s=[1])
    other = viewed("a = Unsqueeze(r, s) t = Squeeze(a, u)", "[1]", "[1]", s=[0], u=[1])
    check_pass(
        PASS, fires=[(dynamic, 1, ["Relu", "Neg"]), (back, 1, ["Relu", "Neg"])], numbers=False
    )
    assert apply(PASS, other).ledger.fired(PASS.name) == 2, "one Reshape first, then none"


def test_refusals() -> None:
    shared = onnx_model(
        """g (float[2,3,4] x, int64[2] s, int64[2] u) => (float[4,6] y, float[6,4] z) {
        a = Reshape(x, s)
        z = Relu(a)
        y = Reshape(a, u) }""", s=[6, 4], u=[4, 6]
    )  # fmt: skip
    copied = viewed("a = Reshape(r, s) t = Reshape(a, u)", "[N,2,6]", "[N,3,4]", s=[-1, 12],
                    u=[0, 2, 6])  # fmt: skip
    computed = onnx_model(
        """g (float[2,3,4] x, int64[2] s, int64[2] u) => (float[M,N] y) {
        a = Reshape(x, s)
        n = Abs(u)
        y = Reshape(a, n) }""", s=[6, 4]
    )  # fmt: skip
    override = onnx_model(
        """g (float[2,3,4] x, int64[3] s) => (float[A,B,C] y) {
        r = Relu(x)
        y = Reshape(r, s) }""", s=[2, 3, 4], overridable=["s"]
    )  # fmt: skip
    open_ended = viewed("a = Reshape(r, s) t = Flatten(a)", "[A,B]", "[N,M,4]", s=[0, 0, 2, 2])
    straight = onnx_model("g (float[2] x, int64[1] s) => (float[2] y) { y = Reshape(x, s) }", s=[2])
    check_pass(
        PASS,
        ignores=[
            (shared, "the output of Reshape 'Reshape_a' (a) is also read by Relu"),
            (copied, "copies axis 0 of a"),
            (computed, "is computed at run time by Abs"),
            (override, ""),
            (open_ended, "is not known but for one extent"),
            (straight, ""),
        ],
        numbers=False,
    )
