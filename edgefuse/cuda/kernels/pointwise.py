"""Pointwise steps over strided views; without steps a copy into another layout.

The accumulator is the first input, in the index space ``shape``; whoever applies the steps reads
``$i`` through :func:`edgefuse.cuda.views.strided`.
"""

from __future__ import annotations

from edgefuse.cuda.call import Call
from edgefuse.cuda.storage import Array
from edgefuse.cuda.views import strided


def reference(call: Call) -> Array:
    return strided(call.inputs[0], call.attributes["views"][0], call.attributes["shape"])
