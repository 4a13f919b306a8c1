"""Scaled dot-product attention, heads side by side in the result; y [N, T, H, E]."""

from __future__ import annotations

import numpy as np

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.views import strided


def reference(call: Call) -> Array:
    n, h, t, s, d, e = call.attributes["sizes"]
    spaces = ((n, h, t, d), (n, h, s, d), (n, h, s, e))
    views = call.attributes["views"]
    q, k, v = (strided(x, w, space) for x, w, space in zip(call.inputs, views, spaces, strict=True))
    scores = np.matmul(q, k.transpose(0, 1, 3, 2)) * np.float32(call.attributes["scale"])
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    mixed = np.matmul(powers, v) / np.sum(powers, axis=-1, keepdims=True)
    answer: Array = mixed.transpose(0, 2, 1, 3)
    return answer
