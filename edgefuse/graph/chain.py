"""A chain of tiny operators: what it takes a runtime to start one operator after another.

``x_n = -...-x_0`` on 16 numbers: nearly all of its time is overhead. The difference between a long
and a short chain, over the difference of their lengths, leaves out what one run costs by itself.
"""

from __future__ import annotations

import itertools

WIDTH = 16


def chain_of_tiny_operators(length: int) -> bytes:
    """An ONNX model of ``length`` Neg operators, input ``x`` and output ``y``, float32 [16]."""
    import onnx

    names = ["x", *[f"v{k}" for k in range(1, length)], "y"]
    body = "\n".join(f"{after} = Neg({before})" for before, after in itertools.pairwise(names))
    text = (
        '<ir_version: 10, opset_import: ["": 18]> '
        f"chain (float[{WIDTH}] x) => (float[{WIDTH}] y) {{ {body} }}"
    )
    data: bytes = onnx.parser.parse_model(text).SerializeToString(deterministic=True)
    return data
