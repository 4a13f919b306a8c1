import numpy as np
import onnx

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.passes.remove_duplicate import PASS

from .check_pass import apply, check_pass, onnx_model


def twice(first: str, second: str, y: str = "Add(a, b)", more: str = "", **options: object,
          ) -> onnx.ModelProto:  # fmt: skip
    text = f"""g (float[2,4] x{more}) => (float[2,4] y) {{
        a = {first}
        b = {second}
        y = {y} }}"""
    return onnx_model(text, **options)  # type: ignore[arg-type]


def test_pointwise_operators_and_their_constants() -> None:
    check_pass(
        PASS,
        fires=[
            (twice("Relu(x)", "Relu(x)"), 1, ["Relu", "Add"]),
            (twice("LeakyRelu <alpha = 0.5> (x)", "LeakyRelu <alpha = 0.5> (x)"), 1,
             ["LeakyRelu", "Add"]),
            (twice("Mul(x, c)", "Mul(x, d)", more=", float c, float d", c=2.0, d=2.0), 1,
             ["Mul", "Add"]),
        ],
        ignores=[
            (twice("Relu(x)", "Neg(x)"), ""),
            (twice("LeakyRelu <alpha = 0.5> (x)", "LeakyRelu <alpha = 0.4> (x)"), ""),
            (twice("LeakyRelu <alpha = 0.01> (x)", "LeakyRelu(x)"), ""),
            (twice("Mul(x, c)", "Mul(x, d)", more=", float c, float d", c=2.0, d=3.0), ""),
            (twice("Mul(x, c)", "Mul(x, d)", more=", float[1] c, float d", c=[2.0], d=2.0), ""),
            (twice("Mul(x, c)", "Mul(x, d)", more=", float[1] c, float[1] d", c=[2.0], d=[2.0],
                   overridable=["c", "d"]), ""),
        ],
    )  # fmt: skip


def test_chains_and_several_outputs_of_one_operator() -> None:
    chain = onnx_model("""g (float[2,4] x) => (float[2,4] y) {
        a = Relu(x)
        b = Relu(x)
        c = Neg(a)
        d = Neg(b)
        e, f = Split <axis = 1, num_outputs = 2> (c)
        g1, h = Split <axis = 1, num_outputs = 2> (d)
        y = Concat <axis = 1> (e, h) }""")
    check_pass(PASS, fires=[(chain, 3, ["Relu", "Neg", "Split", "Concat"])])


def test_outputs_keep_their_names() -> None:
    later = onnx_model("""g (float[4] x) => (float[4] y, float[4] z) {
        a = Relu(x)
        y = Neg(a)
        z = Relu(x) }""")
    done = apply(PASS, later)
    assert done.ops == ["Relu", "Neg"]
    assert [o.name for o in done.proto.graph.output] == ["y", "z"]
    both = onnx_model("""g (float[4] x) => (float[4] y, float[4] z) {
        y = Relu(x)
        z = Relu(x) }""")
    check_pass(PASS, ignores=[(both, "are both outputs")])


def test_random_operators_and_subgraphs_stay() -> None:
    random = onnx_model("""g (float[2,4] x) => (float[2,4] y) {
        a = RandomNormalLike(x)
        b = RandomNormalLike(x)
        y = Sub(a, b) }""")
    branch = "If (c) <then_branch = p () => (float[4] u) { u = Neg(x) }, else_branch = q () => (float[4] v) { v = Abs(x) }>"  # noqa: E501
    branches = onnx_model(f"""g (float[4] x, bool c) => (float[4] y) {{
        a = {branch}
        b = {branch.replace("p ()", "r ()").replace("q ()", "s ()")}
        y = Add(a, b) }}""")
    across = onnx_model("""g (float[4] x, bool c) => (float[4] y) {
        a = Neg(x)
        b = If (c) <
            then_branch = p () => (float[4] u) { u = Neg(x) },
            else_branch = q () => (float[4] v) { v = Abs(x) } >
        y = Add(a, b) }""")
    quantised = onnx_model(
        """g (float[4] x, float s, int8 z) => (float[4] y) {
        a = QuantizeLinear(x, s, z)
        b = QuantizeLinear(x, s, z)
        c = DequantizeLinear(a, s, z)
        d = DequantizeLinear(b, s, z)
        y = Add(c, d) }""", s=0.1, z=0
    )  # fmt: skip
    check_pass(PASS, ignores=[(across, ""), (quantised, "")])
    check_pass(PASS, ignores=[(random, ""), (branches, "")], numbers=False)


def layers(after: str, weight: str = "w", outputs: str = "float[1,4,3,3] y") -> onnx.ModelProto:
    return onnx_model(
        f"""g (float[1,2,3,3] x, float[4,2,1,1] w, float[4,2,1,1] k, float[4] g, float[4] h,
            float[4] v) => ({outputs}) {{
        a = Conv(x, w)
        b = Conv(x, {weight})
        {after} }}""",
        w=1, k=2, g=3, h=4, v=np.ones(4),
    )  # fmt: skip


def test_layers_are_merged_only_where_no_fusion_is_lost() -> None:
    pair = "c = Relu(a) d = Relu(b) y = Add(c, d)"
    same = "c = BatchNormalization(a, g, g, g, v) d = BatchNormalization(b, g, g, g, v)"
    other = "c = BatchNormalization(a, g, g, g, v) d = BatchNormalization(b, h, g, g, v)"
    uneven = "c = Relu(a) e = Relu(a) d = Relu(b) f = Sigmoid(b) i = Add(c, e) j = Add(d, f) "
    check_pass(
        PASS,
        fires=[
            (layers(pair), 2, ["Conv", "Relu", "Add"]),
            (layers(f"{same} e = Relu(c) f = Relu(d) y = Add(e, f)"), 3,
             ["Conv", "BatchNormalization", "Relu", "Add"]),
        ],
        ignores=[
            (layers(pair, weight="k"), ""),
            (layers("c = Relu(a) d = Sigmoid(b) y = Add(c, d)"), "their readers differ"),
            (layers(f"{other} y = Add(c, d)"), "their readers differ"),
            (layers(f"{same} e = Relu(c) f = Sigmoid(d) y = Add(e, f)"), "their readers differ"),
            (layers("y = Relu(a) z = Relu(b)", outputs="float[1,4,3,3] y, float[1,4,3,3] z"),
             "their readers differ"),
            (layers("y = Add(a, b)"), "their readers differ"),
        ],
    )  # fmt: skip
    mixed = apply(PASS, layers(f"{uneven} y = Add(i, j)"))
    assert mixed.ops.count("Conv") == 2


def test_a_pad_that_two_convolutions_take_in_stays_double() -> None:
    model = onnx_model(
        """g (float[1,2,3,3] x, int64[8] p, float[4,2,3,3] w, float[4,2,3,3] k)
            => (float[1,4,3,3] y) {
        s = Pad(x, p)
        t = Pad(x, p)
        a = Conv(s, w)
        b = Conv(t, k)
        y = Add(a, b) }""",
        p=[0, 0, 1, 1, 0, 0, 1, 1], w=1, k=2,
    )  # fmt: skip
    check_pass(PASS, ignores=[(model, "their readers differ")])
    _, ledger = run_passes(prepare(model))
    assert ledger.fired("fold_pad") == 2


def test_a_value_with_very_many_readers_costs_no_time() -> None:
    def readers(count: int) -> onnx.ModelProto:
        names = [f"v{i}" for i in range(count)]
        body = " ".join(f"{name} = Relu(x)" for name in names)
        text = f"g (float[4] x) => (float[4] y) {{ {body} y = Sum({', '.join(names)}) }}"
        return onnx_model(text)

    assert apply(PASS, readers(200)).ops == ["Relu", "Sum"]
    check_pass(PASS, ignores=[(readers(201), "")])
