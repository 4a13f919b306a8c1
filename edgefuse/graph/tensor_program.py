"""A few operators evaluated by NumPy in float64: what a spelt-out normalisation is made of.

Unlike :mod:`edgefuse.graph.pointwise` the operators may reduce, reshape and read constants of any
shape. Left alone: everything else, and shapes that are computed at run time; what they give is not
known, and neither is what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefuse.graph.values import Array, attribute, constant, read

if TYPE_CHECKING:
    import onnx_ir as ir

ELEMENTWISE = ("Add", "Div", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub")
VIEWS = ("Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
REDUCTION_AXES_ARE_INPUTS_SINCE = 18


def evaluate_nodes(
    nodes: Sequence[ir.Node], given: Mapping[ir.Value, Array], opset: int
) -> dict[ir.Value, Array]:
    """Values by what computes them, nodes in graph order; what cannot be evaluated is left out."""
    import numpy as np

    values = dict(given)
    with np.errstate(all="ignore"):
        for node in nodes:
            operands = [_operand(v, values) for v in node.inputs]
            if any(o is None and v is not None for o, v in zip(operands, node.inputs)):
                continue
            try:
                values[node.outputs[0]] = np.asarray(_apply(node, operands, opset))
            except ValueError:  # shapes that do not broadcast, at these extents
                continue
    return values


def _operand(value: ir.Value | None, values: Mapping[ir.Value, Array]) -> Array | None:
    import numpy as np

    if value is None or value in values:
        return None if value is None else values[value]
    array = constant(value)
    if array is None:
        return None
    return array if np.issubdtype(array.dtype, np.integer) else array.astype(np.float64)


def _apply(node: ir.Node, operands: Sequence[Any], opset: int) -> Any:
    import numpy as np

    simple: Mapping[str, Callable[..., Any]] = {
        "Add": np.add,
        "Div": np.divide,
        "Mul": np.multiply,
        "Neg": np.negative,
        "Pow": np.power,
        "Reciprocal": np.reciprocal,
        "Sqrt": np.sqrt,
        "Sub": np.subtract,
    }
    if node.op_type in simple:
        return simple[node.op_type](*operands)
    x = operands[0]
    if node.op_type == "ReduceMean":
        axes = reduced_axes(node, x.ndim, opset)
        if axes is None:
            raise ValueError("the axes are not constant")
        return x.mean(axes, keepdims=bool(attribute(node, "keepdims", 1)))
    if node.op_type == "Reshape":
        target = [int(n) for n in operands[1]]
        if not attribute(node, "allowzero", 0):
            target = [x.shape[k] if n == 0 else n for k, n in enumerate(target)]
        return x.reshape(target)
    if node.op_type == "Expand":
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in operands[1])))
    if node.op_type == "Identity":
        return x
    listed = attribute(node, "axes", None) if len(operands) < 2 else operands[1]
    if node.op_type == "Squeeze":
        return np.squeeze(x, None if listed is None else tuple(int(a) for a in listed))
    if node.op_type == "Unsqueeze" and listed is not None:
        return np.expand_dims(x, tuple(int(a) for a in listed))
    raise ValueError(f"{node.op_type} is not evaluated")


def reduced_axes(node: ir.Node, rank: int, opset: int) -> tuple[int, ...] | None:
    """The axes of a ReduceMean, ascending, none negative; None when they are not constant."""
    if opset < REDUCTION_AXES_ARE_INPUTS_SINCE:
        listed = attribute(node, "axes", None)
    elif (value := read(node, 1)) is None:
        listed = None
    elif (array := constant(value)) is None:
        return None
    else:
        listed = [int(a) for a in array.reshape(-1)]
    if not listed:
        nothing = bool(attribute(node, "noop_with_empty_axes", 0))
        return () if nothing else tuple(range(rank))
    return tuple(sorted(int(a) + rank * (int(a) < 0) for a in listed))
