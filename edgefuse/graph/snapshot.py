"""A model at one moment: its structure copied, its large constants shared.

Proving a pass means to check and to run the model after it. Copying 100 MB of weights into a proto,
a checker and a runtime for every pass would take most of a run, and no pass changes most of them.
So weights become graph inputs that are fed when the model runs. Two graphs that differ only in
whether a weight is known beforehand then run the same kernels, bit for bit: a runtime packs the
weights that it knows, and rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgefuse.graph.normalise import LARGE_BYTES
from edgefuse.graph.values import Array
from edgefuse.graph.verify import Feed, Runner

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

SHARED = ("FLOAT", "DOUBLE", "FLOAT16")
Described = tuple[str, "tuple[int | str, ...] | None"]


@dataclass(frozen=True)
class Snapshot:
    """A model at one moment, cheap to take: large constants are shared, not copied.

    Attributes:
        proto: the model with its weights as graph inputs, those of subgraphs too, so that neither
            the checker nor onnxruntime copies them.
        constants: those inputs by name.
        values: type and shape of every value that a node computes, by name.
    """

    proto: onnx.ModelProto
    constants: Mapping[str, Array]
    values: Mapping[str, Described] = field(repr=False)

    @classmethod
    def of(cls, model: ir.Model) -> Snapshot:
        import onnx_ir as ir

        graph = model.graph
        large = {
            name: value
            for name, value in graph.initializers.items()
            if _is_large(value) and not value.is_graph_input() and not value.is_graph_output()
        }
        view = ir.GraphView(
            inputs=[*graph.inputs, *large.values()],
            outputs=graph.outputs,
            nodes=list(graph),
            initializers=[v for name, v in graph.initializers.items() if name not in large],
            opset_imports=graph.opset_imports,
            name=graph.name,
        )
        functions = list(model.functions.values())
        light = ir.Model(view, ir_version=model.ir_version, functions=functions)
        proto = ir.serde.serialize_model(light)
        arrays = {n: v.const_value.numpy() for n, v in large.items() if v.const_value is not None}
        nodes = ir.traversal.RecursiveGraphIterator(graph)
        values = {str(v.name): _described(v) for node in nodes for v in node.outputs if v.name}
        return cls(proto, {**arrays, **_lifted(proto)}, values)

    def whole(self) -> onnx.ModelProto:
        """The model with every constant in its place; a copy."""
        import onnx

        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        inputs = [i for i in proto.graph.input if i.name not in self.constants]
        del proto.graph.input[:]
        proto.graph.input.extend(inputs)
        proto.graph.initializer.extend(
            onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()
        )
        return proto

    @property
    def dtypes(self) -> list[str]:
        """Types of all inputs and computed values, as NumPy names them."""
        known = [*self.values.values(), *_declared(self, "input").values()]
        names = {dtype.lower() for dtype, _ in known if dtype}
        return sorted("float32" if name == "float" else name for name in names)

    def run(self, feeds: Sequence[Feed], extra: Sequence[str] = ()) -> list[dict[str, Array]]:
        """Outputs for each feed, those of ``extra`` (values of the main graph) too.

        Raises:
            ToolError: onnxruntime cannot load or run it.
        """
        import onnx

        proto = self.proto
        if extra:
            proto = onnx.ModelProto()
            proto.CopyFrom(self.proto)
            known = {o.name for o in proto.graph.output}
            proto.graph.output.extend(
                onnx.helper.make_empty_tensor_value_info(name)
                for name in extra
                if name not in known
            )
        runner = Runner(proto)
        return [runner({**feed, **self.constants}) for feed in feeds]

    def difference_of_values(self, other: Snapshot) -> str:
        """What differs in type or shape of a value that both have; empty when nothing does.

        An extent that only one of them knows is no difference.
        """
        for side in ("input", "output"):
            mine, its = (_declared(s, side) for s in (self, other))
            if list(mine) != list(its):
                return f"the {side}s are {list(its)}, they were {list(mine)}"
            for name, was in mine.items():
                if _differ(was, its[name]):
                    return f"{side} {name!r} is {_shown(its[name])}, it was {_shown(was)}"
        for name, was in self.values.items():
            if name in other.values and _differ(was, other.values[name]):
                return f"value {name!r} is {_shown(other.values[name])}, it was {_shown(was)}"
        return ""


def _is_large(value: ir.Value) -> bool:
    """Whether a constant is worth sharing: a weight of a type that onnxruntime takes as input.

    Small vectors stay: scales and bounds must be constants for shape inference.
    """
    tensor = value.const_value
    return (
        tensor is not None
        and tensor.dtype.name in SHARED
        and (len(tensor.shape) > 1 or tensor.nbytes >= LARGE_BYTES)
    )


def _lifted(proto: onnx.ModelProto) -> dict[str, Array]:
    """Move the weights of subgraphs to the inputs of the main graph; returns them by name."""
    import onnx

    found: dict[str, Array] = {}
    graphs = [g for node in proto.graph.node for g in subgraphs(node)]
    while graphs:
        graph = graphs.pop()
        graphs += [g for node in graph.node for g in subgraphs(node)]
        outputs = {output.name for output in graph.output}
        for tensor in list(graph.initializer):
            name = tensor.name
            kind = onnx.TensorProto.DataType.Name(tensor.data_type)
            if kind not in SHARED or len(tensor.dims) < 2 or name in found or name in outputs:
                continue
            if any(info.name == name for info in graph.input):
                continue
            found[name] = onnx.numpy_helper.to_array(tensor)
            graph.initializer.remove(tensor)
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            )
        infos = [info for info in graph.value_info if info.name not in found]
        del graph.value_info[:]
        graph.value_info.extend(infos)
    return found


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds as attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _described(value: ir.Value) -> Described:
    dtype = "" if value.dtype is None else value.dtype.name
    if value.shape is None:
        return dtype, None
    return dtype, tuple(d if isinstance(d, int) else str(d.value or "?") for d in value.shape)


def _declared(snapshot: Snapshot, side: str) -> dict[str, Described]:
    import onnx

    found: dict[str, Described] = {}
    for info in getattr(snapshot.proto.graph, side):
        if info.name in snapshot.constants and side == "input":
            continue
        tensor = info.type.tensor_type
        dtype = onnx.TensorProto.DataType.Name(tensor.elem_type)
        shape: tuple[int | str, ...] | None = None
        if tensor.HasField("shape"):
            shape = tuple(
                d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
                for d in tensor.shape.dim
            )
        found[info.name] = dtype, shape
    return found


def _differ(one: Described, other: Described) -> bool:
    if one[0] and other[0] and one[0] != other[0]:
        return True
    if one[1] is None or other[1] is None:
        return False
    if len(one[1]) != len(other[1]):
        return True
    return any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one[1], other[1])
    )


def _shown(described: Described) -> str:
    dtype, shape = described
    return dtype.lower() + ("" if shape is None else str(list(shape)).replace("'", ""))
