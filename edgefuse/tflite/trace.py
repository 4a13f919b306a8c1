"""Where each node of a fused graph ended in the int8 file, followed by value.

Problem: names do not survive a converter, operators are split, merged, moved and dropped. But the
numbers survive: the float file computes, somewhere, what the node computed, perhaps with its axes
in another order. So the node's values on one sample are looked for among the tensors of the float
file, as sorted numbers, which no change of layout can alter:

    max |sort(a) - sort(b)| <= tolerance * max |a|.

A node that only moves values has those of its input: it is looked for behind it.
What lies between the tensors so found, backwards from each, are the operators that the node became.
A node whose values are nowhere was merged into the next one downstream that is found. The int8
file has the float file's operators in the same order, but for QUANTIZE and DEQUANTIZE.

Scope: files with one subgraph. Left alone: judgement; that is the fusion contract's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from edgefuse.tflite.read import Operator, TfliteModel

Array = np.ndarray[Any, Any]
TOLERANCE = 2e-4
LAYOUT = ("RESHAPE", "TRANSPOSE", "EXPAND_DIMS", "SQUEEZE")
CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")
VIEWS = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast")


class Step(Protocol):
    """What is read of a node of the fused graph (:class:`edgefuse.graph.watch.Step`)."""

    @property
    def name(self) -> str: ...
    @property
    def op_type(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Landing:
    """What became of one node.

    Attributes:
        step: the node's name.
        operators: indices of its operators in the int8 file, in order; shared with ``merged_into``
            when that is set; empty when the node is only a way of reading its input.
        merged_into: the node in whose operators it was absorbed; empty when it has its own.
    """

    step: str
    operators: tuple[int, ...]
    merged_into: str = ""


@dataclass(frozen=True)
class Trace:
    """Every node, and the operators of the int8 file that belong to none.

    Attributes:
        landings: one a node, in graph order.
        layout: int8 operators that only move or convert values between two nodes.
        unexplained: int8 operators that nothing accounts for.
    """

    landings: tuple[Landing, ...]
    layout: tuple[int, ...]
    unexplained: tuple[int, ...]


def trace(
    steps: Sequence[Step],
    onnx_values: Mapping[str, Array],
    float_model: TfliteModel,
    float_values: Mapping[int, Array],
    int8_model: TfliteModel,
) -> Trace:
    """Follow every node.

    Args:
        onnx_values: of each value of the fused graph on one sample, by name.
        float_values: of each tensor of the float file on the same sample, by index.
    """
    search = _Search(float_model, float_values, onnx_values)
    for step in steps:
        search.find(step)
    owner = _regions(steps, search, float_model)
    partner = partners(float_model, int8_model)
    own: dict[str, list[int]] = {}
    for index, name in sorted(owner.items()):
        if index in partner:
            own.setdefault(name, []).append(partner[index])
    known = {i for indices in own.values() for i in indices}
    rest = [op for op in int8_model.operators if op.index not in known]
    layout = tuple(op.index for op in rest if op.code in LAYOUT + CONVERSIONS)
    return Trace(
        landings=tuple(_landing(step, steps, search.tensor_of, own) for step in steps),
        layout=layout,
        unexplained=tuple(op.index for op in rest if op.index not in layout),
    )


def locate(
    steps: Sequence[Step],
    onnx_values: Mapping[str, Array],
    float_model: TfliteModel,
    float_values: Mapping[int, Array],
) -> dict[str, int]:
    """The tensor of the float file that holds each value; without values that are nowhere.

    Args:
        As :func:`trace`'s.
    """
    search = _Search(float_model, float_values, onnx_values)
    for step in steps:
        search.find(step)
    return search.tensor_of


@dataclass
class _Search:
    """Finds values of the ONNX graph among the tensors of the float file."""

    model: TfliteModel
    values: Mapping[int, Array]
    onnx_values: Mapping[str, Array]
    tensor_of: dict[str, int] = field(default_factory=dict)
    _sorted: dict[int, Array] = field(default_factory=dict)
    _by_size: dict[int, list[int]] = field(default_factory=dict)
    _makers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, index in self.model.signature_inputs:
            self.tensor_of[name] = index
        self._makers = {i: op.index for op in self.model.operators for i in op.outputs}
        for index in self._makers:
            if index in self.values:
                self._by_size.setdefault(self.values[index].size, []).append(index)

    def find(self, step: Step) -> None:
        read = [self.tensor_of[name] for name in step.inputs if name in self.tensor_of]
        earliest = max((self._makers.get(index, -1) for index in read), default=-1)
        if step.op_type in VIEWS:
            earliest += 1
        for name in step.outputs:
            value = self.onnx_values.get(name)
            if value is None or value.dtype.kind != "f" or value.size == 0:
                continue
            found = self._nearest(value, earliest)
            if found is None and step.op_type in VIEWS and read:
                found = read[0]
            if found is not None:
                self.tensor_of[name] = found

    def _nearest(self, value: Array, earliest: int) -> int | None:
        """The tensor with these numbers that is made first, by operator ``earliest`` or later."""
        wanted = np.sort(value, axis=None).astype(np.float32)
        limit = TOLERANCE * float(np.abs(wanted[[0, -1]]).max())
        best, least = None, np.inf
        for index in self._by_size.get(value.size, ()):
            if self._makers[index] < earliest:
                continue
            gap = float(np.abs(self._of(index) - wanted).max())
            if gap <= limit and gap < least * 0.5:
                best, least = index, gap
        return best

    def _of(self, index: int) -> Array:
        if index not in self._sorted:
            self._sorted[index] = np.sort(self.values[index], axis=None).astype(np.float32)
        return self._sorted[index]


def _regions(steps: Sequence[Step], search: _Search, model: TfliteModel) -> dict[int, str]:
    """The node that each operator of the float file belongs to."""
    makers = {index: op for op in model.operators for index in op.outputs}
    stops = set(search.tensor_of.values())
    owner: dict[int, str] = {}
    for step in steps:
        for name in step.outputs:
            waiting = [search.tensor_of[name]] if name in search.tensor_of else []
            first = True
            while waiting:
                tensor = waiting.pop()
                op = makers.get(tensor)
                if op is None or op.index in owner or (tensor in stops and not first):
                    continue
                first = False
                owner[op.index] = step.name
                waiting += [index for index in op.inputs if index >= 0]
    return owner


def partners(float_model: TfliteModel, int8_model: TfliteModel) -> dict[int, int]:
    """The int8 operator of each float operator: by order, else by the name of its result."""
    left = [op for op in float_model.operators if op.code not in CONVERSIONS]
    right = [op for op in int8_model.operators if op.code not in CONVERSIONS]
    if [op.code for op in left] == [op.code for op in right]:
        return {a.index: b.index for a, b in zip(left, right)}

    def result(model: TfliteModel, op: Operator) -> str:
        return model.tensors[op.outputs[0]].name

    names = {(op.code, result(int8_model, op)): op.index for op in right}
    keys = {op.index: (op.code, result(float_model, op)) for op in left}
    return {index: names[key] for index, key in keys.items() if key in names}


def _landing(
    step: Step, steps: Sequence[Step], tensor_of: Mapping[str, int], own: Mapping[str, list[int]]
) -> Landing:
    if step.name in own:
        return Landing(step.name, tuple(sorted(own[step.name])))
    if any(name in tensor_of for name in step.outputs):
        return Landing(step.name, ())
    readers = {name: [s for s in steps if name in s.inputs] for name in step.outputs}
    waiting = [s for found in readers.values() for s in found]
    seen: set[str] = set()
    while waiting:
        other = waiting.pop(0)
        if other.name in seen:
            continue
        seen.add(other.name)
        if other.name in own:
            return Landing(step.name, tuple(sorted(own[other.name])), other.name)
        waiting += [s for s in steps if set(s.inputs) & set(other.outputs)]
    return Landing(step.name, ())
