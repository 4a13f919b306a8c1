"""Small .tflite files, written by hand: no converter, no TensorFlow."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_OPTIONS = {
    "CONV_2D": ("Conv2DOptions", {"strideW": 1, "strideH": 1}),
    "DEPTHWISE_CONV_2D": (
        "DepthwiseConv2DOptions",
        {"strideW": 1, "strideH": 1, "depthMultiplier": 1},
    ),
    "FULLY_CONNECTED": ("FullyConnectedOptions", {}),
    "ADD": ("AddOptions", {}),
    "RESHAPE": ("ReshapeOptions", {}),
    "MEAN": ("ReducerOptions", {"keepDims": False}),
    "PADV2": ("PadV2Options", {}),
    "QUANTIZE": ("QuantizeOptions", {}),
    "DEQUANTIZE": ("DequantizeOptions", {}),
}


class Builder:
    """Collects tensors and operators of one subgraph, then packs them."""

    def __init__(self) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema = schema
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.buffers = [schema.BufferT()]
        self.model.operatorCodes = []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []
        self.model.subgraphs = [self.graph]

    def tensor(
        self,
        name: str,
        shape: Sequence[int] = (),
        dtype: str = "float32",
        value: Any = None,
        scales: Sequence[float] = (),
        zeros: Sequence[int] = (),
        axis: int = 0,
    ) -> int:
        tensor = self.schema.TensorT()
        tensor.name, tensor.hasRank = name.encode(), True
        if value is not None:
            value = np.ascontiguousarray(value)
            shape, dtype = value.shape, value.dtype.name
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(value.tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        tensor.shape = list(shape)
        tensor.type = getattr(self.schema.TensorType, dtype.upper())
        if len(scales):
            tensor.quantization = self.schema.QuantizationParametersT()
            tensor.quantization.scale = list(scales)
            tensor.quantization.zeroPoint = list(zeros) or [0] * len(scales)
            tensor.quantization.quantizedDimension = axis
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def op(
        self,
        code: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        activation: str = "NONE",
        custom: str = "",
        options: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        entry = self.schema.OperatorCodeT()
        entry.builtinCode = getattr(self.schema.BuiltinOperator, code)
        entry.deprecatedBuiltinCode = min(entry.builtinCode, 127)
        entry.version = 3 if code in ("CONV_2D", "DEPTHWISE_CONV_2D") else 1
        entry.customCode = custom.encode() if custom else None
        self.model.operatorCodes.append(entry)
        operator = self.schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = list(inputs), list(outputs)
        if found := options or _OPTIONS.get(code):
            kind, settings = found
            options = getattr(self.schema, f"{kind}T")()
            for key, setting in settings.items():
                setattr(options, key, setting)
            if hasattr(options, "fusedActivationFunction"):
                kinds = self.schema.ActivationFunctionType
                options.fusedActivationFunction = getattr(kinds, activation)
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
            operator.builtinOptions = options
        self.graph.operators.append(operator)

    def finish(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], signature: bool = True
    ) -> bytes:
        """The file. The signature lists names in reverse, to catch binding by position."""
        import flatbuffers

        self.graph.inputs, self.graph.outputs = list(inputs.values()), list(outputs.values())
        if signature:

            def pairs(names: Mapping[str, int]) -> list[Any]:
                rows = []
                for name, index in reversed(names.items()):
                    row = self.schema.TensorMapT()
                    row.name, row.tensorIndex = name.encode(), index
                    rows.append(row)
                return rows

            definition = self.schema.SignatureDefT()
            definition.signatureKey = b"serving_default"
            definition.inputs, definition.outputs = pairs(inputs), pairs(outputs)
            self.model.signatureDefs = [definition]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


@dataclass(frozen=True)
class Weights:
    """In TFLite's layouts."""

    stem: np.ndarray[Any, Any]
    depthwise: np.ndarray[Any, Any]
    twin: np.ndarray[Any, Any]
    head: np.ndarray[Any, Any]


def weights(seed: int = 0) -> Weights:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape).astype(np.float32) / 3

    return Weights(normal(8, 3, 3, 3), normal(1, 3, 3, 8), normal(8, 1, 1, 8), normal(5, 8))


def float_file(held: Weights, head_activation: str = "NONE") -> bytes:
    """picture [1,8,8,3]: conv RELU6, depthwise RELU6, twin RELU, twin, add, mean, dense."""
    b = Builder()
    image = b.tensor("image", (1, 8, 8, 3))
    maps = [b.tensor(f"map{k}", (1, 8, 8, 8)) for k in range(5)]
    pooled, logits = b.tensor("pooled", (1, 8)), b.tensor("out", (1, 5))
    bias = [b.tensor(f"bias{k}", value=np.full(8, 0.1 * k, np.float32)) for k in range(4)]
    twins = [b.tensor(f"twin{k}", value=held.twin) for k in range(2)]
    b.op("CONV_2D", (image, b.tensor("stem", value=held.stem), bias[0]), (maps[0],), "RELU6")
    deep = b.tensor("deep", value=held.depthwise)
    b.op("DEPTHWISE_CONV_2D", (maps[0], deep, bias[1]), (maps[1],), "RELU6")
    b.op("CONV_2D", (maps[1], twins[0], bias[2]), (maps[2],), "RELU")
    b.op("CONV_2D", (maps[2], twins[1], bias[3]), (maps[3],), "NONE")
    b.op("ADD", (maps[3], maps[1]), (maps[4],))
    b.op("MEAN", (maps[4], b.tensor("axes", value=np.array([1, 2], np.int32))), (pooled,))
    last = b.tensor("bias_head", value=np.zeros(5, np.float32))
    head = b.tensor("head", value=held.head)
    b.op("FULLY_CONNECTED", (pooled, head, last), (logits,), head_activation)
    return b.finish({"picture": image}, {"logits": logits})


def int8_file(float_path: Path) -> bytes:
    """Quantised by ai-edge-quantizer from the min and max of eight random inputs."""
    from ai_edge_quantizer import quantizer, recipe

    from edgefuse.tflite.runtime import open_model

    model = open_model(float_path, kernels="builtin", preserve_all_tensors=True)
    random = np.random.default_rng(1)
    ranges: dict[str, dict[str, Any]] = {}
    for _ in range(8):
        model.run({"picture": random.standard_normal((1, 8, 8, 3)).astype(np.float32)})
        for tensor in model.source.tensors:
            if tensor.is_constant:
                continue
            value = model.value(tensor.index)
            low, high = ranges.get(tensor.name, {"min": np.inf, "max": -np.inf}).values()
            shape = (1,) * value.ndim
            ranges[tensor.name] = {
                "min": np.reshape(np.minimum(low, value.min()), shape).astype(np.float32),
                "max": np.reshape(np.maximum(high, value.max()), shape).astype(np.float32),
            }
    tool = quantizer.Quantizer(str(float_path), recipe.static_wi8_ai8())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return bytes(tool.quantize(ranges).quantized_model)
