"""Small ONNX graphs as text."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from edgefuse.graph.normalise import prepare

HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'


def model(text: str) -> ir.Model:
    return prepare(onnx.parser.parse_model(HEADER + text))


# Two convolutions and a residual, which the second one reads too.
RESIDUAL = """g (float[1,4,6,6] x) => (float[1,4,6,6] y)
    <float[4,4,3,3] w = {WEIGHTS}, float[4,4,1,1] v = {POINTS}> {
    a = Conv <pads = [1,1,1,1]> (x, w)
    b = Relu(a)
    c = Conv(b, v)
    y = Add(c, b) }""".replace("WEIGHTS", ",".join(["0.5"] * 144)).replace(
    "POINTS", ",".join(["0.25"] * 16)
)
