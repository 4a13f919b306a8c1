"""A graph without what differs from machine to machine: paths, traces, versions, comments; and
without what a removed node leaves behind in its subgraphs.

Equal models then give equal bytes. Torch module paths stay, for the ledger's messages, and so do
the origin that passes have recorded and the scales that a model brought along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import onnx_ir as ir

KEPT_METADATA = ("namespace", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
OWN_PREFIX = "edgefuse."


def drop_metadata(model: ir.Model) -> None:
    """Clear comments and metadata of the model, its graphs, functions, nodes and values."""
    import onnx_ir as ir

    model.metadata_props.clear()
    model.doc_string = None
    for graph in (model.graph, *model.functions.values(), *model.graph.subgraphs()):
        graph.metadata_props.clear()
        graph.doc_string = None
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            value.metadata_props.clear()
            value.doc_string = None
        for node in ir.traversal.RecursiveGraphIterator(graph):
            node.doc_string = None
            kept = {k: v for k, v in sorted(node.metadata_props.items()) if _is_kept(k)}
            node.metadata_props.clear()
            node.metadata_props.update(kept)
            for value in node.outputs:
                value.metadata_props.clear()
                value.doc_string = None


def _is_kept(key: str) -> bool:
    return key in KEPT_METADATA or key.startswith(OWN_PREFIX)


def graphs_of(attribute: ir.Attr) -> Sequence[ir.Graph]:
    """The subgraphs that an attribute holds."""
    if attribute.is_ref():
        return ()
    if attribute.type.name == "GRAPH":
        return (attribute.value,)
    if attribute.type.name == "GRAPHS":
        return tuple(attribute.value)
    return ()


def release(node: ir.Node) -> None:
    """Let the subgraphs of a removed node read nothing: what they captured may be dead now."""
    import onnx_ir as ir

    for attribute in node.attributes.values():
        for graph in graphs_of(attribute):
            for inner in ir.traversal.RecursiveGraphIterator(graph):
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)


def clean_export(source: Path, destination: Path, name: str) -> None:
    """Rewrite an exported ONNX file, external data included, as one clean file.

    Args:
        name: of the graph.
    """
    import onnx
    import onnx_ir as ir

    proto = onnx.load(source)
    for tensor in proto.graph.initializer:
        tensor.ClearField("metadata_props")
        tensor.ClearField("doc_string")
    model = ir.serde.deserialize_model(proto)
    own = {k: v for k, v in sorted(model.metadata_props.items()) if k.startswith(OWN_PREFIX)}
    drop_metadata(model)
    model.metadata_props.update(own)
    model.producer_name, model.producer_version = "edgefuse", None
    model.graph.name = name
    clean = ir.serde.serialize_model(model)
    destination.write_bytes(clean.SerializeToString(deterministic=True))
