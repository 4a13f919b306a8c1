"""An ONNX file, checked and pinned: everything that would surprise a later stage is refused here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import RecipeError, SourceError

if TYPE_CHECKING:
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
        raise SourceError("the ONNX graph has no nodes", where=where)
    _load_external(proto, path)
    _check_opsets(proto, where)
    _check_training(proto, where)
    _check_finite(proto, where)
    _pin_inputs(proto, model, where)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise SourceError(
            f"the ONNX checker refuses it: {text}",
            where=where,
            hint="an unsupported operator or a broken graph: export it again",
        ) from error
    return proto


def _load_external(proto: Any, path: Path) -> None:
    import onnx
    from onnx.external_data_helper import _get_all_tensors, uses_external_data

    for tensor in _get_all_tensors(proto):
        if uses_external_data(tensor):
            location = next(e.value for e in tensor.external_data if e.key == "location")
            if not (path.parent / location).is_file():
                raise SourceError(
                    f"external data missing: {location} (tensor {tensor.name})",
                    where=str(path),
                    hint="keep the data file beside the .onnx, or save the model in one file",
                )
    try:
        onnx.load_external_data_for_model(proto, str(path.parent))
    except Exception as error:
        raise SourceError(f"external data cannot be read: {error}", where=str(path)) from error
    for tensor in _get_all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT


def _check_opsets(proto: Any, where: str) -> None:
    local = {function.domain for function in proto.functions}
    for opset in proto.opset_import:
        if opset.domain in _STANDARD:
            if opset.version not in _OPSETS:
                raise SourceError(
                    f"opset {opset.version} is not supported "
                    f"({_OPSETS.start} to {_OPSETS.stop - 1} are)",
                    where=where,
                    hint="export with another opset_version, or use onnx.version_converter",
                )
    for node in proto.graph.node:
        if node.domain not in _STANDARD and node.domain not in local:
            raise SourceError(
                f"unsupported operator {node.domain}.{node.op_type} (node {node.name!r})",
                where=where,
                hint="only standard ONNX operators can be converted: replace it in the model",
            )


def _check_training(proto: Any, where: str) -> None:
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        flag = next((a.i for a in node.attribute if a.name == "training_mode"), 0)
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in constants:
            import onnx

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

    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
            raise SourceError(
                f"weights hold NaN in {tensor.name}",
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
            f"model.inputs names {sorted(wanted)}, the file has {sorted(inputs)}", where=where
        )
    outputs = [o.name for o in proto.graph.output]
    if model.outputs and list(model.outputs) != outputs:
        raise RecipeError(
            f"model.outputs names {list(model.outputs)}, the file has {outputs}", where=where
        )
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        if tensor.elem_type != onnx.TensorProto.FLOAT:
            kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
            raise SourceError(f"input {name!r} is {kind}; only FLOAT can be quantised", where=where)
        dims = tensor.shape.dim
        shape = wanted[name].shape
        found = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]
        fits = len(found) == len(shape) and all(
            isinstance(d, str) or d == s for d, s in zip(found, shape)
        )
        if not fits:
            raise RecipeError(
                f"model.inputs: {name!r} has shape {list(shape)}, the file has {found}",
                where=where,
            )
        for dim, size in zip(dims, shape):
            dim.dim_value = size
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=False, data_prop=True)
    proto.CopyFrom(inferred)
    for output in proto.graph.output:
        shape_field = output.type.tensor_type.shape
        if not output.type.tensor_type.HasField("shape") or any(
            not d.HasField("dim_value") for d in shape_field.dim
        ):
            raise SourceError(
                f"output {output.name!r} keeps a dynamic shape",
                where=where,
                hint="export the model with static shapes, or pin every input in model.inputs",
            )
