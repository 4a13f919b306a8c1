"""Models that end the whole process, or take all memory, in the libraries that read them.

The ONNX checker, its shape inference and onnxruntime divide by a stride of 0, and integers by a
constant 0, without looking, and follow a function that calls itself: the process dies by a signal,
and nobody says why. Shape inference also keeps an entry for every element of a vector, and takes
twice as long for each subgraph within a subgraph. So these are refused before any library sees
them.

Left alone: divisors that the model computes from its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from edgefuse.errors import SourceError

if TYPE_CHECKING:
    import onnx

POSITIVE = (
    "blocksize",
    "dilations",
    "group",
    "kernel_shape",
    "num_groups",
    "num_outputs",
    "strides",
)
MOST_ELEMENTS = 1 << 40
MOST_NESTED = 16


def refuse_hazards(proto: onnx.ModelProto, where: str) -> None:
    """Refuse sizes that must be positive and are not, constant divisors of 0, endless inputs.

    Raises:
        SourceError: naming the node or the input.
    """
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    _check_functions(proto, where)
    for graph in _graphs((proto.graph, *proto.functions), where):
        constants |= {tensor.name: tensor for tensor in getattr(graph, "initializer", ())}
        for node in graph.node:
            if node.op_type == "Constant" and node.output:
                for held in (a.t for a in node.attribute if a.name == "value"):
                    constants[node.output[0]] = held
            if node.domain in ("", "ai.onnx"):
                _check_node(node, constants, where)
    for value in proto.graph.input:
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
        count = 1
        for size in sizes:
            count *= max(size, 1)
        if count > MOST_ELEMENTS:
            raise SourceError(
                f"input {value.name!r} {sizes} is larger than any memory",
                hint="make the input smaller",
                where=where,
            )


def _graphs(roots: Iterable[Any], where: str) -> Iterator[Any]:
    pending: list[tuple[Any, int]] = [(root, 0) for root in roots]
    while pending:
        graph, depth = pending.pop()
        if depth > MOST_NESTED:
            raise SourceError(
                f"subgraphs are nested more than {MOST_NESTED} deep",
                hint="export the model without its control flow",
                where=where,
            )
        yield graph
        for attribute in (a for node in graph.node for a in node.attribute):
            inner = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
            pending += [(one, depth + 1) for one in inner]


def _check_functions(proto: onnx.ModelProto, where: str) -> None:
    calls = {
        (f.domain, f.name): {
            (node.domain, node.op_type) for graph in _graphs([f], where) for node in graph.node
        }
        for f in proto.functions
    }
    while leaves := [name for name, called in calls.items() if not called & calls.keys()]:
        for name in leaves:
            del calls[name]
    if calls:
        raise SourceError(
            f"function {'.'.join(min(calls))} calls itself",
            hint="correct the model and export it again",
            where=where,
        )


def _check_node(node: onnx.NodeProto, constants: dict[str, Any], where: str) -> None:
    what = f"{node.op_type} {(node.name or next(iter(node.output), ''))!r}"
    for attribute in node.attribute:
        if attribute.ref_attr_name:  # In a function: the caller gives it.
            continue
        sizes = [*attribute.ints, *([attribute.i] if attribute.type == attribute.INT else [])]
        if attribute.name in POSITIVE and any(size <= 0 for size in sizes):
            raise SourceError(
                f"{what}: {attribute.name} must be greater than 0, not {sizes}",
                hint="correct the model and export it again",
                where=where,
            )
    if node.op_type in ("Div", "Mod") and len(node.input) > 1:
        divisor = _integers(constants.get(node.input[1]))
        if divisor is not None and (divisor == 0).any():
            raise SourceError(
                f"{what} divides integers by zero: its divisor is the constant {node.input[1]!r}",
                hint="correct the model and export it again",
                where=where,
            )
        dividend = _integers(constants.get(node.input[0]))
        if divisor is None or dividend is None or not (divisor == -1).any():
            return
        if (dividend == _lowest(dividend)).any():
            raise SourceError(
                f"{what} divides the lowest integer of its type by -1, which no integer holds",
                hint="correct the model and export it again",
                where=where,
            )


def _integers(tensor: Any) -> Any:
    """The integers of a constant; None of anything else, or where it cannot be read."""
    import numpy as np
    import onnx

    if tensor is None or tensor.data_type not in (
        onnx.TensorProto.INT8, onnx.TensorProto.INT16, onnx.TensorProto.INT32,
        onnx.TensorProto.INT64, onnx.TensorProto.UINT8, onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32, onnx.TensorProto.UINT64,
    ):  # fmt: skip
        return None
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception:  # The checker tells what is wrong with it.
        return None


def _lowest(array: Any) -> int:
    import numpy as np

    return int(np.iinfo(array.dtype).min)
