"""What the quantiser leaves wrong in its file, put right.

Seen in ai-edge-quantizer 0.4.1. It merges a requantisation into the operator before it, but
LOGISTIC, SOFTMAX and TANH know one output scale only (TFLite quantisation specification) and the
file does not load: they get it back, with a QUANTIZE behind them. It lets an output follow the
requantisation that another reader of the tensor needs, into a scale which is not its own: the
output stays where it was. An operator that it puts behind an output moves the graph's output, but
not the signature's entry: the signature follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

# Output scale and zero point in int8.
FIXED_OUTPUTS = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "TANH": (1 / 128, 0),
}


def repaired(data: bytes, source: TfliteModel) -> bytes:
    """The int8 file, loadable, with the signature of ``source``, the float file."""
    from edgefuse.tflite.read import parse_model
    from edgefuse.tflite.signature import with_signature

    found = parse_model(data)
    outputs = [_own(found, before, now) for before, now in zip(source.outputs, found.outputs)]
    unfit = [
        operator.index
        for operator in found.operators
        if operator.code in FIXED_OUTPUTS and not _fits(found, operator.code, operator.outputs[0])
    ]
    if unfit or outputs != list(found.outputs):
        data = _edited(data, found, unfit, outputs)
    moved = dict(zip(source.inputs, found.inputs)) | dict(zip(source.outputs, outputs))
    return with_signature(
        data,
        {name: moved[index] for name, index in source.signature_inputs},
        {name: moved[index] for name, index in source.signature_outputs},
    )


def _own(found: TfliteModel, before: int, now: int) -> int:
    """The output tensor: as in the float file when that is int8 already."""
    both = (found.tensors[before].dtype, found.tensors[now].dtype)
    return before if both == ("int8", "int8") else now


def _fits(found: TfliteModel, code: str, index: int) -> bool:
    tensor, (scale, zero) = found.tensors[index], FIXED_OUTPUTS[code]
    return tensor.dtype != "int8" or (tensor.scales, tensor.zero_points) == ((scale,), (zero,))


def _edited(data: bytes, found: TfliteModel, unfit: list[int], outputs: list[int]) -> bytes:
    """With other graph outputs, and a QUANTIZE behind each unfit operator."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    graph = model.subgraphs[0]
    graph.outputs = outputs
    for index in reversed(unfit):
        operator = found.operators[index]
        (scale, zero), place = FIXED_OUTPUTS[operator.code], operator.outputs[0]
        held = graph.tensors[place]
        fixed = schema.TensorT()
        fixed.name = held.name + b"_fixed"
        fixed.shape, fixed.type, fixed.buffer = held.shape, held.type, 0
        fixed.shapeSignature, fixed.hasRank = held.shapeSignature, held.hasRank
        fixed.quantization = schema.QuantizationParametersT()
        fixed.quantization.scale, fixed.quantization.zeroPoint = [scale], [zero]
        graph.tensors.append(fixed)
        between = schema.OperatorT()
        between.opcodeIndex = _quantize_code(model, schema)
        between.inputs, between.outputs = [len(graph.tensors) - 1], [place]
        graph.operators[index].outputs = list(between.inputs)
        graph.operators.insert(index + 1, between)
    builder = flatbuffers.Builder(len(data))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _quantize_code(model: Any, schema: Any) -> int:
    wanted = schema.BuiltinOperator.QUANTIZE
    for place, code in enumerate(model.operatorCodes):
        if code.builtinCode == wanted:
            return place
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = wanted
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1
