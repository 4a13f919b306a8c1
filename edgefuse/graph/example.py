"""A pass's own example, before and after: what the catalogue shows, made by running the pass.

An example is the text of an ONNX graph (``Pass.example``). Inputs whose names
start with ``x`` are fed at run time; the others become constants, seeded and between 0.5 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.rule import Pass

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

OPSET = 18
SEED = 3


@dataclass(frozen=True)
class Example:
    """A graph before and after one pass.

    Attributes:
        before, after: one line a node, ``y = Relu(x)``; constants are left out.
        fired: how often the pass did.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    fired: int


def example_model(text: str) -> onnx.ModelProto:
    """The model of an example's text."""
    import numpy as np
    import onnx
    import onnx.parser

    header = f'<ir_version: 10, opset_import: ["" : {OPSET}]>\n'
    proto = onnx.parser.parse_model(f"{header}example {text}")
    random = np.random.default_rng(SEED)
    for info in [i for i in proto.graph.input if not i.name.startswith("x")]:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        array = random.uniform(0.5, 2.0, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
        proto.graph.input.remove(info)
    return proto


def shown(entry: Pass) -> Example:
    """Run one pass on its example."""
    before, model = (prepare(example_model(entry.example)) for _ in range(2))
    _, ledger = run_passes(model, passes=[entry])
    return Example(_lines(before), _lines(model), ledger.fired(entry.name))


def _lines(model: ir.Model) -> tuple[str, ...]:
    return tuple(
        f"{node.outputs[0].name} = {node.op_type}({', '.join(_read(node))})" for node in model.graph
    )


def _read(node: ir.Node) -> list[str]:
    return [str(value.name) for value in node.inputs if value is not None]
