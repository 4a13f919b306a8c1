"""An ONNX file, checked and pinned: whatever would surprise a later stage is refused here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import RecipeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgefuse.recipe import Model

_OPSETS = range(7, 24)
_STANDARD = ("", "ai.onnx")


def load(path: Path, model: Model) -> Any:
    """Read, check and pin an ONNX file.

    Returns:
        An ``onnx.ModelProto`` with static input shapes and all data inside.

    Raises:
        SourceError: not ONNX, missing external data, an unsupported operator or opset, a graph
            exported in training mode.
        RecipeError: its inputs are not the recipe's.
    """
    import onnx

    from edgefuse.graph.hazards import refuse_hazards
    from edgefuse.graph.qdq_limits import refuse_other_forms

    where = str(path)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise SourceError(
            "not an ONNX file, or a damaged one",
            where=where,
            hint="export it again; `python -m onnx.checker` reads it too",
        ) from error
    if not proto.graph.node:
        raise SourceError(
            "the ONNX graph has no nodes",
            where=where,
            hint="the file is empty or no model: export it again",
        )
    _load_external(proto, path)
    refuse_hazards(proto, where)
    refuse_other_forms(proto, where)
    _check_opsets(proto, where)
    _check_finite(proto, where)
    _check_training(proto, where)
    for output in proto.graph.output:  # May be without a shape: it is inferred below.
        output.type.tensor_type.shape.SetInParent()
    _check_graph(proto, where, full_check=False)
    _pin_inputs(proto, model, where)
    _check_graph(proto, where, full_check=True)
    return proto


def _check_graph(proto: Any, where: str, *, full_check: bool) -> None:
    import onnx

    try:
        onnx.checker.check_model(proto, full_check=full_check)
    except Exception as error:
        raise SourceError(
            f"the ONNX checker refuses it: {_one_line(error)}",
            where=where,
            hint="an unsupported operator or a broken graph: export it again",
        ) from error


def _load_external(proto: Any, path: Path) -> None:
    import onnx
    from onnx.external_data_helper import _get_all_tensors, uses_external_data

    for tensor in _get_all_tensors(proto):
        if uses_external_data(tensor):
            location = next((e.value for e in tensor.external_data if e.key == "location"), "")
            if not (path.parent / location).is_file():
                raise SourceError(
                    f"external data missing: {location} (tensor {tensor.name})",
                    where=str(path),
                    hint="keep the data file beside the .onnx, or save the model in one file",
                )
    try:
        onnx.load_external_data_for_model(proto, str(path.parent))
    except Exception as error:
        raise SourceError(
            f"external data cannot be read: {_one_line(error)}",
            where=str(path),
            hint="the data file is cut short or of another export: save both again",
        ) from error
    for tensor in _get_all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT


def _check_opsets(proto: Any, where: str) -> None:
    import onnx

    version = 0
    for opset in proto.opset_import:
        if opset.domain in _STANDARD:
            version = opset.version
            if version not in _OPSETS:
                raise SourceError(
                    f"opset {version} is not supported ({_OPSETS.start} to {_OPSETS.stop - 1} are)",
                    where=where,
                    hint="export with another opset_version, or use onnx.version_converter",
                )
    local = {(function.domain, function.name) for function in proto.functions}
    for node in _nodes(proto):
        if (node.domain, node.op_type) in local:
            continue
        standard = node.domain in _STANDARD
        if not standard or not onnx.defs.has(node.op_type, version, ""):
            name = node.op_type if standard else f"{node.domain}.{node.op_type}"
            age = f" in opset {version}" if standard and onnx.defs.has(node.op_type, "") else ""
            raise SourceError(
                f"unsupported operator {name}{age} (node {node.name!r})",
                where=where,
                hint="only standard ONNX operators can be converted: replace it in the model",
            )


def _nodes(proto: Any) -> Iterator[Any]:
    """Every node, those of subgraphs and functions too."""
    pending = [proto.graph, *proto.functions]
    while pending:
        for node in pending.pop().node:
            yield node
            pending += [a.g for a in node.attribute if a.HasField("g")]
            pending += [graph for a in node.attribute for graph in a.graphs]


def _check_training(proto: Any, where: str) -> None:
    import onnx

    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in _nodes(proto):
        held = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and held is not None:
            constants[node.output[0]] = held
    for node in _nodes(proto):
        flag = next((a.i for a in node.attribute if a.name == "training_mode"), 0)
        if node.op_type == "BatchNormalization" and len(list(filter(None, node.output))) > 1:
            flag = 1
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in constants:
            flag = int(onnx.numpy_helper.to_array(constants[node.input[2]]).item())
        if flag:
            raise SourceError(
                f"exported in training mode: {node.op_type} {node.name!r}",
                where=where,
                hint="call model.eval() and export again (training=TrainingMode.EVAL)",
            )


def _check_finite(proto: Any, where: str) -> None:
    import numpy as np
    import onnx

    held = (a.t for node in _nodes(proto) for a in node.attribute if a.HasField("t"))
    for tensor in (*proto.graph.initializer, *held):
        try:
            array = onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            raise SourceError(
                f"tensor {tensor.name!r} cannot be read: {_one_line(error)}",
                where=where,
                hint="the file or its external data are cut short or mixed up: save them again",
            ) from error
        if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
            raise SourceError(
                f"weights hold NaN in {tensor.name or 'a constant'}",
                where=where,
                hint="the training diverged or the file is damaged: take another checkpoint",
            )


def _pin_inputs(proto: Any, model: Model, where: str) -> None:
    import onnx

    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs = {i.name: i for i in proto.graph.input if i.name not in initializers}
    wanted = {i.name: i for i in model.inputs}
    if set(inputs) != set(wanted):
        raise RecipeError(
            f"model.inputs names {sorted(wanted)}, the file has {sorted(inputs)}",
            where=where,
            hint="take the file's names; `edgefuse init` writes them for you",
        )
    outputs = [o.name for o in proto.graph.output]
    if model.outputs and list(model.outputs) != outputs:
        raise RecipeError(
            f"model.outputs names {list(model.outputs)}, the file has {outputs}",
            where=where,
            hint="take the file's names in its order, or leave model.outputs out",
        )
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        if tensor.elem_type != onnx.TensorProto.FLOAT:
            kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
            raise SourceError(
                f"input {name!r} is {kind}; only FLOAT can be quantised",
                where=where,
                hint="export the model with float32 inputs; embed integer look-ups after it",
            )
        dims = tensor.shape.dim
        shape = wanted[name].shape
        found = [d.dim_value if d.dim_value > 0 else d.dim_param or "?" for d in dims]
        fits = len(found) == len(shape) and all(
            isinstance(d, str) or d == s for d, s in zip(found, shape)
        )
        if not fits:
            raise RecipeError(
                f"model.inputs: {name!r} has shape {list(shape)}, the file has {found}",
                where=where,
                hint="only named or unknown sizes of the file can be pinned to others",
            )
        del dims[:]
        for size in shape:
            dims.add().dim_value = size
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=False, data_prop=True)
    except Exception as error:
        raise SourceError(
            f"shapes cannot be inferred: {_one_line(error)}",
            where=where,
            hint="check model.inputs; a batch other than the exported one may not fit",
        ) from error
    proto.CopyFrom(inferred)
    if not all(_static(output) for output in proto.graph.output):
        _compute_output_shapes(proto)
    for output in proto.graph.output:
        if not _static(output):
            raise SourceError(
                f"output {output.name!r} keeps a dynamic shape",
                where=where,
                hint="export the model with static shapes, or pin every input in model.inputs",
            )


def _static(value: Any) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


def _compute_output_shapes(proto: Any) -> None:
    """Give the outputs the shapes that they have once programs over constants are computed.

    Exporters without an optimiser write an operator's axes or sizes as such a program (a Reshape
    of a constant), which shape inference alone does not run.
    """
    from edgefuse.graph.normalise import prepare
    from edgefuse.graph.shapes import fold_load_time

    model = prepare(proto)
    fold_load_time(model)
    for output, value in zip(proto.graph.output, model.graph.outputs):
        if value.shape is not None and value.shape.is_static():
            shape = output.type.tensor_type.shape
            shape.SetInParent()
            del shape.dim[:]
            for size in value.shape.numpy():
                shape.dim.add().dim_value = size


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
