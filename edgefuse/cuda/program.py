"""A fused graph as a GPU runs it: launches in order, and one arena that all their tensors lie in.

A :class:`Program` is frozen data. It names no library and holds no numbers: weights are bytes
beside it (:class:`edgefuse.cuda.weights.Weights`), each at its tensor's ``offset``. What a launch
computes is in :mod:`edgefuse.cuda.contract` (kernel by kernel) and :mod:`edgefuse.cuda.steps` (its
epilogue).

Tensors are contiguous, the last axis of ``shape`` is next to each other in memory: pictures lie as
[N, H, W, C]. Inputs and outputs lie as the model gives and takes them, mostly [N, C, H, W]. An
alias is the same bytes under another shape. Every tensor has fewer than 2^31 elements, so that
32-bit indices reach all of it; its own offset is added to the pointer.

Precision is of activations and of matrix weights; accumulators are float32, int32 for int8. Bias
vectors, scales of normalisations and gates that are weights are float32, in int8 programs int32
biases and float32 multipliers. ``real = scale * (stored - zero_point)`` for a quantised tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeAlias, cast

from edgefuse.artifact import Quantization
from edgefuse.cuda.steps import Step
from edgefuse.cuda.storage import ITEM_BYTES, Dtype, Precision
from edgefuse.errors import StageError
from edgefuse.memory.arena import Arena, Live

SCHEMA = 1
ARENA_ALIGNMENT = 256
MOST_ELEMENTS = 2**31 - 1
Role = Literal["input", "output", "weight", "inner"]
Scalar: TypeAlias = int | float | str
#: Numbers, words, and tuples of these, to any depth.
Attribute: TypeAlias = "Scalar | tuple[Attribute, ...]"


@dataclass(frozen=True)
class Tensor:
    """A tensor of a program.

    Attributes:
        name: unique.
        shape: in memory order.
        role: inputs are written by the caller, weights lie in the weights' bytes, all others are
            written by one launch and lie in the arena, as do inputs.
        offset: bytes: of a weight in the weights' bytes; of all others in the arena.
        quantization: per tensor; None: real numbers, or integers that are read as such.
        alias_of: the tensor whose bytes these are; empty: its own.
        module: torch module path of what made it; empty when unknown.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    role: Role
    offset: int = 0
    quantization: Quantization | None = None
    alias_of: str = ""
    module: str = ""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        name: unique; the name of the fused group that it ends with, ``<group>/<part>`` for
            further launches of the group.
        kernel: a key of :data:`edgefuse.cuda.contract.KERNELS`.
        inputs: tensors that the kernel itself reads; a tensor may occur twice.
        weights: in the kernel's order.
        output: the tensor that it writes, all of it.
        attributes: as the kernel's contract says.
        inner: steps on the way to the operand: of ``depthwise_project`` on the depthwise
            accumulator, of ``conv1x1`` and ``gemm`` on the elements of the input. Their result is
            rounded to the activations' dtype, as if it had been stored.
        epilogue: steps on the accumulator.
        groups: the fused groups that it computes, the last one being the one that it ends with.
        nodes: the nodes of the unfused ONNX graph that it computes.
        module: torch module path of the first of them.
        matrix_flops, vector_flops: as :mod:`edgefuse.graph.flops` counts.
        bytes_read, bytes_written: of memory, each tensor once, what strided views do not touch left
            out.
    """

    name: str
    kernel: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    inner: tuple[Step, ...] = ()
    epilogue: tuple[Step, ...] = ()
    groups: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    module: str = ""
    matrix_flops: int = 0
    vector_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """Tensors that the steps name, in order, each once."""
        named = (name for step in (*self.inner, *self.epilogue) for name in step.operands)
        return tuple(dict.fromkeys(n for n in named if n != "acc" and n[0] not in "%$"))

    @property
    def reads(self) -> tuple[str, ...]:
        """All that the launch reads, each once."""
        return tuple(dict.fromkeys((*self.inputs, *self.weights, *self.operands)))

    @property
    def place(self) -> str:
        """For messages: ``launch 'node' (torch module features.0)``."""
        return f"launch {self.name!r}" + (f" (torch module {self.module})" if self.module else "")


@dataclass(frozen=True)
class Program:
    """A model at fixed shapes.

    Attributes:
        name: of the model.
        bucket: label of the shapes.
        precision: fp32, fp16, bf16 or int8.
        tensors: inputs, weights, then the others in the order of their making.
        launches: in order of execution.
        arena: over all tensors that are neither weights nor aliases.
        weights_bytes: length of the weights' bytes.
        floor_bytes: least bytes that this grouping has to move, by the cost model of
            :mod:`edgefuse.graph.cost`.
        notes: in words: what was decided on the way and why.
    """

    name: str
    bucket: str
    precision: Precision
    tensors: tuple[Tensor, ...]
    launches: tuple[Launch, ...]
    arena: Arena
    weights_bytes: int
    floor_bytes: int = 0
    notes: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def tensor(self, name: str) -> Tensor:
        return self.by_name[name]

    def root(self, name: str) -> Tensor:
        """The tensor that owns the bytes of a name."""
        tensor = self.by_name[name]
        return self.by_name[tensor.alias_of] if tensor.alias_of else tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "input")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "output")

    @property
    def bytes_moved(self) -> int:
        return sum(launch.bytes_read + launch.bytes_written for launch in self.launches)

    @property
    def flops(self) -> int:
        return sum(launch.matrix_flops + launch.vector_flops for launch in self.launches)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "bucket": self.bucket,
            "precision": self.precision,
            "weights_bytes": self.weights_bytes,
            "floor_bytes": self.floor_bytes,
            "notes": list(self.notes),
            "tensors": [_tensor_row(tensor) for tensor in self.tensors],
            "launches": [_launch_row(launch) for launch in self.launches],
            "arena": _arena_row(self.arena),
        }

    def to_text(self) -> str:
        """JSON text; equal programs give equal text."""
        return json.dumps(self.to_json(), sort_keys=True, indent=1) + "\n"

    def checked(self) -> Program:
        """The program itself.

        Raises:
            StageError: a fault, with the launch or tensor; a program that lowering made has none.
        """
        from edgefuse.cuda.faults import faults

        for fault in faults(self):
            raise fault
        return self


def from_text(text: str, where: str = "program") -> Program:
    """The checked program of :meth:`Program.to_text`.

    Raises:
        StageError: no program of this schema, or one with a fault.
    """
    from edgefuse.cuda.document import breach

    try:
        row = json.loads(text)
        if row["schema"] != SCHEMA:
            raise StageError(
                f"the program has schema {row['schema']!r}, {SCHEMA} is read here",
                hint="make the program again",
                where=where,
            )
        if found := breach(text):
            raise ValueError(found)
        program = Program(
            name=str(row["name"]),
            bucket=str(row["bucket"]),
            precision=row["precision"],
            tensors=tuple(_tensor(r) for r in row["tensors"]),
            launches=tuple(_launch(r) for r in row["launches"]),
            arena=_arena(row["arena"]),
            weights_bytes=int(row["weights_bytes"]),
            floor_bytes=int(row["floor_bytes"]),
            notes=tuple(row["notes"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StageError(
            f"not a program: {type(error).__name__} {error}",
            hint="make the program again; a cut copy does this",
            where=where,
        ) from error
    return program.checked()


def indexable(name: str, shape: tuple[int, ...], where: str = "") -> None:
    """Refuse a tensor that 32-bit indices do not reach.

    Raises:
        StageError: with the shape and the remedy.
    """
    if prod(shape) > MOST_ELEMENTS:
        raise StageError(
            f"tensor {name!r} {list(shape)} has {prod(shape)} elements: kernels index with 32 bits "
            f"and reach {MOST_ELEMENTS}",
            hint="make the batch or the picture smaller",
            where=where,
        )


def _tensor_row(tensor: Tensor) -> dict[str, Any]:
    q = tensor.quantization
    return {
        **{key: value for key, value in vars(tensor).items() if key != "quantization"},
        "shape": list(tensor.shape),
        "quantization": None if q is None else {"scale": q.scale, "zero_point": q.zero_point},
    }


def _tensor(row: Mapping[str, Any]) -> Tensor:
    q = row["quantization"]
    made = Quantization(q["scale"], q["zero_point"]) if q else None
    return replace(Tensor(**{**row, "shape": tuple(row["shape"])}), quantization=made)


def _launch_row(launch: Launch) -> dict[str, Any]:
    steps = {key: [s.to_json() for s in getattr(launch, key)] for key in ("inner", "epilogue")}
    return {**vars(launch), "attributes": dict(launch.attributes), **steps}


def _launch(row: Mapping[str, Any]) -> Launch:
    steps = {k: tuple(Step.from_json(s) for s in row[k]) for k in ("inner", "epilogue")}
    names = {k: tuple(row[k]) for k in ("inputs", "weights", "groups", "nodes")}
    attributes = {k: _frozen(v) for k, v in row["attributes"].items()}
    return Launch(**{**row, **steps, **names, "attributes": attributes})


def _frozen(value: Any) -> Attribute:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else cast(Attribute, value)


def _arena_row(arena: Arena) -> dict[str, Any]:
    buffers = [{**vars(b), "tensors": list(b.tensors)} for b in arena.buffers]
    return {**vars(arena), "buffers": buffers}


def _arena(row: Mapping[str, Any]) -> Arena:
    buffers = tuple(Live(**{**b, "tensors": tuple(b["tensors"])}) for b in row["buffers"])
    lists = {key: tuple(row[key]) for key in ("offsets", "steps")}
    return Arena(**{**row, "buffers": buffers, **lists})
