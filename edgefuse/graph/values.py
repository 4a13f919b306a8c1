"""Reading a graph: constants, users, attributes, sizes and origins of values and nodes.

A value is *constant* when it is an initializer that no caller can override. An initializer that
is also a graph input is a default: its bytes must not be baked into anything.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
NODES_KEY = "edgefuse.nodes"
OPS_KEY = "edgefuse.ops"
SCOPES_KEY = "pkg.torch.onnx.name_scopes"
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")


def constant(value: ir.Value | None) -> Array | None:
    """The array of a constant, in its own dtype; None for anything computed or overridable."""
    if value is None or value.const_value is None:
        return None
    if value.producer() is not None or value.is_graph_input():
        return None
    array: Array = value.const_value.numpy()
    return array


def is_constant(value: ir.Value | None) -> bool:
    """As :func:`constant`, without reading the bytes."""
    return (
        value is not None
        and value.const_value is not None
        and value.producer() is None
        and not value.is_graph_input()
    )


def is_overridable(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that the caller may replace at run time."""
    return value is not None and value.is_initializer() and value.is_graph_input()


OVERRIDABLE_REMEDY = "remove it from the graph inputs, so that it is a constant"


def why_not_constant(value: ir.Value) -> tuple[str, str]:
    """The end of the sentence "its weight ...", and the remedy."""
    if is_overridable(value):
        return f"({value.name}) is also a graph input, so a caller may override it", (
            OVERRIDABLE_REMEDY
        )
    if (producer := value.producer()) is not None:
        return f"({value.name}) is computed at run time by {describe(producer)}", ""
    return f"({value.name}) is a graph input", ""


def describe(node: ir.Node) -> str:
    """``OpType 'name'``, for messages."""
    return f"{node.op_type} {node.name!r}"


def sole_user(value: ir.Value) -> ir.Node | None:
    """The only node that reads the value, exactly once, in the producer's own graph."""
    if value.is_graph_output():
        return None
    uses = list(value.uses())
    if len(uses) != 1:
        return None
    user: ir.Node = uses[0].node
    producer = value.producer()
    return user if producer is None or user.graph is producer.graph else None


def reads_alone(node: ir.Node, value: ir.Value) -> bool:
    """Whether ``node`` is the :func:`sole_user` of the value."""
    return sole_user(value) is node


def why_shared(value: ir.Value, reader: ir.Node) -> str:
    """Why ``reader`` not :func:`reads_alone`: the end of the sentence "the output of Conv ..."."""
    if value.is_graph_output():
        return f"({value.name}) is an output of the graph"
    others = sorted({describe(use.node) for use in value.uses() if use.node is not reader})
    if not others:
        return f"({value.name}) is read by {describe(reader)} more than once or from a subgraph"
    return f"({value.name}) is also read by {', '.join(others)}"


def replaceable_by(value: ir.Value, other: ir.Value) -> bool:
    """Whether readers of ``value`` may read ``other``: an output of a graph must be computed there.

    The only thing in the way is a graph output: it cannot become an input, an initializer, a value
    of an outer graph, or one value with another output.
    """
    if not value.is_graph_output():
        return True
    maker, own = other.producer(), value.producer()
    return (
        maker is not None
        and own is not None
        and maker.graph is own.graph
        and not other.is_graph_output()
    )


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """The value of an attribute, or the default when it is absent."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def read(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index`` of a node; None when it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def nbytes(value: ir.Value) -> int:
    """Bytes of the tensor; symbolic extents count as 1, unknown shapes or types as 0."""
    if value.shape is None or value.dtype is None or value.dtype.name in ("STRING", "UNDEFINED"):
        return 0
    count = 1
    for extent in value.shape:
        count *= extent if isinstance(extent, int) else 1
    return -(-count * int(value.dtype.bitwidth) // 8)


def same_shape(left: ir.Value, right: ir.Value) -> bool:
    """Whether both shapes are known and equal, symbol by symbol."""
    if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
        return False
    for a, b in zip(left.shape, right.shape):
        known = isinstance(a, int) or getattr(a, "value", None) is not None
        if not known or a != b:
            return False
    return True


def is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.name in FLOATS


def at_run_time(node: ir.Node) -> bool:
    """Whether a runtime must launch the node: something it reads is not a constant."""
    return any(v is not None and not is_constant(v) for v in node.inputs)


def module_path(node: ir.Node) -> str:
    """The torch module that the node came from, like ``features.0.1``; empty when unknown."""
    text = node.metadata_props.get(SCOPES_KEY, "")
    try:
        scopes = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2:
        return ""
    return str(scopes[-2])


def origin(node: ir.Node) -> tuple[list[str], list[str]]:
    """Names and operator types of the original nodes that the node stands for."""
    if NODES_KEY in node.metadata_props:
        names = json.loads(node.metadata_props[NODES_KEY])
        ops = json.loads(node.metadata_props[OPS_KEY])
        return [str(n) for n in names], [str(o) for o in ops]
    return [str(node.name)], [str(node.op_type)]


def set_origin(node: ir.Node, parts: tuple[ir.Node, ...]) -> None:
    """Record on ``node`` that it stands for ``parts``, in order."""
    names: list[str] = []
    ops: list[str] = []
    for part in parts:
        part_names, part_ops = origin(part)
        names += part_names
        ops += part_ops
    node.metadata_props[NODES_KEY] = json.dumps(names)
    node.metadata_props[OPS_KEY] = json.dumps(ops)
