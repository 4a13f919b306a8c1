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
from collections.abc import Iterator, Mapping
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
        for fault in faults(self):
            raise fault
        return self


def from_text(text: str, where: str = "program") -> Program:
    """The checked program of :meth:`Program.to_text`.

    Raises:
        StageError: no program of this schema, or one with a fault.
    """
    try:
        row = json.loads(text)
        if row["schema"] != SCHEMA:
            raise StageError(
                f"the program has schema {row['schema']!r}, {SCHEMA} is read here",
                hint="make the program again",
                where=where,
            )
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
    except (KeyError, TypeError, ValueError) as error:
        raise StageError(
            f"not a program: {type(error).__name__} {error}",
            hint="make the program again; a cut copy does this",
            where=where,
        ) from error
    return program.checked()


def faults(program: Program) -> Iterator[StageError]:
    """Everything that is wrong with a program, in order; each as the error that names it."""
    from edgefuse.cuda.contract import breaches

    if len(program.by_name) != len(program.tensors):
        yield StageError(f"two tensors of program {program.name!r} share a name")
    for tensor in program.tensors:
        yield from _tensor_faults(program, tensor)
    yield from _arena_faults(program)
    written = {t.name for t in program.tensors if t.role in ("input", "weight")}
    for launch in program.launches:
        unknown = [n for n in (*launch.reads, launch.output) if n not in program.by_name]
        if unknown:
            yield StageError(f"tensor {unknown[0]!r} does not exist", where=launch.place)
            continue
        for name in launch.reads:
            if program.root(name).name not in written:
                yield StageError(
                    f"tensor {name!r} is read before it is written", where=launch.place
                )
        output = program.root(launch.output)
        if output.name in written:
            yield StageError(f"tensor {output.name!r} is written twice", where=launch.place)
        written.add(output.name)
        for text in breaches(program, launch):
            yield StageError(text, where=launch.place)
    for tensor in program.outputs:
        if program.root(tensor.name).name not in written:
            yield StageError(f"output {tensor.name!r} is never written")


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


def _tensor_faults(program: Program, tensor: Tensor) -> Iterator[StageError]:
    try:
        indexable(tensor.name, tensor.shape)
    except StageError as error:
        yield error
    if any(extent < 1 for extent in tensor.shape):
        yield StageError(f"tensor {tensor.name!r} {list(tensor.shape)} has no elements")
    if not tensor.alias_of:
        if tensor.role == "weight" and tensor.offset + tensor.nbytes > program.weights_bytes:
            yield StageError(f"weight {tensor.name!r} reaches beyond the end of the weights")
        return
    whole = program.by_name.get(tensor.alias_of)
    same = whole is not None and (whole.elements, whole.dtype) == (tensor.elements, tensor.dtype)
    if whole is None or whole.alias_of or not same or whole.offset != tensor.offset:
        yield StageError(f"tensor {tensor.name!r} is no alias of {tensor.alias_of!r}")


def _arena_faults(program: Program) -> Iterator[StageError]:
    """The plan against the launches: lifetimes are worked out again, from the launches alone."""
    placed = {
        name: (offset, buffer)
        for buffer, offset in zip(program.arena.buffers, program.arena.offsets, strict=True)
        for name in (buffer.tensors or (buffer.name,))
    }
    lives: dict[str, tuple[int, int]] = {t.name: (0, 0) for t in program.inputs}
    end = max(len(program.launches) - 1, 0)
    for step, launch in enumerate(program.launches):
        for name in (*launch.reads, launch.output):
            root = program.root(name) if name in program.by_name else None
            if root is not None and root.role != "weight":
                lives[root.name] = (lives.get(root.name, (step, step))[0], step)
    for tensor in program.outputs:
        root = program.root(tensor.name)
        lives[root.name] = (lives.get(root.name, (end, end))[0], end)
    for name, (first, last) in lives.items():
        tensor = program.by_name[name]
        if name not in placed:
            yield StageError(f"tensor {name!r} has no place in the arena")
            continue
        offset, buffer = placed[name]
        within = buffer.first <= first and last <= buffer.last
        if offset != tensor.offset or tensor.nbytes > buffer.size_bytes or not within:
            yield StageError(f"tensor {name!r} does not fit its buffer {buffer.name!r}")
        if offset % ARENA_ALIGNMENT:
            yield StageError(f"tensor {name!r} begins at {offset}, not at {ARENA_ALIGNMENT} bytes")
    yield from _overlaps(program, lives)


def _overlaps(program: Program, lives: Mapping[str, tuple[int, int]]) -> Iterator[StageError]:
    """Tensors that are alive at once in the same bytes, but for a result over its own operand."""
    from edgefuse.cuda.contract import read_by_element

    makers = {program.root(launch.output).name: launch for launch in program.launches}
    ordered = sorted(lives, key=lambda name: lives[name])
    for place, late in enumerate(ordered):
        b = program.by_name[late]
        for early in ordered[:place]:
            a = program.by_name[early]
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            if apart or lives[early][1] < lives[late][0] or late not in makers:
                continue
            over = {program.root(n).name for n in read_by_element(program.by_name, makers[late])}
            same = a.offset == b.offset and a.nbytes == b.nbytes
            if not (same and lives[early][1] == lives[late][0] and early in over):
                yield StageError(f"tensors {early!r} and {late!r} share bytes while both live")


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
