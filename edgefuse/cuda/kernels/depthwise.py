"""A convolution of each channel by itself; x [N, H, W, C], weight [KH, KW, C]."""

from __future__ import annotations

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.windows import depthwise


def reference(call: Call) -> Array:
    return depthwise(call.inputs[0], call.weights[0], call.attributes)
