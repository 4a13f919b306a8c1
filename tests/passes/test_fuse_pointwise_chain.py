import time
from itertools import pairwise

import onnx
import onnx.inliner
import pytest

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import ordered, run_passes
from edgefuse.graph.rule import PASSES
from edgefuse.graph.verify import compare, seeded_feed
from edgefuse.passes.fuse_pointwise_chain import MAX_INPUTS, MAX_NODES, PASS

from .check_pass import apply, check_pass, onnx_model


def chain(
    body: str, *, outputs: str = "", kind: str = "float", inputs: str = "", opset: int = 18,
    **constants: object,
) -> onnx.ModelProto:  # fmt: skip
    text = f"""g ({kind}[2,4,3,3] x, {kind}[2,4,3,3] z, {kind}[4,1,1] c{inputs})
        => ({kind}[2,4,3,3] y{outputs}) {{ {body} }}"""
    return onnx_model(text, opset=opset, **({"c": 1} | constants))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("a = Neg(x) y = Abs(a)", ["NegAbs"]),
        ("a = Mul(x, c) y = Add(a, z)", ["MulAdd"]),
        ("a = Mul(c, x) b = Sub(z, a) d = Tanh(b) y = Mul(d, x)", ["MulSubTanhMul"]),
        ("s = Sigmoid(x) y = Mul(x, s)", ["SigmoidMul"]),
        ("a = Neg(x) b = Exp(z) y = Div(a, b)", ["NegExpDiv"]),
        ("a = PRelu(x, c) y = Neg(a)", ["PReluNeg"]),
        ("g = Greater(x, z) y = Where(g, x, z)", ["GreaterWhere"]),
        ("g = Less(x, z) h = Not(g) w = Where(h, x, z) y = Tanh(w)", ["LessNotWhereTanh"]),
        ("a = Max(x, z, c) y = Clip(a, lo)", ["MaxClip"]),
        ("a = Neg(x) b = Abs(a) m = GlobalMaxPool(b) e = Neg(m) f = Abs(e) y = Add(b, f)",
         ["NegAbs", "GlobalMaxPool", "NegAbs", "Add"]),
        ("a = Neg(x) y = MaxPool <kernel_shape = [1, 1]> (a)", ["Neg", "MaxPool"]),
        ("a = Neg(x) b = Neg(a) d = Neg(b) e = Neg(d) f = Neg(e) y = Neg(f)", ["Neg" * 6]),
        ("a = Neg(x) b = Neg(a) d = Neg(b) e = Neg(d) f = Neg(e) g = Neg(f) y = Neg(g)",
         ["Pointwise"]),
    ],
)  # fmt: skip
def test_regions(body: str, ops: list[str]) -> None:
    model = chain(body, inputs=", float lo", lo=0.0)
    done = apply(PASS, model)
    assert done.ops == ops
    plain = onnx.inliner.inline_local_functions(done.proto)
    compare(model, plain, [seeded_feed(model, seed=3)], max_relative_error=0.0)


def test_several_inputs_and_one_function_for_equal_structures() -> None:
    body = "a = Mul(x, c) b = Add(a, z) d = Mul(z, c) e = Add(d, x) m = MatMul(b, e) y = Neg(m)"
    done = apply(PASS, chain(body))
    assert done.ops == ["MulAdd", "MulAdd", "MatMul", "Neg"]
    assert [f.name for f in done.proto.functions] == ["MulAdd"]
    assert list(done.proto.graph.node[0].input) == ["x", "c", "z"]


def test_what_would_be_computed_again_for_each_element_stays_outside() -> None:
    body = "p = GlobalAveragePool(x) h = Mul(p, c) s = Sigmoid(h) m = Mul(x, s) y = Relu(m)"
    done = apply(PASS, chain(body))
    assert done.ops == ["GlobalAveragePool", "MulSigmoid", "MulRelu"]
    body = "p = GlobalAveragePool(x) s = Sigmoid(p) m = Mul(x, s) y = Relu(m)"
    done = apply(PASS, chain(body))
    assert done.ops == ["GlobalAveragePool", "Sigmoid", "MulRelu"]
    (refused,) = done.ledger.refused(PASS.name)
    assert "computed again for each element" in refused.reason
    assert refused.nodes[0] == "Sigmoid_s" and len(refused.nodes) == 2


def test_no_candidates() -> None:
    alone = onnx_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    between = chain("a = Neg(x) p = MaxPool <kernel_shape = [1, 1]> (a) y = Abs(p)")
    check_pass(PASS, ignores=[(alone, ""), (between, "")])


def test_refusals() -> None:
    output = ", float[2,4,3,3] a"
    two = ", float[2,4,3,3] v"
    integers = onnx_model("""g (int32[2] x) => (int32[2] y) {
        a = Neg(x)
        y = Abs(a) }""")
    symbols = onnx_model("""g (float[N] x, float[M] z) => (float[K] y) {
        a = Neg(x)
        y = Add(a, z) }""")
    mask = onnx_model("""g (float[2] x) => (bool[2] y) {
        a = Neg(x)
        y = Greater(a, x) }""")
    check_pass(
        PASS,
        ignores=[
            (chain("a = Neg(x) y = Abs(a)", outputs=output), "(a) is an output of the graph"),
            (chain("a = Neg(x) y = Abs(a) v = MaxPool <kernel_shape = [1, 1]> (a)", outputs=two),
             "(a) is also read by MaxPool 'MaxPool_v'"),
            (chain("a = Neg(x) y = Abs(a) v = Exp(a)", outputs=two),
             "Abs 'Abs_y' and Exp 'Exp_v' read the output of Neg 'Neg_a' (a) and have no common"),
            (integers, "Neg 'Neg_a' works on int32"),
            (symbols, "has the shape"),
            (mask, "without a result of a floating type"),
        ],
    )  # fmt: skip


def test_dynamic_shapes_and_other_types() -> None:
    dynamic = onnx_model("""g (float[N,M] x, float[M] z) => (float[N,M] y) {
        a = Mul(x, z)
        y = Tanh(a) }""")
    halves = chain("a = Mul(x, c) y = Tanh(a)", kind="float16")
    doubles = chain("a = Mul(x, c) y = Tanh(a)", kind="double")
    check_pass(PASS, fires=[(m, 1, ["MulTanh"]) for m in (dynamic, halves, doubles)])
    brain = chain("a = Mul(x, c) y = Tanh(a)", kind="bfloat16")
    check_pass(PASS, fires=[(brain, 1, ["MulTanh"])], numbers=False)


def test_a_region_ends_at_its_limits() -> None:
    count = 2 * MAX_NODES + 1
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    body = " ".join(f"{b} = Neg({a})" for a, b in pairwise(names))
    check_pass(PASS, fires=[(chain(body), 2, ["Pointwise", "Pointwise", "Neg"])])

    inputs = [f"i{k}" for k in range(MAX_INPUTS + 2)]
    sums = ["x", *(f"s{k}" for k in range(len(inputs) - 1)), "y"]
    body = " ".join(f"{b} = Add({a}, {i})" for a, b, i in zip(sums, sums[1:], inputs))
    declared = "".join(f", float[2,4,3,3] {i}" for i in inputs)
    check_pass(PASS, fires=[(chain(body, inputs=declared), 2, ["Pointwise", "AddAddAdd"])])


def test_inside_a_branch_and_values_that_a_branch_reads() -> None:
    model = onnx_model(
        """g (float[2] x, bool c) => (float[2] y, float[2] z) {
        a = Neg(x)
        z = Abs(a)
        y = If (c) <
            then_branch = t () => (float[2] u) { p = Exp(a) u = Neg(p) },
            else_branch = e () => (float[2] r) { r = Neg(x) } > }""",
    )
    done = apply(PASS, model)
    assert done.ops == ["Neg", "Abs", "If"]
    assert done.ledger.fired(PASS.name) == 1
    (refused,) = done.ledger.refused(PASS.name)
    assert "(a) is also read by Exp" in refused.reason


def test_constants_that_a_caller_may_override_stay_inputs() -> None:
    model = chain("a = Mul(x, c) y = Tanh(a)", overridable=["c"])
    done = apply(PASS, model)
    assert done.ops == ["MulTanh"] and "c" in [i.name for i in done.proto.graph.input]


def test_it_runs_after_every_other_kernel_fusion() -> None:
    names = [p.name for p in ordered(PASSES.all()) if p.phase == "fuse"]
    assert names[-1] == PASS.name
    assert set(PASS.after) == {n for n in names if n.startswith("fuse_")} - {PASS.name}


def test_two_thousand_operators_take_seconds() -> None:
    body = "".join(f"v{i + 1} = Neg(v{i}) " for i in range(1000)).replace("v0)", "x)")
    body += "y = Abs(v1000)"
    model = prepare(chain(body))
    start = time.process_time()
    run_passes(model, passes=[PASS])
    assert time.process_time() - start < 10
    assert len(list(model.graph)) == -(-1001 // MAX_NODES)
