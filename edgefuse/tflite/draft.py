"""A .tflite file that is being changed: parts of it replaced, parts of other files taken in.

The schema's objects are shared between drafts of one unpacked file; a draft owns only the lists
that hold them, so that many drafts can be written at once and none changes another.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def schema() -> Any:
    """The module that packs and unpacks the file's tables."""
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


class Draft:
    """A file being written: lists are its own, what they hold is shared and never changed."""

    def __init__(self, unpacked: Any, schema: Any) -> None:
        self._schema = schema
        self._model, graph = copy.copy(unpacked), copy.copy(unpacked.subgraphs[0])
        self._model.subgraphs = [graph]
        self._model.buffers = list(unpacked.buffers)
        self._model.operatorCodes = list(unpacked.operatorCodes)
        self._model.signatureDefs = copy.deepcopy(unpacked.signatureDefs)
        graph.tensors, graph.operators = list(graph.tensors), list(graph.operators)
        graph.inputs, graph.outputs = ([int(i) for i in s] for s in (graph.inputs, graph.outputs))
        self._graph = graph
        self._imported: dict[tuple[int, int], int] = {}

    @property
    def operators(self) -> list[Any]:
        operators: list[Any] = self._graph.operators
        return operators

    def _add(self, tensor: Any, kind: str) -> int:
        tensor.name = f"mixed_{kind}_{len(self._graph.tensors)}".encode()
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def activation(self, like: int) -> int:
        """A float tensor of the shape of another."""
        tensor, shaped = self._schema.TensorT(), self._graph.tensors[like]
        tensor.shape, tensor.shapeSignature = shaped.shape, shaped.shapeSignature
        tensor.hasRank, tensor.buffer = shaped.hasRank, 0
        tensor.type = self._schema.TensorType.FLOAT32
        return self._add(tensor, "value")

    def constant(self, value: Array) -> int:
        """A new float32 constant."""
        tensor, buffer = self._schema.TensorT(), self._schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(value, np.float32).tobytes(), np.uint8)
        self._model.buffers.append(buffer)
        tensor.shape, tensor.hasRank = list(value.shape), True
        tensor.buffer, tensor.type = len(self._model.buffers) - 1, self._schema.TensorType.FLOAT32
        return self._add(tensor, "constant")

    def imported(self, other: Any, index: int) -> int:
        """A tensor of another file, with its scales and its constant."""
        key = (id(other), index)
        if key not in self._imported:
            tensor = copy.copy(other.subgraphs[0].tensors[index])
            buffer = other.buffers[tensor.buffer]
            tensor.buffer = 0
            if buffer.data is not None and len(buffer.data):
                self._model.buffers.append(buffer)
                tensor.buffer = len(self._model.buffers) - 1
            self._imported[key] = self._add(tensor, "imported")
        return self._imported[key]

    def copied(self, other: Any, index: int) -> Any:
        """An operator of another file; its inputs and outputs are still that file's."""
        operator = copy.copy(other.subgraphs[0].operators[index])
        operator.inputs = [int(i) for i in operator.inputs]
        operator.outputs = [int(i) for i in operator.outputs]
        operator.opcodeIndex = self._code(other.operatorCodes[operator.opcodeIndex])
        return operator

    def conversion(self, source: int, result: int, *, back: bool = False) -> Any:
        """QUANTIZE, or DEQUANTIZE when it goes ``back``."""
        code, operator = self._schema.OperatorCodeT(), self._schema.OperatorT()
        names = self._schema.BuiltinOperator
        code.builtinCode = names.DEQUANTIZE if back else names.QUANTIZE
        code.deprecatedBuiltinCode, code.version = code.builtinCode, 2 if back else 1
        operator.opcodeIndex = self._code(code)
        operator.inputs, operator.outputs = [source], [result]
        return operator

    def _code(self, wanted: Any) -> int:
        def key(code: Any) -> tuple[Any, ...]:
            return code.builtinCode, code.deprecatedBuiltinCode, code.customCode, code.version

        for place, code in enumerate(self._model.operatorCodes):
            if key(code) == key(wanted):
                return place
        self._model.operatorCodes.append(wanted)
        return len(self._model.operatorCodes) - 1

    def exchange(self, other: Mapping[int, int], sides: Sequence[str]) -> None:
        """Other tensors as the graph's inputs or outputs, under the same names."""
        for side in sides:
            held = getattr(self._graph, side)
            for old in {*held} & other.keys():
                self._graph.tensors[other[old]].name = self._graph.tensors[old].name
            setattr(self._graph, side, [other.get(i, i) for i in held])
            for definition in self._model.signatureDefs or ():
                for entry in getattr(definition, side) or ():
                    entry.tensorIndex = other.get(entry.tensorIndex, entry.tensorIndex)

    def finish(self) -> bytes:
        import flatbuffers

        size = sum(len(b.data) for b in self._model.buffers if b.data is not None)
        builder = flatbuffers.Builder(size + (1 << 16))
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
