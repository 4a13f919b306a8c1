"""A depthwise convolution and the 1x1 convolution of its result: the wide tensor is never written.

``acc = round(inner(depthwise(x))) @ weight``; x [N, H, W, C], weights [KH, KW, C] and [C, M].
"""

from __future__ import annotations

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.windows import depthwise, product


def reference(call: Call) -> Array:
    wide = call.operand(depthwise(call.inputs[0], call.weights[0], call.attributes))
    return product(wide, call.weights[1], call.integers)
