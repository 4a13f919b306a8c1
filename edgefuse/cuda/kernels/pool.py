"""The largest value or the mean of windows; x [N, H, W, C], y [N, P, Q, C]."""

from __future__ import annotations

import numpy as np

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.windows import windows


def reference(call: Call) -> Array:
    (x,), attributes = call.inputs, call.attributes
    window = attributes["window"]
    if attributes["kind"] == "max":
        least = np.iinfo(np.int32).min if call.integers else -np.inf
        seen = [part for _, _, part in windows(x, window, attributes, least)]
        largest: Array = np.max(np.stack(seen), 0)
        return largest
    if call.integers:
        parts = windows(x, window, attributes, attributes["pad_value"])
        total: Array = sum(
            (part - np.int32(attributes["pad_value"]) for _, _, part in parts),
            np.zeros(call.shape, np.int32),
        )
        return total
    parts = windows(x, window, attributes, 0.0)
    total = sum((part for _, _, part in parts), np.zeros(call.shape, np.float32))
    if attributes["count_padding"]:
        return total / np.float32(window[0] * window[1])
    inside = windows(np.ones_like(x), window, attributes, 0.0)
    return total / sum((part for _, _, part in inside), np.zeros(call.shape, np.float32))
