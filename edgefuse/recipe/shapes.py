"""Shape buckets of a recipe: the input shapes that a model is planned for, each whole and static.

A batch or size that varies is never symbolic: it is a list of buckets, ``shapes: {buckets: [1, 64,
{image: [1, 3, 256, 256]}]}``. A number is a batch, the first axis of every input; a mapping gives
shapes by input name, and inputs that it does not name keep the shape of ``model.inputs``. That
shape, the one that is shipped, must be among them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field

from edgefuse.section import Section

REMEDY = "a batch or size that varies is given as shapes: {buckets: [1, 64]}"


class Input(Protocol):
    """What a bucket needs to know of a model input."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Bucket:
    """The shapes of all inputs, in the order of ``model.inputs``."""

    label: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def as_mapping(self) -> dict[str, tuple[int, ...]]:
        return dict(self.shapes)


def static_sizes(value: Any) -> Any:
    """A shape whose sizes are positive whole numbers; anything else is returned as it is.

    Raises:
        ValueError: a size is text, zero or negative: it names the remedy.
    """
    if isinstance(value, list | tuple):
        for size in value:
            if isinstance(size, str) or (isinstance(size, int) and size <= 0) or size is None:
                raise ValueError(f"size {size!r} must be an integer greater than 0; {REMEDY}")
    return value


def bucket(value: Any) -> int | dict[str, tuple[int, ...]]:
    """One entry of ``shapes.buckets``.

    Raises:
        ValueError: neither a positive number nor a mapping of input names to static shapes.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, Mapping) and value:
        return {str(name): _shape(name, shape) for name, shape in value.items()}
    raise ValueError(
        f"a bucket is a batch greater than 0, or input names with their shapes, not {value!r}"
    )


def _shape(name: Any, value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, list | tuple) else []
    if not sizes or any(isinstance(s, bool) or not isinstance(s, int) or s <= 0 for s in sizes):
        raise ValueError(f"the shape of {name!r} must be positive sizes, not {value!r}")
    return tuple(sizes)


class Shapes(Section):
    """The input shapes that kernels are planned for; without it, those of model.inputs alone."""

    buckets: tuple[Annotated[int | dict[str, tuple[int, ...]], BeforeValidator(bucket)], ...] = (
        Field(
            min_length=1,
            description="Each a batch (the first axis of every input), or input names with their "
            "shapes. The shapes of model.inputs, which are shipped, must be among them. Each "
            "bucket is proven, and its kernels are chosen by the cost model.",
        )
    )


def resolve(
    buckets: Sequence[int | Mapping[str, tuple[int, ...]]], inputs: Sequence[Input]
) -> tuple[Bucket, ...]:
    """Every bucket with the shapes of all inputs, in the recipe's order.

    Raises:
        ValueError: an unknown input, another rank, a batch that not all inputs have as their first
            axis, a bucket given twice, or none with the shapes of ``model.inputs``.
    """
    shipped = tuple((i.name, tuple(i.shape)) for i in inputs)
    found = [_resolve(given, inputs) for given in buckets]
    for place, one in enumerate(found):
        for earlier in found[:place]:
            if earlier.shapes == one.shapes:
                said = f"{earlier.label!r} and {one.label!r}"
                raise ValueError(f"shapes.buckets: {said} are the same shapes: leave one out")
    if all(one.shapes != shipped for one in found):
        wanted = ", ".join(f"{name} {list(shape)}" for name, shape in shipped)
        raise ValueError(
            f"shapes.buckets: none has the shapes of model.inputs ({wanted}), which is what is "
            f"shipped: add {_written(inputs)} to the buckets, or change model.inputs"
        )
    return tuple(found)


def _resolve(given: int | Mapping[str, tuple[int, ...]], inputs: Sequence[Input]) -> Bucket:
    if isinstance(given, int):
        batch = inputs[0].shape[0]
        for one in inputs:
            if one.shape[0] != batch:
                raise ValueError(
                    f"shapes.buckets: batch {given} is the first axis of every input, and that of "
                    f"{one.name!r} is {one.shape[0]}, of {inputs[0].name!r} {batch}: give the "
                    "shapes by input name"
                )
        shapes = tuple((i.name, (given, *i.shape[1:])) for i in inputs)
        return Bucket(f"batch {given}", shapes)
    names = [i.name for i in inputs]
    for name, shape in given.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"shapes.buckets: no input is called {name!r}{meant} (inputs: {', '.join(names)})"
            )
        rank = len(inputs[names.index(name)].shape)
        if len(shape) != rank:
            raise ValueError(
                f"shapes.buckets: {name!r} has {rank} axes in model.inputs, and {len(shape)} here"
            )
    label = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in given.items())
    return Bucket(label, tuple((i.name, tuple(given.get(i.name, i.shape))) for i in inputs))


def _written(inputs: Sequence[Input]) -> str:
    """The shipped shape as a recipe would say it."""
    batches = {i.shape[0] for i in inputs}
    if len(batches) == 1:
        return str(batches.pop())
    return "{" + ", ".join(f"{i.name}: {list(i.shape)}" for i in inputs) + "}"
