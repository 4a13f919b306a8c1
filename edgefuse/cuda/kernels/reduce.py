"""A sum, mean or extreme along one axis; x as [outer, axis, inner], y as [outer, inner]."""

from __future__ import annotations

import numpy as np

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array


def reference(call: Call) -> Array:
    x = call.inputs[0].reshape(call.attributes["sizes"])
    kind = call.attributes["kind"]
    answer: Array
    if kind in ("max", "min"):
        answer = (np.max if kind == "max" else np.min)(x, axis=1)
    elif call.integers:
        answer = np.sum(x, axis=1, dtype=np.int64).astype(np.int32)
    else:
        answer = np.sum(np.square(x) if kind == "sum_square" else x, axis=1, dtype=np.float32)
        if kind == "mean":
            answer = answer / np.float32(x.shape[1])
    return answer.reshape(call.shape)
