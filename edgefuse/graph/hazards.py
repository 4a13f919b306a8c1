"""Models that end the whole process, or take all memory, in the libraries that read them.

The ONNX checker, its shape inference and onnxruntime divide by a stride of 0, and integers by a
constant 0, without looking: the process dies by a signal, and nobody says why. Shape inference
also keeps an entry for every element of a vector. So these are refused before any library sees
them.

Left alone: divisors that the model computes from its input.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def refuse_hazards(proto: onnx.ModelProto, where: str) -> None:
    """Refuse sizes that must be positive and are not, constant divisors of 0, endless inputs.

    Raises:
        SourceError: naming the node or the input.
    """
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for graph in _graphs(proto):
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


def _graphs(proto: onnx.ModelProto) -> Iterator[Any]:
    pending: list[Any] = [proto.graph, *proto.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            pending += [a.g for a in node.attribute if a.HasField("g")]
            pending += [inner for a in node.attribute for inner in a.graphs]


def _check_node(node: onnx.NodeProto, constants: dict[str, Any], where: str) -> None:
    what = f"{node.op_type} {(node.name or next(iter(node.output), ''))!r}"
    for attribute in node.attribute:
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
