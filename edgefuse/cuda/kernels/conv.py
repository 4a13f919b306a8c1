"""A dense convolution; x [N, H, W, C] or [N, C, H, W], weight [KH, KW, C, M], y [N, P, Q, M]."""

from __future__ import annotations

import numpy as np

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.windows import product, windows


def reference(call: Call) -> Array:
    (x,), (weight,) = call.inputs, call.weights
    if call.attributes["layout"] == "NCHW":
        x = x.transpose(0, 2, 3, 1)
    window = (int(weight.shape[0]), int(weight.shape[1]))
    seen = [p for _, _, p in windows(x, window, call.attributes, call.attributes["pad_value"])]
    return product(np.concatenate(seen, -1), weight.reshape(-1, weight.shape[-1]), call.integers)
