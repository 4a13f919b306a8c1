"""What a .tflite file asks of the runtime that shall run it, read from the file alone.

Operators and their versions are as the file states them. So is ``stated_minimum``, which converters
write and quantisers do not raise: a full-int8 file may still state the version of its float
ancestor. ``minimum`` is therefore the least TensorFlow Lite that has kernels for the number formats
found, or what the file states where that is later.

Least versions by number format are those of ``tensorflow/lite/tools/versioning``: int8 activations
with a scale per channel came with 1.14 (CONV_2D 3), int16 activations with 2.4 (CONV_2D 5). Left
alone: whether a runtime was built without some operators. What has run the file is in the manifest,
what the target's runtime lacks in the target's ``support``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from edgefuse.tflite.read import TfliteModel

_LEAST = {"int8_activations": "1.14.0", "int16_activations": "2.4.0"}
_METADATA = b"min_runtime_version"
_VERSION = re.compile(rb"\d+(\.\d+)*")


def runtime_needs(model: TfliteModel) -> dict[str, Any]:
    """Operators with versions, number formats, and the least TensorFlow Lite."""
    counted = Counter(_operators(model))
    activations = {t.dtype for op in model.operators for t in model.activations_of(op)}
    numbers = {
        "int8_activations": "int8" in activations,
        "int16_activations": "int16" in activations,
        "float_operators": len(model.float_operators()),
        "per_channel_dense": _per_channel_dense(model),
    }
    stated = _stated(model)
    least = [version for name, version in _LEAST.items() if numbers[name]]
    return {
        "operators": [
            {"name": name, "version": version, "count": count}
            for (name, version), count in sorted(counted.items())
        ],
        "custom_operators": sorted({op.custom_code for op in model.custom_operators()}),
        **numbers,
        "stated_minimum": stated,
        "minimum": max([*least, *([stated] if stated else [])], key=_numbers, default=None),
    }


def _per_channel_dense(model: TfliteModel) -> bool:
    """Whether a FULLY_CONNECTED has a weight scale for each output: older runtimes take one."""
    dense = (op for op in model.operators if op.code == "FULLY_CONNECTED")
    return any(len(model.tensors[op.inputs[1]].scales) > 1 for op in dense)


def _operators(model: TfliteModel) -> Iterator[tuple[str, int]]:
    """Name and stated version of each operator."""
    root = _root(model)
    graph = root.Subgraphs(0)
    for op in model.operators:
        code = root.OperatorCodes(graph.Operators(op.index).OpcodeIndex())
        yield op.custom_code or op.code, code.Version()


def _stated(model: TfliteModel) -> str | None:
    root = _root(model)
    for index in range(root.MetadataLength()):
        entry = root.Metadata(index)
        if entry.Name() == _METADATA and root.Buffers(entry.Buffer()).DataLength():
            text = root.Buffers(entry.Buffer()).DataAsNumpy().tobytes().rstrip(b"\0")
            return text.decode() if _VERSION.fullmatch(text) else None
    return None


def _root(model: TfliteModel) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.Model.GetRootAs(model.data, 0)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
