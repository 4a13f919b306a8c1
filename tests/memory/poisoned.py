"""Runs an ONNX model operator by operator with every tensor at its place in one arena.

A buffer is filled with 0xFF (a NaN, in floats) when it is born and when it dies, so that whatever
reads it too early or too late, or shares an address with it, answers something else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from edgefuse.graph.cost import load_time
from edgefuse.graph.fuse import serialise
from edgefuse.graph.verify import Runner
from edgefuse.memory.arena import Arena
from edgefuse.memory.liveness.onnx import steps_of

Array = np.ndarray[Any, Any]
POISON = 0xFF


class Model:
    """A prepared model, an operator at a time."""

    def __init__(self, model: ir.Model, feed: dict[str, Array]) -> None:
        proto = serialise(model)
        self.feed = feed
        self.outputs = [output.name for output in proto.graph.output]
        self._proto = proto
        self._nodes = {node.name: node for node in proto.graph.node}
        self._runners: dict[str, Runner] = {}
        self.values: dict[str, Array] = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer
        }
        early = load_time(model)
        self.steps = steps_of(model)
        # What a runtime computes once, when it loads the model; from a run where shapes are read.
        plain = {**self.values, **feed}
        for node in model.graph:
            made = self.run(str(node.name), plain)
            plain.update(made)
            if node in early:
                self.values.update(made)
        self.plain = {name: plain[name] for name in self.outputs}

    def run(self, name: str, values: dict[str, Array]) -> dict[str, Array]:
        """The results of one operator."""
        node = self._nodes[name]
        names = {n for n in node.input if n}
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                names |= {n for inner in graph.node for n in inner.input if n in values}
                names |= {o.name for o in graph.output if o.name in values}
        if name not in self._runners:
            self._runners[name] = Runner(self._alone(node, sorted(names), values))
        return self._runners[name]({n: values[n] for n in names})

    def _alone(self, node: Any, names: list[str], values: dict[str, Array]) -> onnx.ModelProto:
        given = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape
            )
            for n in names
        ]
        results = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        graph = helper.make_graph([node], "alone", given, results)
        return helper.make_model(
            graph,
            opset_imports=self._proto.opset_import,
            functions=self._proto.functions,
            ir_version=self._proto.ir_version,
        )

    def in_arena(self, arena: Arena) -> dict[str, Array]:
        """The outputs of a run in which only the arena holds what is computed."""
        memory = np.full(arena.arena_bytes, POISON, np.uint8)
        spans = [
            slice(offset, offset + buffer.size_bytes)
            for offset, buffer in zip(arena.offsets, arena.buffers, strict=True)
        ]
        place = {n: k for k, buffer in enumerate(arena.buffers) for n in buffer.tensors}
        kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}

        def write(name: str, array: Array) -> None:
            data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
            begin = spans[place[name]].start
            memory[begin : begin + data.size] = data
            kinds[name] = array.dtype, array.shape

        def read(name: str) -> Array:
            dtype, shape = kinds[name]
            begin = spans[place[name]].start
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            return memory[begin : begin + size].copy().view(dtype).reshape(shape)

        for name, array in self.feed.items():
            if name in place:
                write(name, array)
        for index, step in enumerate(self.steps):
            made = {str(value.name) for value in (*step.makes, *step.holds)}
            for buffer, span in zip(arena.buffers, spans, strict=True):
                if buffer.first == index and buffer.tensors[0] in made:
                    memory[span] = POISON
            given = {str(v.name): read(str(v.name)) for v in step.reads}
            results = self.run(str(step.nodes[0].name), {**self.values, **given})
            for name, array in results.items():
                write(name, array)
            for buffer, span in zip(arena.buffers, spans, strict=True):
                if buffer.last == index < len(self.steps) - 1:
                    memory[span] = POISON
        return {n: read(n) if n in place else self.values[n] for n in self.outputs}


def equal(one: dict[str, Array], other: dict[str, Array]) -> bool:
    """Bit by bit."""
    return all(one[n].tobytes() == other[n].tobytes() for n in one) and one.keys() == other.keys()
