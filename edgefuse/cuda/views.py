"""Strided views of a tensor's elements, as launches give them: (offset, strides) in elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgefuse.cuda.storage import Array


def strided(x: Array, view: Any, space: tuple[int, ...]) -> Array:
    """The elements of a contiguous array that a view names, as an array of the index space."""
    offset, strides = view
    flat = np.ascontiguousarray(x).reshape(-1)
    index = np.full((1,) * len(space), offset, np.int64)
    for axis, (extent, stride) in enumerate(zip(space, strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        index = index + steps.reshape((-1,) + (1,) * (len(space) - 1 - axis))
    taken: Array = flat[index]
    return taken
