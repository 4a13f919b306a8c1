"""Figures of a graph: operators, bytes of intermediate tensors, peak of live bytes.

A fused group counts as one operator. What is computed from constants and static shapes alone is
none, since a runtime computes it once. Views (Reshape, Flatten, Squeeze, Unsqueeze, Identity, and
Dropout outside training) are none either: they move no bytes, and their result is the tensor that
they read under another name. Constants do not count as intermediate tensors; symbolic extents
count as 1. Left alone: what happens inside subgraphs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.cost import load_time
from edgefuse.graph.flops import VIEWS
from edgefuse.graph.values import nbytes

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


@dataclass(frozen=True)
class Figures:
    """What a graph costs to run, without running it.

    Attributes:
        operators: launches of one inference.
        views: operators that only rename a tensor; not among ``operators``.
        intermediate_bytes: of all tensors that are computed and are no output of the graph.
        peak_bytes: most bytes live at once in graph order; the inputs and outputs of an operator
            live together.
    """

    operators: int
    views: int
    intermediate_bytes: int
    peak_bytes: int


def figures(model: ir.Model) -> Figures:
    """The figures of a model with inferred shapes."""
    early = load_time(model)
    nodes = [node for node in model.graph if node not in early]
    views = [node for node in nodes if is_view(node)]
    whole = _whole_tensors(views)
    work = [node for node in nodes if not is_view(node)]
    outputs = {whole.get(v, v) for v in model.graph.outputs}
    computed = {v for node in work for v in node.outputs}
    return Figures(
        operators=len(work),
        views=len(views),
        intermediate_bytes=sum(nbytes(v) for v in computed - outputs),
        peak_bytes=_peak(model, work, whole, outputs),
    )


def is_view(node: ir.Node) -> bool:
    """Whether the node only renames the tensor that it reads."""
    return node.domain == "" and node.op_type in VIEWS


def operator_counts(proto: onnx.ModelProto) -> dict[str, int]:
    """Nodes by type, by name, views and subgraphs included, function bodies not."""
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


def _whole_tensors(views: list[ir.Node]) -> dict[ir.Value, ir.Value]:
    """For each view's result, the tensor that it is another name of."""
    found: dict[ir.Value, ir.Value] = {}
    for node in views:
        source = node.inputs[0]
        if source is not None:
            found[node.outputs[0]] = found.get(source, source)
    return found


def _peak(
    model: ir.Model, work: list[ir.Node], whole: dict[ir.Value, ir.Value], outputs: set[ir.Value]
) -> int:
    last: dict[ir.Value, int] = {}
    for step, node in enumerate(work):
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.const_value is None:
                last[whole.get(value, value)] = step
    last.update((value, len(work)) for value in outputs if value in last)
    born: dict[int, list[ir.Value]] = {}
    for step, node in enumerate(work):
        born[step] = [v for v in node.outputs if v in last]
    dying: dict[int, list[ir.Value]] = {}
    for value, step in last.items():
        dying.setdefault(step, []).append(value)
    present = {v for v in last if v.producer() is None}
    live = sum(nbytes(v) for v in present)
    peak = live
    for step in range(len(work)):
        new = [v for v in born[step] if v not in present]
        present.update(new)
        live += sum(nbytes(v) for v in new)
        peak = max(peak, live)
        gone = [v for v in dying.get(step, ()) if v in present]
        present.difference_update(gone)
        live -= sum(nbytes(v) for v in gone)
    return peak
