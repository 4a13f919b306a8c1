"""What every node of a fused model reads, makes and computes on one sample.

The values tell later stages what became of a node in a file where names do not survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.graph.normalise import load_proto, prepare
from edgefuse.graph.shapes import fold_load_time
from edgefuse.graph.values import Array, at_run_time, is_constant, module_path, origin
from edgefuse.graph.verify import Feed, Runner

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Step:
    """One node of the main graph that runs at run time.

    Attributes:
        name: the node's name.
        op_type: operator, or the group's name.
        module: torch module path; empty when unknown.
        original_nodes: names of the nodes of the unfused graph that it stands for.
        inputs: names of the values it reads that are no constants.
        outputs: names of the values it makes.
    """

    name: str
    op_type: str
    module: str
    original_nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def watch(
    path: Path, feed: Feed, *, fold: bool = False
) -> tuple[tuple[Step, ...], Mapping[str, Array]]:
    """The nodes of a model in graph order, and every value of its main graph on one sample.

    Args:
        fold: compute programs over constants first: an unfused graph has them as nodes.

    Returns:
        The steps; the values by name, inputs included.

    Raises:
        SourceError: when the file is not a valid ONNX model.
        ToolError: onnxruntime cannot run it.
    """
    import onnx
    import onnx_ir as ir

    proto = load_proto(path)
    if fold:
        model = prepare(proto)
        fold_load_time(model)
        proto = ir.serde.serialize_model(model)
    else:
        model = ir.serde.deserialize_model(proto)
    steps = tuple(_step(node) for node in model.graph if at_run_time(node))
    known = {output.name for output in proto.graph.output}
    for node in proto.graph.node:
        for name in node.output:
            if name and name not in known:
                proto.graph.output.append(onnx.helper.make_value_info(name, onnx.TypeProto()))
    values = dict(Runner(proto.SerializeToString())(feed))
    return steps, values | {name: feed[name] for name in feed}


def _step(node: ir.Node) -> Step:
    return Step(
        name=str(node.name),
        op_type=str(node.op_type),
        module=module_path(node),
        original_nodes=tuple(origin(node)[0]),
        inputs=tuple(str(v.name) for v in node.inputs if v is not None and not is_constant(v)),
        outputs=tuple(str(v.name) for v in node.outputs if v.name),
    )
