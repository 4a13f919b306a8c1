"""Windows over pictures, for the references: what each place of a window sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from edgefuse.cuda.storage import Array


def windows(
    x: Array, window: tuple[int, int], attributes: Mapping[str, Any], pad: float | int
) -> Iterator[tuple[int, int, Array]]:
    """For each place (i, j) of the window the elements that it meets, [N, P, Q, C].

    Args:
        x: [N, H, W, C].
        attributes: strides, pads, and dilations where there are any.
        pad: what stands where the window leaves the picture.
    """
    top, left, bottom, right = attributes["pads"]
    rows, columns = attributes["strides"]
    down, across = attributes.get("dilations", (1, 1))
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=pad)
    height = (padded.shape[1] - down * (window[0] - 1) - 1) // rows + 1
    width = (padded.shape[2] - across * (window[1] - 1) - 1) // columns + 1
    for i in range(window[0]):
        for j in range(window[1]):
            y, z = i * down, j * across
            ends = (y + rows * (height - 1) + 1, z + columns * (width - 1) + 1)
            yield i, j, padded[:, y : ends[0] : rows, z : ends[1] : columns]


def depthwise(x: Array, weight: Array, attributes: Mapping[str, Any]) -> Array:
    """x [N, H, W, C] and weight [KH, KW, C] -> [N, P, Q, C], in their own type."""
    window = (int(weight.shape[0]), int(weight.shape[1]))
    total: Array | None = None
    for i, j, seen in windows(x, window, attributes, attributes["pad_value"]):
        part = seen * weight[i, j]
        total = part if total is None else total + part
    assert total is not None
    return total


def product(rows: Array, weight: Array, integers: bool) -> Array:
    """rows [..., K] times weight [K, N], summed in float32, or exactly where ``integers``."""
    if not integers:
        summed: Array = np.matmul(rows, weight).astype(np.float32, copy=False)
        return summed
    # Sums of int8 products are exact in float64, whose product is the quick one.
    exact = np.matmul(rows.astype(np.float64), weight.astype(np.float64))
    whole: Array = exact.astype(np.int64).astype(np.int32)
    return whole
