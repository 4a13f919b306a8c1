"""A 1x1 convolution as a matrix product: rows are pixels.

``acc[r, n] = sum_k inner(x)[r, k] * weight[k, n]``; x [..., K], weight [K, N].
"""

from __future__ import annotations

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.windows import product


def reference(call: Call) -> Array:
    rows = call.operand(call.inputs[0]) if call.inner else call.inputs[0]
    return product(rows, call.weights[0], call.integers)
