"""Write a .tflite's signature: which name stands for which tensor, in which order.

Converters and quantisers get it wrong without a word: names with special characters are
rewritten, outputs come in alphabetical order, and an operator added behind an output moves the
graph's output but not the signature's entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "serving_default"


def with_signature(data: bytes, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bytes:
    """The same model with one signature, entries in the order given.

    Args:
        inputs, outputs: tensor index by name.

    Returns:
        The bytes as given when they say so already.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    root = schema.Model.GetRootAs(data)
    if root.SignatureDefsLength() == 1:
        only = root.SignatureDefs(0)
        found = (
            [_pair(only.Inputs(k)) for k in range(only.InputsLength())],
            [_pair(only.Outputs(k)) for k in range(only.OutputsLength())],
        )
        if found == (list(inputs.items()), list(outputs.items())):
            return data
    model = schema.ModelT.InitFromObj(root)
    definition = schema.SignatureDefT()
    definition.signatureKey = KEY.encode()
    definition.subgraphIndex = 0
    definition.inputs = [_entry(schema, *pair) for pair in inputs.items()]
    definition.outputs = [_entry(schema, *pair) for pair in outputs.items()]
    model.signatureDefs = [definition]
    builder = flatbuffers.Builder(len(data))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _pair(entry: Any) -> tuple[str, int]:
    return entry.Name().decode(), entry.TensorIndex()


def _entry(schema: Any, name: str, tensor: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name.encode(), tensor
    return entry
