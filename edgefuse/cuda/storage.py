"""How numbers lie in memory: dtypes of a Program, rounding to them, and values read from bytes.

NumPy has no bfloat16: it is held as uint16, the upper half of a float32. Rounding is to nearest,
ties to even, for every dtype; int8 values arrive in range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Dtype = Literal["float32", "float16", "bfloat16", "int8", "int32"]
Precision = Literal["fp32", "fp16", "bf16", "int8"]

#: What the activations of a precision are held in.
ACTIVATIONS: Mapping[Precision, Dtype] = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
}
#: Bytes of one element.
ITEM_BYTES: Mapping[Dtype, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "int32": 4,
}
HELD: Mapping[Dtype, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int8": np.int8,
    "int32": np.int32,
}


def encode(values: Array, dtype: Dtype) -> Array:
    """Numbers as they are held: float32 rounded, or integers as they are."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nan = np.isnan(values)
        return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, HELD[dtype])


def decode(held: Array, dtype: Dtype) -> Array:
    """What kernels compute with: float32, or int32 for integers."""
    if dtype == "bfloat16":
        return (held.astype(np.uint32) << 16).view(np.float32)
    return held.astype(np.int32 if dtype in ("int8", "int32") else np.float32)


def rounded(values: Array, dtype: Dtype) -> Array:
    """As if stored in ``dtype`` and read again."""
    return decode(encode(values, dtype), dtype)
