"""Inputs joined along one axis; y [outer, a + b + ..., inner]."""

from __future__ import annotations

import numpy as np

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.views import strided


def reference(call: Call) -> Array:
    outer, inner = call.attributes["sizes"]
    parts = zip(call.inputs, call.attributes["views"], call.attributes["extents"], strict=True)
    joined = [strided(x, view, (outer, extent, inner)) for x, view, extent in parts]
    return np.concatenate(joined, 1).reshape(call.shape)
