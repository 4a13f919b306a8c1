"""A value of the ONNX graph as strides over a tensor: layouts, slices and views cost no launch.

A view has one stride for each axis of the value, in elements: element i of the value lies at
``offset + sum(i[a] * strides[a])`` of its tensor. A transpose permutes strides, a slice moves the
offset, a broadcast is a stride of 0, and a reshape that needs no copy splits and merges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod


@dataclass(frozen=True)
class View:
    """Attributes: ``tensor``: its name; ``shape``: of the value, ONNX's axes."""

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def transposed(self, order: Sequence[int]) -> View:
        return replace(
            self,
            shape=tuple(self.shape[a] for a in order),
            strides=tuple(self.strides[a] for a in order),
        )

    def sliced(self, axis: int, begin: int, extent: int, step: int = 1) -> View:
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + begin * strides[axis]
        shape[axis], strides[axis] = extent, strides[axis] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def without(self, axis: int) -> View:
        """Without an axis of one element."""
        keep = [a for a in range(len(self.shape)) if a != axis]
        return self.transposed(keep)

    def broadcast(self, shape: Sequence[int]) -> View:
        """To a larger shape by NumPy's rule."""
        missing = len(shape) - len(self.shape)
        old = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        kept = tuple(s if a == b else 0 for a, b, s in zip(old, shape, strides, strict=True))
        return replace(self, shape=tuple(shape), strides=kept)

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Under another shape of as many elements; None where that takes a copy."""
        old = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        strides: list[int] = []
        place = 0
        waiting = [n for n in shape if n != 1]
        while waiting or place < len(old):
            if not waiting or place >= len(old):
                return None
            begin, merged, wanted = place, old[place][0], [waiting.pop(0)]
            place += 1
            while merged != prod(wanted):
                if merged < prod(wanted):
                    if place >= len(old):
                        return None
                    merged *= old[place][0]
                    place += 1
                else:
                    if not waiting:
                        return None
                    wanted.append(waiting.pop(0))
            part = old[begin:place]
            if any(a[1] != b[0] * b[1] for a, b in pairwise(part)):
                return None
            stride = part[-1][1]
            made = []
            for extent in reversed(wanted):
                made.append(stride)
                stride *= extent
            strides += reversed(made)
        spread = iter(strides)
        return replace(
            self, shape=tuple(shape), strides=tuple(0 if n == 1 else next(spread) for n in shape)
        )

    def is_contiguous(self, order: Sequence[int]) -> bool:
        """Whether the axes in this order lie next to each other, from the tensor's beginning."""
        wanted = 1
        for axis in reversed(order):
            if self.shape[axis] != 1 and self.strides[axis] != wanted:
                return False
            wanted *= self.shape[axis]
        return self.offset == 0

    def memory_order(self) -> tuple[int, ...]:
        """Axes by strides, the largest first; those that repeat or hold one element stay put."""
        axes = range(len(self.shape))
        real = [a for a in axes if self.shape[a] != 1 and self.strides[a]]
        ordered = iter(sorted(real, key=lambda a: -self.strides[a]))
        return tuple(next(ordered) if a in real else a for a in axes)

    @property
    def distinct(self) -> int:
        """Elements of the tensor that it reads, each once."""
        return prod(n for n, s in zip(self.shape, self.strides, strict=True) if s)


def contiguous(tensor: str, shape: Sequence[int], order: Sequence[int] | None = None) -> View:
    """A value that is all of a tensor, its axes in this order in memory."""
    strides = [0] * len(shape)
    stride = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = stride
        stride *= shape[axis]
    return View(tensor, tuple(shape), tuple(strides))


def merged(shape: Sequence[int], views: Sequence[View]) -> tuple[tuple[int, ...], list[list[int]]]:
    """An index space with as few axes as do for all views, and the strides of each in it."""
    kept = [a for a, n in enumerate(shape) if n != 1]
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for axis in kept:
        joins = bool(sizes) and all(
            s[-1] == shape[axis] * view.strides[axis] for s, view in zip(strides, views)
        )
        if joins:
            sizes[-1] *= shape[axis]
        else:
            sizes.append(shape[axis])
        for s, view in zip(strides, views):
            if joins:
                s[-1] = view.strides[axis]
            else:
                s.append(view.strides[axis])
    if not sizes:
        return (1,), [[0] for _ in views]
    return tuple(sizes), strides
