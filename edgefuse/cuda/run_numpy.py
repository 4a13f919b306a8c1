"""Run a program in NumPy, in one arena of bytes: the reference of every other runner.

Every tensor but weights is a view of the arena at its offset. Values are decoded on reading, the
accumulator comes from the kernel's reference, its steps from :mod:`edgefuse.cuda.steps`, and the
result is rounded on storing. ``poison`` fills the arena before the inputs are written: a plan that
lets two live tensors share bytes, or a read of what nobody wrote, then shows in the numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from math import prod
from typing import cast

import numpy as np

from edgefuse.cuda.call import Call, Reference
from edgefuse.cuda.program import Launch, Program, Tensor
from edgefuse.cuda.steps import evaluate
from edgefuse.cuda.storage import ACTIVATIONS, HELD, Array, decode, encode
from edgefuse.cuda.views import strided
from edgefuse.cuda.weights import Weights
from edgefuse.errors import DataError


class Runner:
    """One program with its arena.

    Args:
        poison: the byte that the arena is filled with before every run.
        watch: called with each launch and its decoded result, after it was stored.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        *,
        poison: int = 0,
        watch: Callable[[Launch, Array], None] | None = None,
    ) -> None:
        self._program, self._weights, self._watch = program, weights, watch
        self._poison = poison
        self._arena = np.zeros(program.arena.arena_bytes, np.uint8)

    def __call__(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, float32, or as stored for integers without quantisation.

        Args:
            feed: real numbers by input name, contiguous or not, of the inputs' shapes.

        Raises:
            DataError: an input is missing or has another shape.
        """
        self._arena[:] = self._poison
        for tensor in self._program.inputs:
            self.held(tensor)[...] = as_held(tensor, feed)
        for launch in self._program.launches:
            self._run(launch)
        return {t.name: from_held(self.held(t).copy(), t) for t in self._program.outputs}

    def held(self, tensor: Tensor) -> Array:
        """A tensor's bytes in the arena, or in the weights, as an array."""
        if tensor.role == "weight":
            return self._weights.held(tensor)
        part = self._arena[tensor.offset : tensor.offset + tensor.nbytes]
        view: Array = part.view(HELD[tensor.dtype]).reshape(tensor.shape)
        return view

    def _read(self, name: str) -> Array:
        tensor = self._program.tensor(name)
        return decode(self.held(tensor), tensor.dtype)

    def _run(self, launch: Launch) -> None:
        output = self._program.tensor(launch.output)
        inputs = tuple(self._read(name) for name in launch.inputs)

        def read(name: str) -> Array:
            if not name.startswith("$"):
                return self._read(name)
            place = int(name[1:])
            views = cast("tuple[object, ...]", launch.attributes["views"])
            return strided(inputs[place], views[place], space)

        space = cast("tuple[int, ...]", launch.attributes.get("shape", output.shape))
        call = Call(
            inputs=inputs,
            weights=tuple(self._read(name) for name in launch.weights),
            attributes=launch.attributes,
            shape=output.shape,
            integers=bool(inputs) and all(x.dtype.kind == "i" for x in inputs),
            inner=launch.inner,
            dtype=ACTIVATIONS[self._program.precision],
            read=self._read,
        )
        accumulator = reference(launch.kernel)(call)
        assert prod(accumulator.shape) == output.elements, launch.place
        result = evaluate(launch.epilogue, accumulator, read).reshape(output.shape)
        self.held(output)[...] = encode(result, output.dtype)
        if self._watch is not None:
            self._watch(launch, self._read(launch.output))


def reference(kernel: str) -> Reference:
    """The reference of a kernel."""
    module = importlib.import_module(f"edgefuse.cuda.kernels.{kernel}")
    return cast(Reference, module.reference)


def as_held(tensor: Tensor, feed: Mapping[str, Array]) -> Array:
    """An input as its bytes lie in the arena: of any runner.

    Raises:
        DataError: it is missing or has another shape.
    """
    if tensor.name not in feed or feed[tensor.name].shape != tensor.shape:
        given = feed[tensor.name].shape if tensor.name in feed else None
        raise DataError(
            f"input {tensor.name!r} has to be {list(tensor.shape)}, "
            + ("it is missing" if given is None else f"not {list(given)}"),
            hint="a program runs at its bucket's shapes alone",
        )
    return to_held(feed[tensor.name], tensor)


def to_held(values: Array, tensor: Tensor) -> Array:
    """Real numbers as an input holds them; integers for an int8 tensor are taken as they are."""
    q = tensor.quantization
    if q is not None and values.dtype.kind == "f":
        whole = np.rint(values.astype(np.float64) / q.scale) + q.zero_point
        values = np.clip(whole, -128, 127)
    return encode(values, tensor.dtype)


def from_held(held: Array, tensor: Tensor) -> Array:
    """Real numbers of what an output holds."""
    values = decode(held, tensor.dtype)
    q = tensor.quantization
    if q is None:
        return values
    return ((values - q.zero_point) * np.float32(q.scale)).astype(np.float32)
