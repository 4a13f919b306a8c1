"""``exp(x - max) / sum exp(x - max)`` over the last axis."""

from __future__ import annotations

import numpy as np

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array


def reference(call: Call) -> Array:
    x = call.inputs[0]
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    answer: Array = powers / np.sum(powers, axis=-1, keepdims=True)
    return answer
