"""Change a .tflite file: constants in place, tensors and operators by rewriting it.

Problem: a quantised weight or bias that was computed elsewhere has to go into a finished file
without anything else changing; and what a quantiser leaves out has to be put in.

``with_constants`` overwrites bytes where they lie: the file keeps its size and every other byte.
:class:`Edit` unpacks the file, and packs it again. Left alone: the model's numbers; whoever edits
answers for them.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefuse.errors import SourceError, StageError

if TYPE_CHECKING:
    import numpy as np


def with_constants(data: bytes, values: Mapping[int, np.ndarray[Any, Any]]) -> bytes:
    """The same file with other values in some constants.

    Args:
        values: by tensor index; each in the tensor's own dtype and shape.

    Raises:
        StageError: a tensor is no constant, a value has another dtype or shape, or the constant's
            bytes also belong to a tensor that is not given the same value.
    """
    import numpy as np

    from edgefuse.tflite.read import parse_model

    model = parse_model(data)
    sharing: dict[int, list[int]] = {}
    for tensor in model.tensors:
        if tensor.is_constant:
            sharing.setdefault(tensor.buffer, []).append(tensor.index)
    edited = bytearray(data)
    for index, given in values.items():
        if not 0 <= index < len(model.tensors):
            raise StageError(f"there is no tensor {index}: the file has {len(model.tensors)}")
        tensor = model.tensors[index]
        value = np.asarray(given)
        if not tensor.is_constant:
            raise StageError(f"tensor {tensor.name!r} is not a constant")
        if value.dtype.name != tensor.dtype or value.shape != tensor.shape:
            raise StageError(
                f"constant {tensor.name!r} is {tensor.dtype} of shape {tensor.shape}, given "
                f"{value.dtype.name} of shape {value.shape}"
            )
        written = np.ascontiguousarray(value).tobytes()
        for other in sharing[tensor.buffer]:
            twin = values.get(other)
            if twin is None or np.ascontiguousarray(twin).tobytes() != written:
                raise StageError(
                    f"constant {tensor.name!r} shares its bytes with "
                    f"{model.tensors[other].name!r}, which would change with it",
                    hint="give both the same value",
                )
        begin, length = model.spans[tensor.buffer]
        edited[begin : begin + length] = written
    return bytes(edited)


def with_tensor_names(data: bytes, names: Sequence[str]) -> bytes:
    """The same file with its first tensors named so."""
    edit = Edit(data)
    for tensor, name in zip(edit.graph.tensors, names):
        tensor.name = name.encode()
    return edit.packed()


class Edit:
    """A file unpacked; ``packed()`` packs it again.

    Raises:
        SourceError: what :mod:`edgefuse.tflite.read` does not look at is damaged.
    """

    def __init__(self, data: bytes) -> None:
        from ai_edge_litert import schema_py_generated as schema

        from edgefuse.tflite.read import DAMAGED

        self.schema: Any = schema
        try:
            self.model: Any = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
        except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
            raise SourceError(
                f"damaged .tflite file ({len(data)} bytes): {error}", hint=DAMAGED
            ) from error
        self.graph: Any = self.model.subgraphs[0]
        for code in self.model.operatorCodes or ():  # Of older writers, only the second is set.
            code.builtinCode = max(code.builtinCode, code.deprecatedBuiltinCode)
        self._size = len(data)
        self._types = {v: k.lower() for k, v in vars(schema.TensorType).items() if _is_value(k)}
        self._codes = {v: k for k, v in vars(schema.BuiltinOperator).items() if _is_value(k)}

    def packed(self) -> bytes:
        return _packed(self.model, self._size)

    def note(self, name: str, content: bytes) -> None:
        """Put an entry into the file's metadata, in place of an earlier one of that name."""
        import numpy as np

        held = [m for m in self.model.metadata or () if m.name != name.encode()]
        buffer, entry = self.schema.BufferT(), self.schema.MetadataT()
        buffer.data = np.frombuffer(content, np.uint8)
        self.model.buffers.append(buffer)
        entry.name, entry.buffer = name.encode(), len(self.model.buffers) - 1
        self.model.metadata = [*held, entry]

    def like(
        self, index: int, suffix: str, dtype: str, scale: float | None = None, zero: int = 0
    ) -> int:
        """A new activation tensor of the shape of another; its index."""
        held = self.graph.tensors[index]
        tensor = self.schema.TensorT()
        tensor.name = held.name + suffix.encode()
        tensor.shape, tensor.shapeSignature = held.shape, held.shapeSignature
        tensor.hasRank, tensor.buffer = held.hasRank, 0
        tensor.type = getattr(self.schema.TensorType, dtype.upper())
        if scale is not None:
            tensor.quantization = self.schema.QuantizationParametersT()
            tensor.quantization.scale, tensor.quantization.zeroPoint = [scale], [zero]
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def twin(self, index: int, suffix: str) -> int:
        """A new tensor like another, constant or scales included; its index."""
        made = copy.copy(self.graph.tensors[index])
        made.name = made.name + suffix.encode()
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def numbers(self, values: Any) -> int:
        """A new constant of int32, given as whatever NumPy makes an array of; its index."""
        import numpy as np

        made = self.schema.TensorT()
        made.name = f"numbers_{len(self.graph.tensors)}".encode()
        made.hasRank, made.type = True, self.schema.TensorType.INT32
        self.graph.tensors.append(made)
        self.fill(len(self.graph.tensors) - 1, np.array(values, np.int32))
        return len(self.graph.tensors) - 1

    def dtype(self, index: int) -> str:
        """NumPy's name of a tensor's type."""
        name: str = self._types[self.graph.tensors[index].type]
        return name

    def code(self, operator: Any) -> str:
        """The name of an operator: ``CONV_2D``."""
        name: str = self._codes[self.model.operatorCodes[operator.opcodeIndex].builtinCode]
        return name

    def quantise(self, index: int, dtype: str, scale: float, zero: int) -> None:
        """Give an activation another type and one scale."""
        tensor = self.graph.tensors[index]
        tensor.type = getattr(self.schema.TensorType, dtype.upper())
        tensor.quantization = self.schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [scale], [zero]

    def fill(self, index: int, value: np.ndarray[Any, Any]) -> None:
        """Make a tensor the constant ``value``, which has its type, in a buffer of its own."""
        import numpy as np

        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        self.graph.tensors[index].buffer = len(self.model.buffers) - 1
        self.graph.tensors[index].shape = list(value.shape)

    def release(self, index: int) -> None:
        """Drop the bytes of a constant that nothing reads any more."""
        place = self.graph.tensors[index].buffer
        self.graph.tensors[index].buffer = 0
        if all(tensor.buffer != place for tensor in self.graph.tensors):
            self.model.buffers[place].data = None

    def drop_unread(self) -> None:
        """Drop tensors that no operator touches and nobody is promised; the others close ranks."""
        graph = self.graph
        held = {int(i) for o in graph.operators for i in (*o.inputs, *o.outputs)}
        held |= {int(i) for i in (*graph.inputs, *graph.outputs)}
        held |= {int(i) for o in graph.operators for i in _listed(o.intermediates)}
        signatures = [
            entry
            for definition in self.model.signatureDefs or ()
            for entry in (*(definition.inputs or ()), *(definition.outputs or ()))
        ]
        held |= {entry.tensorIndex for entry in signatures}
        for index in range(len(graph.tensors)):
            if index not in held and graph.tensors[index].buffer:
                self.release(index)
        kept = sorted(held - {-1})
        fresh = {-1: -1, **{old: new for new, old in enumerate(kept)}}
        graph.tensors = [graph.tensors[index] for index in kept]
        for owner in (graph, *graph.operators):
            owner.inputs = [fresh[int(i)] for i in owner.inputs]
            owner.outputs = [fresh[int(i)] for i in owner.outputs]
        for operator in graph.operators:
            if len(_listed(operator.intermediates)):
                operator.intermediates = [fresh[int(i)] for i in operator.intermediates]
        for entry in signatures:
            entry.tensorIndex = fresh[entry.tensorIndex]

    def cut(self, places: Sequence[int]) -> bytes:
        """A file of these operators alone: what they read from elsewhere are its inputs, what
        none of them reads are its outputs. It has no signature."""
        schema, graph = self.schema, self.graph
        model, small = schema.ModelT(), schema.SubGraphT()
        model.version, model.subgraphs = self.model.version, [small]
        model.operatorCodes, model.buffers = self.model.operatorCodes, [schema.BufferT()]
        small.tensors, small.operators = [], []
        fresh: dict[int, int] = {-1: -1}
        for place in places:
            held = copy.copy(graph.operators[place])
            for index in (*held.inputs, *held.outputs):
                if int(index) in fresh:
                    continue
                fresh[int(index)] = len(small.tensors)
                tensor = copy.copy(graph.tensors[index])
                if (buffer := self.model.buffers[tensor.buffer]).data is not None:
                    model.buffers.append(buffer)
                    tensor.buffer = len(model.buffers) - 1
                else:
                    tensor.buffer = 0
                small.tensors.append(tensor)
            held.inputs = [fresh[int(i)] for i in held.inputs]
            held.outputs = [fresh[int(i)] for i in held.outputs]
            small.operators.append(held)
        read = {i for operator in small.operators for i in operator.inputs if i >= 0}
        made = {i for operator in small.operators for i in operator.outputs}
        small.inputs = sorted(i for i in read - made if small.tensors[i].buffer == 0)
        small.outputs = sorted(made - read)
        return _packed(model, 1024)

    def operator(self, code: str, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        """A new operator without options; the caller puts it in its place."""
        made = self.schema.OperatorT()
        made.opcodeIndex = self._code(code)
        made.inputs, made.outputs = list(inputs), list(outputs)
        return made

    def _code(self, name: str) -> int:
        wanted = getattr(self.schema.BuiltinOperator, name)
        for place, code in enumerate(self.model.operatorCodes):
            if code.builtinCode == wanted:
                return place
        code = self.schema.OperatorCodeT()
        code.builtinCode = wanted
        code.deprecatedBuiltinCode = min(wanted, 127)
        code.version = 1
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1


def _listed(vector: Any) -> Any:
    return () if vector is None else vector


def _packed(model: Any, size: int) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(size)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _is_value(name: str) -> bool:
    return not name.startswith("_")
