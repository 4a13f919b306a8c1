"""A float .tflite of one convolution, written by hand."""

from __future__ import annotations

import numpy as np
from tflite.tiny import Builder


def conv_file(size: int, *, signature: bool = True, elu: bool = False) -> bytes:
    """input [1, size, size, 3] -> CONV_2D 1x1, RELU or ELU -> output [1, size, size, 4]."""
    b = Builder()
    x, y = b.tensor("input", (1, size, size, 3)), b.tensor("output", (1, size, size, 4))
    weight = np.random.default_rng(0).normal(size=(4, 1, 1, 3)).astype(np.float32)
    constants = b.tensor("weight", value=weight), b.tensor("bias", value=np.ones(4, np.float32))
    if elu:
        made = b.tensor("made", (1, size, size, 4))
        b.op("CONV_2D", (x, *constants), (made,))
        b.op("ELU", (made,), (y,))
    else:
        b.op("CONV_2D", (x, *constants), (y,), "RELU")
    return b.finish({"x/in:0": x}, {"y/out:0": y}, signature=signature)
