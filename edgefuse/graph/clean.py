"""An exported ONNX file without what differs from machine to machine: paths, traces, versions."""

from __future__ import annotations

from pathlib import Path

_KEPT = ("namespace", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")


def clean_export(source: Path, destination: Path, name: str) -> None:
    """Rewrite a file so that equal models give equal bytes; module paths are kept."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    proto = onnx.load(source, load_external_data=False)
    load_external_data_for_model(proto, str(source.parent))
    for tensor in proto.graph.initializer:
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
        tensor.ClearField("metadata_props")
        tensor.doc_string = ""
    proto.producer_name, proto.producer_version = "edgefuse", ""
    proto.doc_string = proto.graph.doc_string = ""
    proto.graph.name = name
    proto.ClearField("metadata_props")
    proto.graph.ClearField("metadata_props")
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        value.ClearField("metadata_props")
        value.doc_string = ""
    for node in proto.graph.node:
        node.doc_string = ""
        kept = [(p.key, p.value) for p in node.metadata_props if p.key in _KEPT]
        node.ClearField("metadata_props")
        for key, value in sorted(kept):
            node.metadata_props.add(key=key, value=value)
    destination.write_bytes(proto.SerializeToString(deterministic=True))
