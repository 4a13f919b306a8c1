import tracemalloc

import numpy as np

from edgefuse.passes.fold_constants import PASS

from .check_pass import apply, check_pass, onnx_model


def test_exporter_noise_becomes_one_constant() -> None:
    model = onnx_model(
        """g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {
        s = Shape <start = 0, end = 1> (w)
        one = Constant <value_ints = [1]> ()
        e = Expand(s, one)
        z = Constant <value_float = 0.0> ()
        c = CastLike(z, x)
        b = Expand(c, e)
        y = Conv(x, w, b) }""",
        w=1,
    )
    check_pass(PASS, fires=[(model, 4, ["Conv"])])
    assert apply(PASS, model).constant("b").tolist() == [0.0] * 4


def test_shape_of_a_computed_value() -> None:
    static = onnx_model("""g (float[2,3,4] x) => (float[3,8] y) {
        r = Relu(x)
        s = Shape(r)
        i = Constant <value_ints = [1]> ()
        d = Gather(s, i)
        m = Constant <value_ints = [-1]> ()
        t = Concat <axis = 0> (d, m)
        y = Reshape(r, t) }""")
    dynamic = onnx_model("""g (float[N,3] x) => (int64[2] y) {
        r = Relu(x)
        y = Shape(r) }""")
    partly = onnx_model("""g (float[N,3] x) => (int64[1] y) {
        r = Relu(x)
        s = Shape <start = 1> (r)
        t = Shape <end = 1> (r)
        y = Mul(s, t) }""")
    check_pass(
        PASS,
        fires=[(static, 3, ["Relu", "Reshape"]), (partly, 1, ["Relu", "Shape", "Mul"])],
        ignores=[(dynamic, "")],
    )


def test_size_budget_is_kept_before_anything_is_computed() -> None:
    model = onnx_model(
        """g (float[1,64,720,1280] x, float[1,1,1,1] s, int64[4] r) => (float[1,64,720,1280] y) {
        t = Tile(s, r)
        y = Add(x, t) }""",
        s=1,
        r=np.array([1, 64, 720, 1280]),
    )
    tracemalloc.start()
    done = apply(PASS, model, numbers=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.ops == ["Tile", "Add"]
    (refusal,) = done.ledger.refused(PASS.name)
    assert "235,929,600 bytes" in refusal.reason
    assert "fold_size_limit_bytes" in refusal.remedy
    assert peak < 20e6


def test_budget_of_transposed_weights_and_dead_initializers() -> None:
    text = """g (float[1,64] x, float[32,64] w) => (float[1,32] y) {
        t = Transpose(w)
        y = MatMul(x, t) }"""
    done = apply(PASS, onnx_model(text, w=1), limit=8192)
    assert done.ops == ["MatMul"]
    assert [t.name for t in done.proto.graph.initializer] == ["t"]
    assert apply(PASS, onnx_model(text, w=1), limit=8191).ops == ["Transpose", "MatMul"]


def test_overridable_and_meaningful_constants_are_left() -> None:
    override = onnx_model(
        """g (float[1,4] x, float[4] c) => (float[1,4] y) {
        n = Neg(c)
        y = Add(x, n) }""",
        c=1,
        overridable=["c"],
    )
    quantised = onnx_model(
        """g (float[1,4] x, int8[4] q, float s) => (float[1,4] y) {
        d = DequantizeLinear(q, s)
        y = Add(x, d) }""",
        q=[1, 2, 3, 4],
        s=0.5,
    )
    random = onnx_model("""g (float[4] x) => (float[4] y) {
        r = RandomNormal <shape = [4], seed = 1.0> ()
        z = Mul(r, x)
        y = Sub(z, z) }""")
    check_pass(PASS, ignores=[(override, "a caller may override it"), (quantised, "")])
    check_pass(PASS, ignores=[(random, "")])


def test_size_that_only_the_values_know() -> None:
    model = onnx_model(
        """g (float[2] x, float[2] c) => (int64[1,2] y) {
        n = NonZero(c)
        y = Mul(n, n) }""",
        c=[1.0, 2.0],
    )
    check_pass(PASS, ignores=[(model, "is not known before it is computed")])
