"""One operator, or one canonical spelling, for every activation that is spelt out.

Problem: exporters write GELU, SiLU, HardSwish or Mish as three to eight pointwise operators, each
in its own order and with its own constants. A runtime launches them all, and a converter knows one
spelling only: TFLite finds GELU in (x / 2)(1 + erf(x / sqrt 2)) and nowhere else, and has no Erf.

Rewrite: f(x) = Op(x), for the operator Op that the operator set has: HardSwish (since 14), Mish
(18), Gelu (20), HardSigmoid, Sigmoid, Softplus, Tanh. Where it has none, f(x) in one spelling:
GELU = (0.5 x)(1 + Erf(x sqrt(1/2))); its tanh form likewise; SiLU = x Sigmoid(x);
HardSwish = x (Clip(x + 3, 0, 6) / 6); Mish = x Tanh(Softplus(x)); x Sigmoid(1.702 x).

Scope: two or more pointwise operators that read one value of a floating type, and constants of one
value, and compute one of these functions to rounding; the longest such region. Left alone: a region
whose inner results are read elsewhere or are outputs; a type that the operator does not take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgefuse.graph.pointwise import (
    Region,
    named,
    read_elsewhere,
    regions_before,
    results_from,
    running_order,
)
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import attribute, constant, describe, set_origin, why_shared

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

# Operators with which a spelling may end.
ANCHORS = ("Add", "Clip", "Div", "Log", "Max", "Min", "Mul", "Neg", "Reciprocal", "Sub", "Tanh",
           "Where")  # fmt: skip

MOST_SHARED = 3

#: An operator type, its operands and its attributes. An operand is ``"x"``, the place of an earlier
#: step, or a constant. Steps stand in :func:`edgefuse.graph.pointwise.running_order`.
Step = tuple[str, tuple[str | int | float, ...], Mapping[str, Any]]
Spelling = tuple[Step, ...]


def _one(op_type: str, **attributes: Any) -> Spelling:
    return ((op_type, ("x",), attributes),)


#: For each function, its spellings with the operator set version from which each is possible, the
#: best first. Those of GELU and HardSwish end as one operator in TFLite; found by trying.
SPELLINGS: Mapping[str, tuple[tuple[int, Spelling], ...]] = {
    "GELU": (
        (20, _one("Gelu")),
        (
            9,
            (
                ("Mul", ("x", 0.5), {}),
                ("Mul", ("x", math.sqrt(0.5)), {}),
                ("Erf", (1,), {}),
                ("Add", (2, 1.0), {}),
                ("Mul", (0, 3), {}),
            ),
        ),
    ),
    "GELU_TANH": (
        (20, _one("Gelu", approximate="tanh")),
        (
            7,
            (
                ("Mul", ("x", 0.5), {}),
                ("Pow", ("x", 3.0), {}),
                ("Mul", (1, 0.044715), {}),
                ("Add", ("x", 2), {}),
                ("Mul", (3, math.sqrt(2 / math.pi)), {}),
                ("Tanh", (4,), {}),
                ("Add", (5, 1.0), {}),
                ("Mul", (0, 6), {}),
            ),
        ),
    ),
    "HARDSIGMOID": ((6, _one("HardSigmoid", alpha=1 / 6, beta=0.5)),),
    "HARDSWISH": (
        (14, _one("HardSwish")),
        (
            11,
            (
                ("Add", ("x", 3.0), {}),
                ("Clip", (0, 0.0, 6.0), {}),
                ("Mul", (1, 1 / 6), {}),
                ("Mul", ("x", 2), {}),
            ),
        ),
    ),
    "MISH": (
        (18, _one("Mish")),
        (7, (("Softplus", ("x",), {}), ("Tanh", (0,), {}), ("Mul", ("x", 1), {}))),
    ),
    "QUICKGELU": (
        (7, (("Mul", ("x", 1.702), {}), ("Sigmoid", (0,), {}), ("Mul", ("x", 1), {}))),
    ),
    "SIGMOID": ((6, _one("Sigmoid")),),
    "SILU": ((7, (("Sigmoid", ("x",), {}), ("Mul", ("x", 0), {}))),),
    "SOFTPLUS": ((1, _one("Softplus")),),
    "TANH": ((6, _one("Tanh")),),
}  # fmt: skip


def match(node: ir.Node, context: Context) -> Verdict:
    spelt = [r for r in regions_before(node.outputs[0]) if len(r.nodes) > 1]
    region, kind = next(((r, k) for r in reversed(spelt) if (k := named(r))), (None, ""))
    if region is None:
        return _why_not(node, context.opset)
    region = replace(region, nodes=running_order(region.result, region.nodes))
    wanted = next((s for since, s in SPELLINGS[kind] if since <= context.opset), None)
    if wanted is None or _is_spelt(region, wanted) or _is_part(region):
        return None
    for op_type in sorted({step[0] for step in wanted}):
        if not _takes(op_type, region.source, context.opset):
            kind_of_value = region.source.dtype.name.lower()
            return Refusal(
                f"{describe(node)} ends a {kind} of type {kind_of_value}, and {op_type} of "
                f"operator set {context.opset} does not take that type",
                tuple(str(n.name) for n in reversed(region.nodes)),
            )
    return Match(region.nodes, {"source": region.source, "spelling": wanted})


def _why_not(node: ir.Node, opset: int) -> Refusal | None:
    """The refusal of what would be an activation, were an inner result not read elsewhere."""
    for value in read_elsewhere(node.outputs[0])[:MOST_SHARED]:
        for region in regions_before(node.outputs[0], spare=value):
            maker = value.producer()
            if maker not in region.nodes or not (kind := named(region)):
                continue
            ordered = running_order(region.result, region.nodes)
            region = replace(region, nodes=ordered)
            if any(_is_spelt(region, s) for since, s in SPELLINGS[kind] if since <= opset):
                return None
            reader = next(n for n in ordered if value in n.inputs)
            return Refusal(
                f"{describe(node)} ends a {kind}, but inside it the output of {describe(maker)} "
                f"{why_shared(value, reader)}",
                tuple(str(n.name) for n in reversed(ordered)),
            )
    return None


def _is_part(region: Region) -> bool:
    """Whether a longer spelling holds the region: HardSigmoid in HardSwish."""
    last = region.nodes[-1]
    return any(
        last in longer.nodes and longer.source is region.source and named(longer)
        for result in results_from(last)[1:]
        for longer in regions_before(result)
    )


def _is_spelt(region: Region, wanted: Spelling) -> bool:
    """Whether the region has exactly these steps, constants rounded to its type."""
    if [n.op_type for n in region.nodes] != [step[0] for step in wanted]:
        return False
    made = {region.source: "x"} | {n.outputs[0]: k for k, n in enumerate(region.nodes)}
    return all(_is_step(n, step, made) for n, step in zip(region.nodes, wanted))


def _is_step(node: ir.Node, step: Step, made: Mapping[ir.Value, str | int]) -> bool:
    _, operands, attributes = step
    if len(node.inputs) != len(operands):
        return False
    for value, operand in zip(node.inputs, operands):
        if isinstance(operand, float):
            array = constant(value)
            if array is None or array.ndim != _axes(node.op_type, node.outputs[0]):
                return False
            if float(array.reshape(())) != float(array.dtype.type(operand)):
                return False
        elif value is None or made.get(value) != operand:
            return False
    return all(attribute(node, key, None) == value for key, value in attributes.items())


def _axes(op_type: str, value: ir.Value) -> int:
    """How many axes a constant has. An exponent has those of its base: onnx2tf writes a power of a
    scalar 3 as products, and TFLite then no longer finds GELU."""
    return 0 if op_type != "Pow" or value.shape is None else len(value.shape)


def _takes(op_type: str, value: ir.Value, opset: int) -> bool:
    import onnx.defs

    schema = onnx.defs.get_schema(op_type, opset, "")
    name = {"FLOAT": "float", "DOUBLE": "double"}.get(value.dtype.name, value.dtype.name.lower())
    wanted = schema.inputs[0].type_str
    types = next((c.allowed_type_strs for c in schema.type_constraints
                  if c.type_param_str == wanted), [wanted])  # fmt: skip
    return f"tensor({name})" in types


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import numpy as np

    spelling: Spelling = found.data["spelling"]
    last = found.nodes[-1]
    output, dtype = last.outputs[0], last.outputs[0].dtype.numpy()
    made: list[ir.Value] = []
    for place, (op_type, operands, attributes) in enumerate(spelling):
        inputs: list[ir.Value | None] = []
        for operand in operands:
            if isinstance(operand, float):
                array = np.full((1,) * _axes(op_type, output), operand).astype(dtype)
                hint = f"{output.name}_{op_type.lower()}_constant"
                inputs.append(builder.constant(array, hint, last.graph))
            else:
                inputs.append(made[operand] if isinstance(operand, int) else found.data["source"])
        if place < len(spelling) - 1:
            made.append(builder.insert(op_type, inputs, attributes, before=last))
            set_origin(made[-1].producer(), found.nodes[place : place + 1])
        else:
            new = builder.node(op_type, inputs, attributes, replaces=found.nodes)
            set_origin(new, found.nodes[place:])


PASS = PASSES.add(
    Pass(
        name="replace_composite_activation",
        summary="A spelt-out activation becomes one operator, or one canonical spelling.",
        phase="normalise",
        anchors=ANCHORS,
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants", "replace_activation_spelling"),
        tolerance=1e-5,
        example="""(float[1,4] x) => (float[1,4] y) {
            three = Constant<value_float = 3.0>()
            zero = Constant<value_float = 0.0>()
            six = Constant<value_float = 6.0>()
            a = Add(x, three)
            b = Clip(a, zero, six)
            c = Mul(x, b)
            y = Div(c, six) }""",
    ),
    __name__,
)
