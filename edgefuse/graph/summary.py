"""Figures of a graph: operators by type, bytes of intermediate tensors, peak of live bytes.

A fused group counts as one operator. Constants do not count as intermediate tensors; symbolic
extents count as 1.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from edgefuse.graph.values import at_run_time, nbytes

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


def operator_counts(proto: onnx.ModelProto) -> dict[str, int]:
    """Operators by type, by name, subgraphs included, function bodies not."""
    import onnx

    counts: Counter[str] = Counter()
    graphs = [proto.graph]
    while graphs:
        for node in graphs.pop().node:
            counts[node.op_type] += 1
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    graphs.append(attribute.g)
                graphs.extend(attribute.graphs)
    return dict(sorted(counts.items()))


def intermediate_bytes(model: ir.Model) -> int:
    """Bytes of all tensors that are computed from the input and are no output of the graph."""
    return sum(
        nbytes(value)
        for node in model.graph
        if at_run_time(node)
        for value in node.outputs
        if not value.is_graph_output()
    )


def peak_bytes(model: ir.Model) -> int:
    """Most bytes live at once in graph order: an operator's inputs and outputs live together."""
    nodes = [n for n in model.graph if at_run_time(n)]
    last: dict[ir.Value, int] = {}
    for step, node in enumerate(nodes):
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.const_value is None:
                last[value] = len(nodes) if value.is_graph_output() else step
    live = {v for v in model.graph.inputs if v in last}
    peak = 0
    for step, node in enumerate(nodes):
        live.update(v for v in node.outputs if v in last)
        peak = max(peak, sum(nbytes(v) for v in live))
        live = {v for v in live if last[v] > step}
    return peak
