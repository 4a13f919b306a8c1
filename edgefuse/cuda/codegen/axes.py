"""Addresses as text: where an element of a tensor lies, from the indices that a tile runs over.

A tile has a few index variables. Each stands for some axes of the output, flattened, so that
together they stand for all of them, in order. An operand broadcasts to the output by NumPy's rule:
its axes are found again in the variables by division, as few as the shapes need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """An index variable.

    Attributes:
        name: in the generated text.
        extents: of the output's axes that it runs over.
        suffix: that spreads it over the tile: ``[:, None]``; empty for a number.
        mask: text that is true within the output; empty when it always is.
    """

    name: str
    extents: tuple[int, ...]
    suffix: str = ""
    mask: str = ""

    @property
    def spread_mask(self) -> str:
        return f"({self.mask}){self.suffix}" if self.mask else ""


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor, in elements; 0 along axes of one element."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step if extent > 1 else 0)
        step *= extent
    return tuple(reversed(strides))


def linear(name: str, extents: Sequence[int], strides: Sequence[int]) -> str:
    """The offset that one flattened index gives; empty where it gives none."""
    merged: list[list[int]] = []
    for extent, stride in zip(extents, strides, strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1] == stride * extent:
            merged[-1] = [merged[-1][0] * extent, stride]
        else:
            merged.append([extent, stride])
    terms: list[str] = []
    below = 1
    for place in range(len(merged) - 1, -1, -1):
        extent, stride = merged[place]
        if stride:
            index = name if below == 1 else f"{name} // {below}"
            if place:
                index = f"({index}) % {extent}" if below > 1 else f"{index} % {extent}"
            plain = index.isidentifier()
            terms.append(
                (index if plain else f"({index})") + (f" * {stride}" if stride > 1 else "")
            )
        below *= extent
    return " + ".join(reversed(terms))


def address(axes: Sequence[Axis], strides: Sequence[int]) -> tuple[str, str]:
    """Offset and mask of an element whose tensor has these strides along the output's axes."""
    parts: list[str] = []
    masks: list[str] = []
    start = 0
    for axis in axes:
        own = strides[start : start + len(axis.extents)]
        start += len(axis.extents)
        text = linear(axis.name, axis.extents, own)
        if text:
            parts.append(f"({text}){axis.suffix}" if axis.suffix else text)
            if axis.mask:
                masks.append(axis.spread_mask)
    return " + ".join(parts), " & ".join(masks)


def broadcast_strides(shape: Sequence[int], space: Sequence[int]) -> tuple[int, ...]:
    """Strides along the axes of ``space`` of a contiguous tensor that broadcasts to it."""
    return (0,) * (len(space) - len(shape)) + contiguous(shape)
