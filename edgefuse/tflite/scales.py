"""Write scales and zero points into a quantised .tflite where they lie; nothing else changes.

Problem: a quantiser that is given a range computes the scale anew, and the last bit may differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefuse.errors import StageError


def with_scales(
    data: bytes, scales: Mapping[int, Sequence[float]], zeros: Mapping[int, Sequence[int]]
) -> bytes:
    """The same file with other float32 scales and zero points.

    Args:
        scales, zeros: by tensor index; as many as the tensor has.

    Raises:
        StageError: a tensor has another number of scales, or shares them with one that is not
            given the same.
    """
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema

    from edgefuse.tflite.read import parse_model

    edited = bytearray(data)
    graph = schema.Model.GetRootAs(edited, 0).Subgraphs(0)
    for index, given in scales.items():
        quantization = graph.Tensors(index).Quantization()
        count = quantization.ScaleLength() if quantization is not None else 0
        if count != len(given):
            name = graph.Tensors(index).Name().decode("utf-8", "replace")
            raise StageError(f"tensor {name!r} has {count} scales, given {len(given)}")
        quantization.ScaleAsNumpy()[:] = np.asarray(given, np.float32)
    for index, points in zeros.items():
        held = graph.Tensors(index).Quantization()
        if held is None or held.ZeroPointLength() != len(points):
            name = graph.Tensors(index).Name().decode("utf-8", "replace")
            raise StageError(f"tensor {name!r} has no room for {len(points)} zero points")
        held.ZeroPointAsNumpy()[:] = np.asarray(points, np.int64)
    written = bytes(edited)
    for before, after in zip(parse_model(data).tensors, parse_model(written).tensors):
        wanted = scales.get(before.index)
        expected = before.scales if wanted is None else _as_float32(wanted)
        points = tuple(zeros.get(before.index, before.zero_points))
        if after.scales != expected or after.zero_points != points:
            raise StageError(
                f"tensor {before.name!r} shares its scales or zero points with another one",
                hint="this is a fault of the file's writer: report it",
            )
    return written


def _as_float32(values: Sequence[float]) -> tuple[float, ...]:
    import numpy as np

    return tuple(np.asarray(values, np.float32).tolist())
