"""Take out operators that hand their input on unchanged.

Problem: exporters leave Identity (around shared weights, before outputs) and Dropout in place;
they hide constants and producers from every later pass. Models leave scales of one, offsets of
zero, pads of nothing and slices of everything.

Rewrite: Identity(x) = x; Dropout(x) = x in inference mode; x * 1 = x / 1 = x ** 1 = x;
x + 0 = x - 0 = x; Pad<0>(x) = x; Slice of all of x = x;
Concat(x) = Sum(x) = Mean(x) = Max(x) = Min(x) = x, of one tensor alone. The users read x.

Scope: constants that do not change the shape by broadcasting; a Dropout whose mask nobody reads.
Left alone: an operator that joins an input, an initializer or another output directly to an output,
where an Identity is the only way to spell that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.fold import bias_place
from edgefuse.graph.padding import read_padding
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    attribute,
    constant,
    describe,
    read,
    replaceable_by,
    why_not_constant,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

NEUTRAL = {"Add": 0, "Div": 1, "Mul": 1, "Pow": 1, "Sub": 0}
COMMUTATIVE = ("Add", "Mul")
JOINS = ("Concat", "Max", "Mean", "Min", "Sum")
END = 2**31 - 1


def match(node: ir.Node, context: Context) -> Verdict:
    value: ir.Value | None = node.inputs[0] if node.inputs else None
    if node.op_type == "Dropout":
        if isinstance(refusal := _dropout(node), Refusal):
            return refusal
    elif node.op_type in NEUTRAL:
        value = _operand_of_neutral(node)
    elif node.op_type in JOINS:
        value = value if len(node.inputs) == 1 else None
    elif node.op_type == "Pad":
        padding = read_padding(node)
        if isinstance(padding, Refusal) or any((*padding.near, *padding.far)):
            return None
    elif node.op_type == "Slice" and not _takes_all(node):
        return None
    if value is None or not replaceable_by(node.outputs[0], value):
        return None
    return Match((node,), {"value": value})


def _dropout(node: ir.Node) -> Refusal | None:
    if any(list(out.uses()) or out.is_graph_output() for out in node.outputs[1:]):
        return Refusal(f"the mask of {describe(node)} is used", (str(node.name),))
    if (mode := read(node, 2)) is None:
        return None
    flag = constant(mode)
    if flag is None:
        what, remedy = why_not_constant(mode)
        reason = f"the training mode of {describe(node)} {what}"
        return Refusal(reason, (str(node.name),), remedy)
    if bool(flag.any()):
        reason = f"{describe(node)} is active (training mode)"
        return Refusal(reason, (str(node.name),), "call model.eval() before exporting")
    return None


def _operand_of_neutral(node: ir.Node) -> ir.Value | None:
    """What a neutral constant leaves as it is; None when the constant changes value or shape."""
    place = bias_place(node)
    if place is None or (place == 0 and node.op_type not in COMMUTATIVE):
        return None
    value, array = node.inputs[1 - place], constant(node.inputs[place])
    if value is None or value.shape is None or array is None or array.ndim > len(value.shape):
        return None
    if value.dtype is None or value.dtype != node.outputs[0].dtype:
        return None
    extents = list(value.shape)[len(value.shape) - array.ndim :]
    if any(own not in (1, extent) for own, extent in zip(array.shape, extents)):
        return None
    return value if array.size and bool((array == NEUTRAL[node.op_type]).all()) else None


def _takes_all(node: ir.Node) -> bool:
    """Whether a Slice starts at 0, ends at or behind the end, and leaves nothing out."""
    source = node.inputs[0]
    if source is None or source.shape is None:
        return False
    lists: list[list[int] | None] = []
    for index, name in enumerate(("starts", "ends", "axes", "steps"), start=1):
        given = read(node, index)
        if given is None:
            found = attribute(node, name, None)
            lists.append(None if found is None else [int(n) for n in found])
            continue
        array = constant(given)
        if array is None:
            return False
        lists.append([int(n) for n in array.reshape(-1)])
    starts, ends, axes, steps = lists
    if starts is None or ends is None or any(starts) or any(s != 1 for s in steps or []):
        return False
    rank = len(source.shape)
    for end, axis in zip(ends, axes if axes is not None else range(rank)):
        extent = source.shape[axis]
        if end < (extent if isinstance(extent, int) else END):
            return False
    return True


def rewrite(found: Match, builder: GraphBuilder) -> None:
    node = found.nodes[0]
    builder.bypass(node, found.data["value"])


PASS = PASSES.add(
    Pass(
        name="remove_identity",
        summary="Identity(x), Dropout(x) in inference mode, x * 1, x + 0 and their like become x.",
        phase="normalise",
        anchors=("Identity", "Dropout", "Pad", "Slice", *NEUTRAL, *JOINS),
        match=match,
        rewrite=rewrite,
        example="""(float[1,4] x) => (float[1,4] y) {
            a = Relu(x)
            b = Identity(a)
            y = Neg(b) }""",
    ),
    __name__,
)
