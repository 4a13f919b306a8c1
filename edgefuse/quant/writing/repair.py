"""What the quantiser leaves wrong in its file, put right.

Seen in ai-edge-quantizer 0.4.1. It merges a requantisation into the operator before it, but
LOGISTIC, SOFTMAX and TANH know one output scale only (TFLite quantisation specification) and the
file does not load: they get it back, with a QUANTIZE behind them. It lets an output follow the
requantisation that another reader of the tensor needs, into a scale which is not its own: the
output stays where it was. An operator that it puts behind an output moves the graph's output, but
not the signature's entry: the signature follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

# Output scale and zero point in int8.
FIXED_OUTPUTS = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "TANH": (1 / 128, 0),
}


def repaired(
    data: bytes, source: TfliteModel, *, input_type: str = "int8", output_type: str = "int8"
) -> bytes:
    """The quantised file, loadable, with the signature of ``source``, the float file."""
    from edgefuse.quant.writing.boundary import as_uint8
    from edgefuse.tflite.read import parse_model
    from edgefuse.tflite.signature import with_signature

    found = parse_model(data)
    inputs = list(found.inputs)
    outputs = [_own(found, before, now) for before, now in zip(source.outputs, found.outputs)]
    unfit = [
        operator.index
        for operator in found.operators
        if operator.code in FIXED_OUTPUTS and not _fits(found, operator.code, operator.outputs[0])
    ]
    if unfit or outputs != list(found.outputs):
        data = _edited(data, found, unfit, outputs)
    if "uint8" in (input_type, output_type):
        data, moved_inputs, moved_outputs = as_uint8(
            data,
            inputs if input_type == "uint8" else (),
            outputs if output_type == "uint8" else (),
        )
        inputs = [moved_inputs.get(index, index) for index in inputs]
        outputs = [moved_outputs.get(index, index) for index in outputs]
    placed = dict(zip(source.inputs, inputs)), dict(zip(source.outputs, outputs))
    return with_signature(
        data,
        {name: placed[0][index] for name, index in source.signature_inputs},
        {name: placed[1][index] for name, index in source.signature_outputs},
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
    from edgefuse.tflite.edit import Edit

    edit = Edit(data)
    edit.graph.outputs = outputs
    for index in reversed(unfit):
        operator = found.operators[index]
        (scale, zero), place = FIXED_OUTPUTS[operator.code], operator.outputs[0]
        fixed = edit.like(place, "_fixed", "int8", scale, zero)
        edit.graph.operators[index].outputs = [fixed]
        edit.graph.operators.insert(index + 1, edit.operator("QUANTIZE", [fixed], [place]))
    return edit.packed()
