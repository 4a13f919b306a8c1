"""LayerNorm and RMSNorm over the last axis; weights scale [C] and, for LayerNorm, shift [C]."""

from __future__ import annotations

import numpy as np

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array


def reference(call: Call) -> Array:
    x, epsilon = call.inputs[0], np.float32(call.attributes["epsilon"])
    if call.attributes["kind"] == "layer":
        x = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    spread = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    scaled: Array = x / np.sqrt(spread + epsilon) * call.weights[0]
    return scaled + call.weights[1] if len(call.weights) > 1 else scaled
