import io
import logging
import time
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from passes.check_pass import onnx_model
from torch import nn

from edgefuse.graph.activation import (
    TITLES,
    Activation,
    activation_after,
    activation_before,
    bounds_kind,
    read_bounds,
)
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.pointwise import FUNCTIONS
from edgefuse.graph.rule import PASSES, Refusal

SCALARS = {
    "half": 0.5,
    "one": 1.0,
    "three": 3.0,
    "six": 6.0,
    "zero": 0.0,
    "root": 2.0**0.5,
    "k": 0.7978845608028654,
    "c": 0.044715,
    "q": 1.702,
    "minus": -1.0,
}


def graph_of(
    body: str, *, kind: str = "float", opset: int = 18, outputs: str = "", inputs: str = "",
    **options: object,
) -> ir.Graph:  # fmt: skip
    """``y`` from ``a``, which a MaxPool makes of the input."""
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {k: np.array(v) for k, v in SCALARS.items() if k in words}
    declared = "".join(f", {kind} {name}" for name in used)
    text = f"""g ({kind}[1,4,3,3] x{declared}{inputs}) => ({kind}[1,4,3,3] y{outputs}) {{
        a = MaxPool <kernel_shape = [1, 1]> (x)
        {body} }}"""
    return prepare(onnx_model(text, opset=opset, **(used | options))).graph  # type: ignore[arg-type]


def after(graph: ir.Graph, opset: int = 18) -> Activation | Refusal | None:
    return activation_after(next(iter(graph)).outputs[0], opset)


KINDS = [
    ("y = Relu(a)", 18, "RELU", "Relu"),
    ("y = Clip(a, zero, six)", 18, "RELU6", "Clip"),
    ("y = Clip <min = 0.0, max = 6.0> (a)", 9, "RELU6", "Clip"),
    ("y = Clip(a, minus, one)", 18, "RELU_N1_TO_1", "Clip"),
    ("y = Clip(a, , six)", 18, "CLIP", "Clip"),
    ("y = LeakyRelu <alpha = 0.2> (a)", 18, "LEAKYRELU", "LeakyRelu"),
    ("y = HardSigmoid(a)", 18, "HARDSIGMOID", "HardSigmoid"),
    ("y = HardSwish(a)", 14, "HARDSWISH", "HardSwish"),
    ("y = Mish(a)", 18, "MISH", "Mish"),
    ("y = Gelu(a)", 20, "GELU", "Gelu"),
    ('y = Gelu <approximate = "tanh"> (a)', 20, "GELU_TANH", "Gelu"),
    ("s = Sigmoid(a) y = Mul(a, s)", 13, "SILU", "Silu"),
    ("s = HardSigmoid <alpha = 0.16666667> (a) y = Mul(a, s)", 11, "HARDSWISH", "HardSwish"),
    ("p = Softplus(a) t = Tanh(p) y = Mul(a, t)", 13, "MISH", "Mish"),
    ("d = Div(a, root) e = Erf(d) o = Add(e, one) h = Mul(half, o) y = Mul(a, h)", 13, "GELU",
     "Gelu"),
    ("p = Pow(a, three) m = Mul(c, p) b = Add(a, m) n = Mul(k, b) t = Tanh(n) o = Add(t, one) "
     "h = Mul(half, o) y = Mul(a, h)", 13, "GELU_TANH", "GeluTanh"),
    ("m = Mul(a, q) s = Sigmoid(m) y = Mul(a, s)", 18, "QUICKGELU", "QuickGelu"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "opset", "kind", "title"), KINDS)
def test_kinds(body: str, opset: int, kind: str, title: str) -> None:
    graph = graph_of(body, opset=opset)
    found = after(graph, opset)
    assert isinstance(found, Activation)
    assert (found.kind, found.title) == (kind, title)
    assert set(found.nodes) == set(list(graph)[1:]) and found.nodes[-1].outputs[0].name == "y"
    value = next(iter(graph)).outputs[0]
    assert activation_before(graph.outputs[0], opset, lambda v: v is value) == (found, value)
    assert activation_before(graph.outputs[0], opset, lambda v: False) is None


@pytest.mark.parametrize(("body", "opset", "kind", "title"), KINDS)
@pytest.mark.parametrize(
    ("more", "outputs", "reason"),
    [
        ("z = Neg(a)", ", float[1,4,3,3] z", "(a) is also read by Neg 'Neg_z'"),
        ("", ", float[1,4,3,3] a", "(a) is an output of the graph"),
    ],
)
def test_a_shared_input_is_refused(
    body: str, opset: int, kind: str, title: str, more: str, outputs: str, reason: str
) -> None:
    graph = graph_of(f"{body} {more}", opset=opset, outputs=outputs)
    found = after(graph, opset)
    assert isinstance(found, Refusal) and reason in found.reason
    assert "the output of MaxPool" in found.reason


def test_the_longest_known_spelling_is_meant() -> None:
    head = "b = Add(a, three) r = Clip(b, zero, six)"
    kinds = {
        f"{head} y = Div(r, six)": "HARDSIGMOID",
        f"{head} d = Div(r, six) y = Mul(a, d)": "HARDSWISH",
        f"{head} d = Div(r, six) y = Mul(x, d)": "HARDSIGMOID",
    }
    for body, kind in kinds.items():
        found = after(graph_of(body))
        assert isinstance(found, Activation) and found.kind == kind


def test_no_activation() -> None:
    for body in ("y = Neg(a)", "m = Mul(a, half) y = Add(m, one)", "y = Mul(x, a)",
                 "e = Exp(a) y = Mul(a, e)"):  # fmt: skip
        assert after(graph_of(body)) is None


def test_slopes() -> None:
    slope = ", float[4,1,1] s"
    found = after(graph_of("y = PRelu(a, s)", inputs=slope, s=1))
    assert isinstance(found, Activation) and (found.kind, found.title) == ("PRELU", "PRelu")
    for options in ({}, {"s": 1, "overridable": ["s"]}):
        found = after(graph_of("y = PRelu(a, s)", inputs=slope, **options))
        assert isinstance(found, Refusal) and "the slope of PRelu" in found.reason


def test_bounds_that_cannot_be_baked_in() -> None:
    scalar = ", float low"
    for options in ({}, {"low": np.array(0.0), "overridable": ["low"]}):
        found = after(graph_of("y = Clip(a, low)", inputs=scalar, **options))
        assert isinstance(found, Refusal) and "the min bound of Clip" in found.reason
    found = after(graph_of("y = Clip(a, low)", inputs=scalar, low=np.array(np.nan)))
    assert isinstance(found, Refusal) and "is NaN" in found.reason


def test_bounds() -> None:
    graph = graph_of("m = Max(zero, a) y = Min(m, six)")
    pairs = [(b.low, b.high) for n in list(graph)[1:] if (b := read_bounds(n, 18))]  # type: ignore[union-attr]
    assert pairs == [(0.0, None), (None, 6.0)]
    assert bounds_kind(0.0, 6.0) == "RELU6" and bounds_kind(0.0, 1.0) == "CLIP"


def test_every_function_has_a_title() -> None:
    assert set(TITLES) == set(FUNCTIONS)


TORCH = {
    "RELU6": nn.ReLU6(),
    "SILU": nn.SiLU(),
    "GELU": nn.GELU(),
    "GELU_TANH": nn.GELU("tanh"),
    "HARDSWISH": nn.Hardswish(),
    "HARDSIGMOID": nn.Hardsigmoid(),
    "MISH": nn.Mish(),
    "LEAKYRELU": nn.LeakyReLU(0.2),
    "PRELU": nn.PReLU(4),
}


class EachOfThem(nn.Module):
    """Every activation, each behind an operator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(1)
        self.activations = nn.ModuleList(TORCH.values())

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [activation(self.pool(x)) for activation in self.activations]


@pytest.mark.parametrize("opset", [18, 20])
def test_as_torch_exports_them(opset: int) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            EachOfThem().eval(),
            (torch.zeros(1, 4, 3, 5),),
            dynamo=True,
            optimize=False,
            opset_version=opset,
            verbose=False,
        )
    stream = io.BytesIO()
    onnx.save(program.model_proto, stream)
    model = prepare(onnx.load_from_string(stream.getvalue()))
    constants = [PASSES.all()[n] for n in ("remove_identity", "fold_constants")]
    model, _ = run_passes(model, passes=constants)
    pools = [n for n in model.graph if n.op_type == "MaxPool"]
    found = [activation_after(n.outputs[0], opset) for n in pools]
    assert [f.kind for f in found if isinstance(f, Activation)] == list(TORCH)


def test_a_value_with_many_readers_takes_no_time() -> None:
    body = "".join(f"n{i} = Neg(a) " for i in range(1000)) + "y = Relu(a)"
    nodes = "".join(f", float[1,4,3,3] n{i}" for i in range(1000))
    graph = graph_of(body, outputs=nodes)
    start = time.process_time()
    assert isinstance(after(graph), Refusal)
    assert time.process_time() - start < 1
