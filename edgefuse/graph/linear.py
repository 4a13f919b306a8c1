"""Linear layers: which MatMul or Gemm is one, and which Add behind it is its bias.

MatMul(x, W) with W [K, N], and Gemm, compute N numbers for each row of x. A constant that is added
to each row alike, [N] or [1, N], is the layer's bias; any other shape adds different numbers to
different rows or changes the shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import Refusal
from edgefuse.graph.values import (
    describe,
    is_constant,
    is_overridable,
    read,
    sole_user,
    why_not_constant,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir


def is_linear(node: ir.Node) -> bool:
    """Whether the node is a Gemm, or a MatMul with a weight [K, N] that is an initializer."""
    if node.domain != "" or node.op_type not in ("Gemm", "MatMul"):
        return False
    weight = read(node, 1)
    known = is_constant(weight) or is_overridable(weight)
    return known and weight is not None and weight.shape is not None and len(weight.shape) == 2


def bias_after(node: ir.Node) -> ir.Node | Refusal | None:
    """The Add of a bias that alone reads the result of a linear MatMul.

    Returns:
        None when no constant is added, and for a Gemm, which has its own bias; a refusal when what
        is added is no bias.
    """
    output = node.outputs[0]
    adds = [u.node for u in output.uses() if u.node.op_type == "Add" and u.node.domain == ""]
    if node.op_type != "MatMul" or not adds:
        return None
    add = adds[0]
    bias = next((v for v in add.inputs if v is not output), None)
    if bias is None or bias.producer() is not None or not bias.is_initializer():
        return None
    names = (str(node.name), str(add.name))
    if sole_user(output) is not add:
        return Refusal(f"the output of {describe(node)} {why_shared(output, add)}", names)
    if not is_constant(bias):
        what, remedy = why_not_constant(bias)
        return Refusal(f"the bias of {describe(add)} {what}", names, remedy)
    columns, shape = node.inputs[1].shape[1], [int(d) for d in bias.const_value.shape]
    x = node.inputs[0]
    rows = x is not None and x.shape is not None and len(x.shape) > 1
    if shape != [columns] and not (shape == [1, columns] and rows):
        return Refusal(
            f"{describe(add)} adds a constant ({bias.name}) of shape {shape} to the {columns} "
            f"columns of {describe(node)}: no bias",
            names,
            f"give the bias the shape [{columns}]",
        )
    return add
