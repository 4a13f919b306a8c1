import time

import numpy as np
import onnx
import pytest

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.passes.replace_composite_activation import PASS

from .check_pass import apply, check_pass, onnx_model

CONSTANTS = {
    "half": 0.5,
    "one": 1.0,
    "three": 3.0,
    "six": 6.0,
    "zero": 0.0,
    "sixth": 1 / 6,
    "root": 2.0**0.5,
    "unroot": 0.5**0.5,
    "k": 0.7978845608028654,
    "c": 0.044715,
    "q": 1.702,
    "twenty": 20.0,
}
GELU = ["Mul", "Mul", "Erf", "Add", "Mul"]
GELU_TANH = ["Mul", "Pow", "Mul", "Add", "Mul", "Tanh", "Add", "Mul"]
HARDSWISH = ["Add", "Clip", "Mul", "Mul"]


def spelt(
    body: str, *, opset: int = 18, shape: str = "1,4,3,3", kind: str = "float", outputs: str = ""
) -> onnx.ModelProto:
    """``y = f(x)``, with the constants that the body names."""
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: np.array(value) for name, value in CONSTANTS.items() if name in words}
    declared = "".join(f", {kind} {name}" for name in used)
    text = f"""g ({kind}[{shape}] x{declared}) => ({kind}[{shape}] y{outputs}) {{ {body} }}"""
    return onnx_model(text, opset=opset, **used)


GELUS = [
    # As torch's dynamo exporter writes it below operator set 20.
    "d = Div(x, root) e = Erf(d) o = Add(e, one) h = Mul(half, o) y = Mul(x, h)",
    "d = Div(x, root) e = Erf(d) o = Add(e, one) m = Mul(x, o) y = Mul(m, half)",
    "d = Mul(x, unroot) e = Erf(d) o = Add(one, e) h = Mul(half, x) y = Mul(o, h)",
    "d = Mul(x, unroot) e = Erf(d) f = Mul(e, half) o = Add(f, half) y = Mul(x, o)",
]
TANH_GELUS = [
    "p = Pow(x, three) m = Mul(c, p) a = Add(x, m) n = Mul(k, a) t = Tanh(n) o = Add(t, one) "
    "h = Mul(half, o) y = Mul(x, h)",
    "p = Mul(x, x) r = Mul(p, x) m = Mul(c, r) a = Add(x, m) n = Mul(k, a) t = Tanh(n) "
    "o = Add(t, one) h = Mul(x, half) y = Mul(o, h)",
    "h = Mul(x, half) p = Pow(x, three) m = Mul(p, c) a = Add(x, m) n = Mul(a, k) t = Tanh(n) "
    "o = Add(t, one) y = Mul(h, o)",
]
HARDSWISHES = [
    "a = Add(x, three) r = Clip(a, zero, six) m = Mul(x, r) y = Div(m, six)",
    "a = Add(x, three) r = Clip(a, zero, six) d = Div(r, six) y = Mul(d, x)",
    "h = HardSigmoid <alpha = 0.16666667> (x) y = Mul(x, h)",
    "d = Mul(x, sixth) a = Add(d, half) r = Clip(a, zero, one) y = Mul(r, x)",
]
HARDSIGMOIDS = [
    "a = Add(x, three) r = Clip(a, zero, six) y = Div(r, six)",
    "a = Add(three, x) r = Clip(a, zero, six) y = Mul(sixth, r)",
    "d = Div(x, six) a = Add(d, half) y = Clip(a, zero, one)",
]
MISHES = [
    "p = Softplus(x) t = Tanh(p) y = Mul(x, t)",
    "e = Exp(x) a = Add(e, one) p = Log(a) t = Tanh(p) y = Mul(t, x)",
]
SIGMOIDS = [
    "n = Neg(x) e = Exp(n) a = Add(one, e) y = Reciprocal(a)",
    "n = Neg(x) e = Exp(n) a = Add(e, one) y = Div(one, a)",
    "m = Mul(x, half) t = Tanh(m) a = Add(t, one) y = Mul(a, half)",
]
SOFTPLUSES = [
    "e = Exp(x) a = Add(e, one) y = Log(a)",
    "m = Greater(x, twenty) p = Softplus(x) y = Where(m, x, p)",
]


@pytest.mark.parametrize(
    ("spellings", "opset", "ops"),
    [
        (GELUS, 20, ["Gelu"]),
        (GELUS, 18, GELU),
        (GELUS, 13, GELU),
        (TANH_GELUS, 20, ["Gelu"]),
        (HARDSWISHES, 14, ["HardSwish"]),
        (HARDSWISHES, 13, HARDSWISH),
        (HARDSWISHES, 11, HARDSWISH),
        (HARDSIGMOIDS, 11, ["HardSigmoid"]),
        (MISHES, 18, ["Mish"]),
        (MISHES[1:], 17, ["Softplus", "Tanh", "Mul"]),
        (SIGMOIDS, 18, ["Sigmoid"]),
        (SOFTPLUSES, 18, ["Softplus"]),
        (["s = Sigmoid(x) y = Mul(s, x)"], 18, ["Sigmoid", "Mul"]),
        (["n = Neg(x) e = Exp(n) a = Add(e, one) y = Div(x, a)"], 18, ["Sigmoid", "Mul"]),
        (["m = Mul(q, x) s = Sigmoid(m) y = Mul(s, x)"], 18, ["Mul", "Sigmoid", "Mul"]),
    ],
)
def test_fires(spellings: list[str], opset: int, ops: list[str]) -> None:
    for body in spellings:
        done = apply(PASS, spelt(body, opset=opset))
        assert sorted(done.ops) == sorted(ops), body
        assert done.ledger.fired(PASS.name) == 1


def test_the_tanh_form_has_one_spelling() -> None:
    for body in TANH_GELUS:
        done = apply(PASS, spelt(body))
        assert sorted(done.ops) == sorted(GELU_TANH)
        (power,) = [n for n in done.proto.graph.node if n.op_type == "Pow"]
        assert done.constant(power.input[1]).shape == (1, 1, 1, 1)


def test_which_gelu_is_meant() -> None:
    for bodies, approximate in ((GELUS, []), (TANH_GELUS, [b"tanh"])):
        (node,) = apply(PASS, spelt(bodies[0], opset=20)).proto.graph.node
        assert [a.s for a in node.attribute] == approximate


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_other_types(kind: str) -> None:
    for body, op in ((GELUS[0], "Gelu"), (HARDSWISHES[0], "HardSwish"), (MISHES[0], "Mish")):
        done = apply(PASS, spelt(body, opset=20, kind=kind), numbers=kind == "float16")
        assert done.ops == [op]


def test_bfloat16_keeps_what_the_operator_does_not_take() -> None:
    body = "h = Mul(x, half) t = Tanh(h) a = Add(t, one) s = Mul(a, half) y = Mul(x, s)"
    check_pass(
        PASS,
        fires=[(spelt(body, kind="bfloat16"), 1, ["Sigmoid", "Mul"])],
        ignores=[
            (spelt(HARDSWISHES[0], kind="bfloat16"),
             "HardSwish of operator set 18 does not take that type"),
        ],
        numbers=False,
    )  # fmt: skip


def test_dynamic_and_between_operators() -> None:
    check_pass(
        PASS,
        fires=[
            (spelt(SIGMOIDS[0], shape="N,4"), 1, ["Sigmoid"]),
            (spelt("r = Abs(x) e = Exp(r) a = Add(e, one) l = Log(a) y = Neg(l)"), 1,
             ["Abs", "Softplus", "Neg"]),
        ],
    )  # fmt: skip


def test_a_constant_of_higher_rank_would_change_the_shape() -> None:
    scalar = onnx_model(
        """g (float x, float[1] half, float[1] one) => (float[1] y) {
        m = Mul(x, half)
        t = Tanh(m)
        a = Add(t, one)
        y = Mul(a, half) }""",
        half=np.array([0.5]),
        one=np.array([1.0]),
    )
    check_pass(PASS, ignores=[(scalar, "")], numbers=False)


def test_an_inside_that_is_read_elsewhere_stays() -> None:
    softplus = "e = Exp(x) a = Add(e, one) y = Log(a)"
    gelu = "d = Div(x, root) e = Erf(d) o = Add(e, one) h = Mul(half, o) y = Mul(x, h)"
    z, a, e = (f", float[1,4,3,3] {name}" for name in "zae")
    silu = "s = Sigmoid(x) y = Mul(x, s) z = Neg(s)"
    check_pass(
        PASS,
        ignores=[
            (spelt(f"{softplus} z = Neg(a)", outputs=z),
             "Log 'Log_y' ends a SOFTPLUS, but inside it the output of Add 'Add_a' (a) is also "
             "read by Neg 'Neg_z'"),
            (spelt(softplus, outputs=a), "(a) is an output of the graph"),
            (spelt(gelu, outputs=e),
             "ends a GELU, but inside it the output of Erf 'Erf_e' (e) is an output of the graph"),
            (spelt(silu, outputs=z), ""),
            (spelt("e = Exp(x) a = Neg(e) y = Log(a)", outputs=a), ""),
        ],
        numbers=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(x) y = Mul(x, s)",
        "y = Sigmoid(x)",
        "a = Add(x, three) r = Clip(a, zero, six) m = Mul(x, r) y = Div(m, three)",
        "s = Clip(x, zero, twenty) t = Sigmoid(x) y = Mul(s, t)",
        "e = Exp(x) r = Sqrt(e) y = Mul(x, r)",
        "h = Mul(x, half) d = Mul(x, unroot) e = Erf(d) o = Add(e, one) y = Mul(h, o)",
    ],
)
def test_canonical_and_other_functions_are_no_candidates(body: str) -> None:
    check_pass(PASS, ignores=[(spelt(body), "")])


def test_original_nodes_are_shared_out() -> None:
    done = apply(PASS, spelt(GELUS[0]))
    names = [p.value for n in done.proto.graph.node for p in n.metadata_props
             if p.key == "edgefuse.nodes"]  # fmt: skip
    assert sorted(names) == ['["Add_o"]', '["Div_d"]', '["Erf_e"]', '["Mul_h"]', '["Mul_y"]']


def test_a_long_row_of_activations_takes_time_in_proportion() -> None:
    seconds = {}
    for count in (50, 200):
        body = "".join(
            f"s{i} = Sigmoid(v{i}) v{i + 1} = Mul(s{i}, v{i}) " for i in range(count)
        ).replace("v0", "x")
        model = prepare(spelt(body.replace(f"v{count} =", "y =")))
        start = time.process_time()
        _, ledger = run_passes(model, passes=[PASS])
        seconds[count] = time.process_time() - start
        assert ledger.fired(PASS.name) == count
    assert seconds[200] < 12 * seconds[50]
