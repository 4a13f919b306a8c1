"""Programs of one launch, with random numbers, for tests of kernels."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.cuda.program import ARENA_ALIGNMENT, Launch, Program, Tensor
from edgefuse.cuda.steps import Step
from edgefuse.cuda.storage import ACTIVATIONS, Array, Dtype, Precision, decode, encode
from edgefuse.cuda.weights import Weights, WeightsWriter
from edgefuse.memory.arena import Arena, Live, aligned

Shape = tuple[int, ...]
SCALE = 0.5
#: Standard deviations of random int8 values, and of those that are wanted.
STORED_SPREAD = 74.0
WANTED_SPREAD = 45.0


@dataclass(frozen=True)
class Case:
    """A launch as a program, its weights and its inputs."""

    program: Program
    weights: Weights
    inputs: Mapping[str, Array]


@dataclass(frozen=True)
class Kernel:
    """What a case launches; shapes of what it reads, by name.

    Attributes:
        vectors: float32 weights that steps name; int32 in int8 programs unless they are named
            ``m``, which are multipliers.
        beside: tensors in the arena that steps name: residuals, gates.
    """

    name: str
    inputs: Mapping[str, Shape]
    output: Shape
    weights: Mapping[str, Shape] = ()  # type: ignore[assignment]
    attributes: Mapping[str, Any] = ()  # type: ignore[assignment]
    inner: Sequence[Step] = ()
    epilogue: Sequence[Step] = ()
    vectors: Mapping[str, Shape] = ()  # type: ignore[assignment]
    beside: Mapping[str, Shape] = ()  # type: ignore[assignment]
    float_weights: bool = False
    output_dtype: Dtype | None = None
    label: str = ""


def case(kernel: Kernel, precision: Precision) -> Case:
    """The program of one launch; the same numbers every time."""
    rng = np.random.default_rng(zlib.crc32(f"{kernel.name} {kernel.label}".encode()))
    held = ACTIVATIONS[precision]
    writer = WeightsWriter()
    tensors: list[Tensor] = []
    given: dict[str, Array] = {}
    live: list[Live] = []
    offsets: list[int] = []
    end = 0

    def place(name: str, shape: Shape, dtype: Dtype, role: Any) -> None:
        nonlocal end
        tensor = Tensor(name, shape, dtype, role, end)
        tensors.append(tensor)
        live.append(Live(name, tensor.nbytes, 0, 0, (name,)))
        offsets.append(end)
        end += aligned(tensor.nbytes, ARENA_ALIGNMENT)

    for name, shape in {**dict(kernel.inputs), **dict(kernel.beside)}.items():
        place(name, shape, held, "input")
        given[name] = decode(_numbers(rng, shape, held, SCALE), held)
    for name, shape in dict(kernel.weights).items():
        dtype: Dtype = "float32" if kernel.float_weights else held
        reach = 1.0 if kernel.float_weights else 1.5 / np.sqrt(np.prod(shape[:-1]))
        values = _numbers(rng, shape, dtype, reach)
        tensors.append(Tensor(name, shape, dtype, "weight", writer.add(values)))
    for name, shape in dict(kernel.vectors).items():
        spread = _spread(kernel, first=name in ("c", "mc"))
        dtype = "float32"
        if name.startswith("m"):
            values = (rng.uniform(0.5, 1.5, shape) * WANTED_SPREAD / spread).astype(np.float32)
        elif precision == "int8":
            dtype = "int32"
            values = rng.integers(-int(spread / 3), int(spread / 3), shape).astype(np.int32)
        else:
            values = _numbers(rng, shape, "float32", SCALE)
        tensors.append(Tensor(name, shape, dtype, "weight", writer.add(values)))
    place("y", kernel.output, kernel.output_dtype or held, "output")
    launch = Launch(
        name=f"{kernel.name}#0",
        kernel=kernel.name,
        inputs=tuple(dict(kernel.inputs)),
        weights=tuple(dict(kernel.weights)),
        output="y",
        attributes=dict(kernel.attributes),
        inner=tuple(kernel.inner),
        epilogue=tuple(kernel.epilogue),
    )
    weights = writer.weights()
    program = Program(
        name=kernel.name,
        bucket="only",
        precision=precision,
        tensors=tuple(tensors),
        launches=(launch,),
        arena=Arena("test", tuple(live), tuple(offsets), ("only",), end, False),
        weights_bytes=len(weights.data),
    )
    return Case(program.checked(), weights, given)


def _spread(kernel: Kernel, first: bool) -> float:
    """The standard deviation, roughly, of an int8 launch's accumulator."""
    shapes = list(dict(kernel.weights).values())
    if not shapes:
        return STORED_SPREAD * 5
    shape = shapes[0] if first else shapes[-1]
    return STORED_SPREAD**2 * float(np.sqrt(np.prod(shape[:-1])))


def _numbers(rng: np.random.Generator, shape: Shape, dtype: Dtype, reach: float) -> Array:
    if dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return encode((rng.standard_normal(shape) * reach).astype(np.float32), dtype)
