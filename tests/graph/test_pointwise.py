import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from passes.check_pass import onnx_model

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pointwise import (
    FUNCTIONS,
    MAX_NODES,
    evaluate,
    named,
    regions,
    regions_before,
    results_from,
    running_order,
)
from edgefuse.graph.verify import run_onnx

SCALARS = {"half": 0.5, "one": 1.0, "two": 2.0, "three": 3.0, "six": 6.0, "zero": 0.0}


def model_of(
    body: str, *, kind: str = "float", shape: str = "65", opset: int = 18, outputs: str = "",
    **more: float,
) -> onnx.ModelProto:  # fmt: skip
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {k: np.array(v) for k, v in (SCALARS | more).items() if k in words}
    declared = "".join(f", {kind} {name}" for name in used)
    text = f"g ({kind}[{shape}] x{declared}) => ({kind}[{shape}] y{outputs}) {{ {body} }}"
    return onnx_model(text, opset=opset, **used)


def graph_of(body: str, **options: object) -> ir.Graph:
    return prepare(model_of(body, **options)).graph  # type: ignore[arg-type]


def ops(nodes: tuple[ir.Node, ...]) -> list[str]:
    return [str(n.op_type) for n in nodes]


SINGLE = [
    "Abs(x)", "Celu <alpha = 0.7> (x)", "Clip(x, zero, six)", "Clip(x, , six)", "Elu(x)", "Erf(x)",
    "Exp(x)", "HardSigmoid <alpha = 0.3, beta = 0.4> (x)", "HardSwish(x)", "LeakyRelu(x)",
    "Max(x, half, zero)", "Min(x, half)", "Mish(x)", "Neg(x)", "Pow(x, two)", "Relu(x)",
    "Selu(x)", "Sigmoid(x)", "Sign(x)", "Softplus(x)", "Softsign(x)", "Sub(one, x)", "Tanh(x)",
    "ThresholdedRelu <alpha = 0.6> (x)", "Div(x, three)",
]  # fmt: skip


@pytest.mark.parametrize("expression", SINGLE)
def test_evaluation_agrees_with_onnxruntime(expression: str) -> None:
    proto = model_of(f"n = Neg(x) y = {expression.replace('(x', '(n').replace(', x', ', n')}")
    grid = np.linspace(-6, 6, 65).astype(np.float32)
    (wanted,) = run_onnx(proto, [{"x": grid}])
    *_, region = regions_before(prepare(proto).graph.outputs[0])
    found = evaluate(region, grid)
    assert found is not None
    np.testing.assert_allclose(found, wanted["y"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("op", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons_agree_with_onnxruntime(op: str) -> None:
    proto = model_of(f"g = {op}(x, half) n = Neg(x) y = Where(g, x, n)")
    grid = np.array([-1, 0.5, 2] * 20 + [0.5] * 5, np.float32)
    (wanted,) = run_onnx(proto, [{"x": grid}])
    *_, region = regions_before(prepare(proto).graph.outputs[0])
    assert region.source.name == "x"
    np.testing.assert_array_equal(evaluate(region, grid), wanted["y"])


def test_what_cannot_be_evaluated_has_no_name() -> None:
    graph = graph_of("n = Round(x) y = Sigmoid(n)")
    *_, region = regions_before(graph.outputs[0])
    assert evaluate(region, np.zeros(3)) is None and named(region) == ""


def test_regions_from_either_end() -> None:
    graph = graph_of("a = Abs(x) e = Exp(a) s = Sigmoid(e) m = Mul(e, s) y = Neg(m)")
    value = next(iter(graph)).outputs[0]
    forward = [(ops(running_order(r.result, r.nodes)), r.result.name) for r in regions(value)]
    assert forward == [
        (["Exp"], "e"),
        (["Exp", "Sigmoid", "Mul"], "m"),
        (["Exp", "Sigmoid", "Mul", "Neg"], "y"),
    ]
    backward = [(ops(r.nodes), r.source.name) for r in regions_before(graph.outputs[0])]
    assert [(sorted(names), source) for names, source in backward] == [
        (["Neg"], "m"),
        (["Mul", "Neg", "Sigmoid"], "e"),
        (["Exp", "Mul", "Neg", "Sigmoid"], "a"),
        (["Abs", "Exp", "Mul", "Neg", "Sigmoid"], "x"),
    ]


def test_others_may_read_the_source_of_a_region_before_a_value_only() -> None:
    graph = graph_of("a = Abs(x) s = Sigmoid(a) y = Mul(a, s) z = Exp(a)", outputs=", float[65] z")
    value = next(iter(graph)).outputs[0]
    assert list(regions(value)) == []
    first, *_ = [r for r in regions_before(graph.outputs[0]) if len(r.nodes) > 1]
    assert first.source is value and named(first) == "SILU"


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("a = Abs(x) s = Sigmoid(a) y = Mul(a, s)", ", float[65] s"),
        ("a = Abs(x) s = Sigmoid(a) y = Mul(a, s) z = Exp(s)", ", float[65] z"),
    ],
)
def test_no_region_around_a_value_that_leaves_it(body: str, outputs: str) -> None:
    graph = graph_of(body, outputs=outputs)
    assert all(len(r.nodes) == 1 for r in regions_before(graph.outputs[0]))
    assert not any(r.result.name == "y" for r in regions(next(iter(graph)).outputs[0]))


def test_a_constant_of_more_axes_or_values_is_in_no_region() -> None:
    for shape, declared in (("", "1"), ("65", "65"), ("65", "1,1")):
        result = {"": "1", "65": "65" if declared == "65" else "1,65"}[shape]
        head = f"g (float{f'[{shape}]' if shape else ''} x, float[{declared}] c)"
        proto = onnx_model(f"{head} => (float[{result}] y) {{ a = Abs(x) y = Mul(a, c) }}", c=1)
        graph = prepare(proto).graph
        assert list(regions(next(iter(graph)).outputs[0])) == []
        assert all("Abs" not in ops(r.nodes) for r in regions_before(graph.outputs[0]))


def test_the_order_follows_from_the_structure_alone() -> None:
    first = "h = Mul(x, half) e = Erf(x) o = Add(e, one) y = Mul(h, o)"
    second = "b = Erf(x) k = Add(b, one) z = Mul(x, half) y = Mul(z, k)"
    found = []
    for body in (first, second):
        *_, region = regions_before(graph_of(body).outputs[0])
        found.append(ops(running_order(region.result, region.nodes)))
    assert found == [["Mul", "Erf", "Add", "Mul"]] * 2


def test_size_is_limited() -> None:
    count = 3 * MAX_NODES
    body = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(count)).replace("(v0)", "(x)")
    graph = graph_of(f"{body} y = Abs(v{count})")
    assert max(len(r.nodes) for r in regions_before(graph.outputs[0])) == MAX_NODES
    assert max(len(r.nodes) for r in regions(next(iter(graph)).outputs[0])) == MAX_NODES
    assert len(results_from(next(iter(graph)))) == MAX_NODES


@pytest.mark.parametrize("kind", ["float", "float16", "double"])
def test_names(kind: str) -> None:
    bodies = {
        "SILU": "s = Sigmoid(x) y = Mul(s, x)",
        "HARDSWISH": "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        "HARDSIGMOID": "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)",
        "SIGMOID": "n = Neg(x) e = Exp(n) a = Add(one, e) y = Div(one, a)",
        "TANH": "d = Mul(two, x) s = Sigmoid(d) m = Mul(s, two) y = Sub(m, one)",
    }
    for name, body in bodies.items():
        *_, region = regions_before(graph_of(body, kind=kind).outputs[0])
        assert named(region) == name, body


@pytest.mark.parametrize(
    "body",
    [
        # Right in -10..10 and wrong beyond.
        "k = Clip(x, low, high) s = Sigmoid(x) y = Mul(k, s)",
        "k = Clip(x, low, high) s = Sigmoid(k) y = Mul(k, s)",
        # A little off.
        "s = Sigmoid(x) m = Mul(s, near) y = Mul(m, x)",
        "b = Add(x, tiny) s = Sigmoid(b) y = Mul(x, s)",
        "m = Mul(x, half) y = Neg(m)",
        "l = Log(x) y = Tanh(l)",
    ],
)
def test_near_misses_have_no_name(body: str) -> None:
    more = {"low": -50.0, "high": 50.0, "near": 1.0001, "tiny": 1e-4}
    *_, region = regions_before(graph_of(body, **more).outputs[0])
    assert named(region) == ""


def test_functions_are_what_they_are_called() -> None:
    x = np.array([-3.0, -1.0, 0.0, 0.5, 3.0])
    normal = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    np.testing.assert_allclose(FUNCTIONS["GELU"](x), x * normal, atol=1e-12)
    assert np.abs(FUNCTIONS["GELU_TANH"](x) - x * normal).max() < 1e-3
    np.testing.assert_allclose(FUNCTIONS["HARDSWISH"](x), [0, -1 / 3, 0, 0.5 * 3.5 / 6, 3])
    np.testing.assert_allclose(FUNCTIONS["MISH"](x)[2:4], [0, 0.37524524], atol=1e-7)
