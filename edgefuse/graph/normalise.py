"""Bring a model into the one form that passes are written for.

On loading: the file is checked, initializers are read; every node has a name; Constant nodes
become initializers; functions of other domains are inlined; metadata that carries paths or source
text is dropped (the same model gives the same bytes on every machine); shapes are inferred.

Left alone: initializers that are also graph inputs (they may be overridden), subgraphs (their
nodes are candidates like any other), the operator set version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.errors import SourceError
from edgefuse.graph.clean import drop_metadata, graphs_of, release
from edgefuse.graph.hazards import refuse_hazards
from edgefuse.graph.values import attribute, constant, describe, module_path, read

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    import onnx_ir as ir

DOMAIN = "edgefuse"
MIN_IR_VERSION = 10
SEQUENCES = (
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap",
    "SplitToSequence",
)  # fmt: skip
LARGE_BYTES = 4096


def load_proto(path: Path) -> onnx.ModelProto:
    """Read and fully check an ONNX file.

    Raises:
        SourceError: when the file is missing or is not a valid ONNX model.
    """
    import onnx

    try:
        proto = onnx.load(str(path))
        refuse_hazards(proto, str(path))
        for tensor in proto.graph.initializer:
            onnx.checker.check_tensor(tensor)
            _read(tensor, str(path))
        onnx.checker.check_model(_without_weights(proto), full_check=True)
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(
            f"not a valid ONNX model: {str(error).strip().splitlines()[0]}",
            hint="export it again, or check it with onnx.checker.check_model",
            where=str(path),
        ) from error
    for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            if not value.type.HasField("tensor_type"):
                raise SourceError(
                    f"{kind} {value.name!r} is no tensor",
                    hint="only tensors can be sampled and compared: export the model with tensors",
                    where=str(path),
                )
    return proto


def _read(tensor: onnx.TensorProto, where: str) -> None:
    import onnx

    try:
        if tensor.HasField("raw_data"):
            onnx.numpy_helper.to_array(tensor)
    except ValueError as error:
        raise SourceError(
            f"tensor {tensor.name!r} cannot be read: {error}",
            hint="the file or its external data are cut short or mixed up: save them again",
            where=where,
        ) from error


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large constants as graph inputs: shape inference copies them otherwise."""
    import onnx

    if proto.ir_version < 4:  # every initializer must be a graph input: for the checker to judge
        return proto
    large = {t.name: t for t in proto.graph.initializer if t.ByteSize() >= LARGE_BYTES}
    declared = {i.name for i in proto.graph.input}
    light = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    light.functions.extend(proto.functions)
    light.graph.name = proto.graph.name
    light.graph.node.extend(proto.graph.node)
    light.graph.input.extend(proto.graph.input)
    light.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in large.values()
        if t.name not in declared
    )
    light.graph.output.extend(proto.graph.output)
    light.graph.value_info.extend(i for i in proto.graph.value_info if i.name not in large)
    light.graph.initializer.extend(t for t in proto.graph.initializer if t.name not in large)
    light.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    light.graph.quantization_annotation.extend(proto.graph.quantization_annotation)
    return light


def prepare(proto: onnx.ModelProto) -> ir.Model:
    """The normalised model of a checked proto; the proto is not changed.

    Raises:
        SourceError: when the model was exported in training mode, or holds what has no place here.
    """
    import onnx_ir as ir

    try:
        model: ir.Model = ir.serde.deserialize_model(_inline_foreign(proto))
    except ir.serde.SerdeError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise SourceError(
            f"the model cannot be read: {str(cause).strip().splitlines()[0]}",
            hint="export it with dense tensors only",
        ) from error
    _name_everything(model)
    refuse_training_mode(model)
    drop_metadata(model)
    _constants_to_initializers(model)
    model.ir_version = max(int(model.ir_version), MIN_IR_VERSION)
    drop_dead(model)
    infer_shapes(model)
    return model


def drop_dead(model: ir.Model) -> None:
    """Remove nodes, initializers and functions that no output needs."""
    import onnx_ir as ir
    import onnx_ir.passes.common as common

    gone = True
    while gone:
        holders = [
            node
            for node in ir.traversal.RecursiveGraphIterator(model.graph)
            if any(graphs_of(attribute) for attribute in node.attributes.values())
        ]
        common.RemoveUnusedNodesPass()(model)
        removed = [node for node in holders if node.graph is None]
        for node in removed:
            release(node)
        gone = bool(removed)
    common.RemoveUnusedFunctionsPass()(model)
    for graph in model.graph.subgraphs():
        for value in list(graph.initializers.values()):
            if not list(value.uses()) and not value.is_graph_output():
                del graph.initializers[value.name]


def infer_shapes(model: ir.Model) -> None:
    """Fill in shapes and types; values whose shape cannot be inferred stay without."""
    import onnx_ir as ir
    import onnx_ir.passes.common as common

    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    lists = [n.outputs[0] for n in nodes if n.domain == "" and n.op_type in SEQUENCES]
    declared = [value.type if value.is_graph_output() else None for value in lists]
    common.ShapeInferencePass(check_type=True, strict_mode=False, data_prop=True)(model)
    for value, kind in zip(lists, declared):  # the pass takes a list for its element
        value.type, value.shape = kind, None


def refuse_training_mode(model: ir.Model) -> None:
    """Raise for BatchNormalization or Dropout that would still train (they are not functions).

    Raises:
        SourceError: names the node and the remedy.
    """
    import onnx_ir as ir

    opset = int(model.opset_imports.get("", 1))
    for graph in (model.graph, *model.functions.values()):
        for node in ir.traversal.RecursiveGraphIterator(graph):
            if node.domain == "" and (problem := _training(node, opset)):
                path = module_path(node)
                raise SourceError(
                    f"{describe(node)} was exported in training mode: {problem}",
                    hint="call model.eval() before exporting"
                    + (f" (torch module {path})" if path else ""),
                    where=str(node.name),
                )


def _training(node: ir.Node, opset: int) -> str:
    if node.op_type == "BatchNormalization":
        if attribute(node, "training_mode", 0):
            return "training_mode is 1"
        if opset < 7 and not attribute(node, "is_test", 0):
            return "is_test is 0"
        if opset < 14 and any(out.name for out in node.outputs[1:]):
            return "it has outputs for batch statistics"
    if node.op_type == "Dropout":
        if opset < 7 and not attribute(node, "is_test", 0):
            return "is_test is 0"
        if (mode := read(node, 2)) is not None:
            flag = constant(mode)
            if flag is None and (producer := mode.producer()) is not None:
                value = producer.attributes.get("value")
                if producer.op_type == "Constant" and value is not None:
                    flag = value.value.numpy()
            if flag is not None and bool(flag.any()):
                return "training_mode is true, so it is an active Dropout"
    return ""


def _inline_foreign(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnx.inliner

    if all(function.domain == DOMAIN for function in proto.functions):
        return proto
    foreign = [(f.domain, f.name) for f in proto.functions if f.domain != DOMAIN]
    return onnx.inliner.inline_selected_functions(proto, foreign)


def _name_everything(model: ir.Model) -> None:
    """Give nodes without a name, or with one already taken, a name of their own."""
    import onnx_ir as ir

    seen: set[str] = set()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        base = node.name or f"{node.op_type}_{node.outputs[0].name if node.outputs else ''}"
        name, number = base, 1
        while name in seen:
            number += 1
            name = f"{base}_{number}"
        seen.add(name)
        node.name = name


def _constants_to_initializers(model: ir.Model) -> None:
    import numpy as np
    import onnx_ir as ir

    numeric: dict[str, type[np.generic]] = {"value_float": np.float32, "value_floats": np.float32}
    numeric |= {"value_int": np.int64, "value_ints": np.int64}
    nodes = [n for n in ir.traversal.RecursiveGraphIterator(model.graph) if _is_constant_node(n)]
    for node in nodes:
        (key, found), *_ = node.attributes.items()
        if key == "value":
            tensor = found.value
        elif key in numeric:
            tensor = ir.tensor(np.array(found.value, dtype=numeric[key]))
        else:
            continue
        output, graph = node.outputs[0], node.graph
        if output.is_graph_output():
            continue
        name = output.name
        output.name = f"{name}_constant"
        tensor.name = name
        value = ir.Value(
            name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        output.replace_all_uses_with(value)
        graph.remove(node, safe=True)
        graph.register_initializer(value)


def _is_constant_node(node: ir.Node) -> bool:
    return (
        node.domain == ""
        and node.op_type == "Constant"
        and not any(a.is_ref() for a in node.attributes.values())
    )
