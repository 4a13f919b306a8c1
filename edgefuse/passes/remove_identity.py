"""Take out operators that hand their input on unchanged.

Problem: exporters leave Identity (around shared weights, before outputs) and Dropout in place;
they hide constants and producers from every later pass.

Rewrite: Identity(x) = x; Dropout(x) = x in inference mode; the users read x.

Scope: Identity, and Dropout whose mask nobody reads. Left alone: an Identity that joins an input,
an initializer or another output directly to an output, which is the only way to spell that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import constant, describe, read, why_not_constant

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    value = node.inputs[0]
    if value is None:
        return None
    if node.op_type == "Dropout":
        if any(list(out.uses()) or out.is_graph_output() for out in node.outputs[1:]):
            return Refusal(f"the mask of {describe(node)} is used", (str(node.name),))
        if (mode := read(node, 2)) is not None:
            flag = constant(mode)
            if flag is None:
                what, remedy = why_not_constant(mode)
                reason = f"the training mode of {describe(node)} {what}"
                return Refusal(reason, (str(node.name),), remedy)
            if bool(flag.any()):
                reason = f"{describe(node)} is active (training mode)"
                return Refusal(reason, (str(node.name),), "call model.eval() before exporting")
    if node.outputs[0].is_graph_output():
        producer = value.producer()
        if producer is None or producer.graph is not node.graph or value.is_graph_output():
            return None
    return Match((node,))


def rewrite(found: Match, builder: GraphBuilder) -> None:
    node = found.nodes[0]
    builder.bypass(node, node.inputs[0])


PASS = PASSES.add(
    Pass(
        name="remove_identity",
        summary="Identity(x) and Dropout(x) in inference mode become x.",
        phase="normalise",
        anchors=("Identity", "Dropout"),
        match=match,
        rewrite=rewrite,
    ),
    __name__,
)
