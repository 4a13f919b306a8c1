"""uint8 at a model's inputs and outputs: the integers of cameras, and of older runtimes.

    q_uint8 = q_int8 + 128: the same scale, the zero point greater by 128

Kernels compute in int8, so the uint8 tensor gets a QUANTIZE behind it (input) or before it
(output), which is exact. Left alone: float, integer and int16 boundaries.
"""

from __future__ import annotations

from collections.abc import Sequence


def as_uint8(
    data: bytes, inputs: Sequence[int], outputs: Sequence[int]
) -> tuple[bytes, dict[int, int], dict[int, int]]:
    """The file with these inputs and outputs in uint8, where they are int8.

    Returns:
        The bytes, and the new tensor for each input and each output that was replaced.
    """
    from edgefuse.tflite.edit import Edit

    edit = Edit(data)
    graph, int8 = edit.graph, edit.schema.TensorType.INT8
    fresh: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for side, indices in enumerate((inputs, outputs)):
        for index in dict.fromkeys(indices):
            if graph.tensors[index].type != int8:
                continue
            held = graph.tensors[index].quantization
            zero = int(held.zeroPoint[0]) + 128
            twin = edit.like(index, "_uint8", "uint8", float(held.scale[0]), zero)
            fresh[side][index] = twin
            if side == 0:
                graph.operators.insert(0, edit.operator("QUANTIZE", [twin], [index]))
            else:
                graph.operators.append(edit.operator("QUANTIZE", [index], [twin]))
    graph.inputs = [fresh[0].get(index, index) for index in graph.inputs]
    graph.outputs = [fresh[1].get(index, index) for index in graph.outputs]
    return edit.packed(), *fresh
