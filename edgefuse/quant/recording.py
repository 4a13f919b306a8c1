"""Arrays of many samples, kept on disk: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def record(rows: Iterable[Mapping[str, Array]], folder: Path) -> dict[str, Array]:
    """Write named arrays, one row after the other, and map them back.

    Args:
        rows: the same names, shapes and types each time.
        folder: made here; removing it is the caller's.

    Returns:
        By name: rows along the first axis, read-only. Empty when there was no row.
    """
    import contextlib

    import numpy as np

    folder.mkdir()
    first: dict[str, Array] = {}
    count = 0
    with contextlib.ExitStack() as stack:
        streams: dict[str, Any] = {}
        for row in rows:
            if not first:
                first = {name: np.asarray(value) for name, value in row.items()}
                streams = {
                    name: stack.enter_context((folder / f"{place}.bin").open("wb"))
                    for place, name in enumerate(first)
                }
            for name, stream in streams.items():
                stream.write(np.ascontiguousarray(row[name]).data)
            count += 1
    return {
        name: np.memmap(folder / f"{place}.bin", value.dtype, "r", 0, (count, *value.shape))
        for place, (name, value) in enumerate(first.items())
    }
