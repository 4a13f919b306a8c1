"""A .tflite flatbuffer as frozen data.

Problem: every later question (was the activation fused, is anything float, which tensor carries
which name) is a question about the file, not about what a converter printed. ``read_model`` turns
the bytes into :class:`TfliteModel` without running anything. The schema is the one that ships
with ``ai_edge_litert``; constants are views of the bytes, nothing is copied.

Scope: files with one subgraph (what every converter of ours writes). Left alone: control flow,
other metadata, sparsity, block-wise quantisation.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.artifact import Layout, Quantization, Signature, TensorSpec
from edgefuse.errors import SourceError, StageError, ToolError

DAMAGED = "make the file again; a cut download or an interrupted write does this"
IDENTIFIER = b"TFL3"
TURNED_INPUTS = "edgefuse.turned_inputs"
FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
_BITS = {"bool": 8, "int4": 4, "uint4": 4, "int2": 2, "bfloat16": 16}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file.

    Attributes:
        index: its place in the file; the interpreter uses the same number.
        shape: as stored; of an axis in ``dynamic_axes`` it is an example size, with which an
            interpreter runs the file until it is told another.
        dtype: NumPy's name, or ``string``, ``int4``, ``bfloat16``, ``resource``, ``variant``.
        nbytes: bytes of one value (0 for types without a fixed size).
        scales: one per tensor, or one a channel of ``quantized_dimension``; empty when not
            quantised. real = scale * (quantized - zero_point).
        buffer: the file's buffer that holds the constant.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    is_constant: bool
    nbytes: int
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    quantized_dimension: int
    is_variable: bool
    dynamic_axes: tuple[int, ...]
    buffer: int

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES

    @property
    def is_dynamic(self) -> bool:
        return bool(self.dynamic_axes)

    @property
    def real_range(self) -> tuple[float, float] | None:
        """Least and greatest real value a per-tensor quantised tensor can hold, else None."""
        if len(self.scales) != 1 or self.dtype not in ("int8", "uint8", "int16"):
            return None
        limits = np.iinfo(self.dtype)
        zero = self.zero_points[0] if self.zero_points else 0
        return (self.scales[0] * (limits.min - zero), self.scales[0] * (limits.max - zero))


@dataclass(frozen=True)
class Operator:
    """One operator, in execution order.

    Attributes:
        inputs: tensor indices; -1 for an absent optional input.
        activation: the fused activation, ``NONE`` for operators that cannot fuse one.
        custom_code: the name of a custom operator (``Flex...`` for TensorFlow's), else empty.
    """

    index: int
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    activation: str = "NONE"
    custom_code: str = ""

    @property
    def label(self) -> str:
        """The operator's name in messages: ``CONV_2D#3``."""
        return f"{self.custom_code or self.code}#{self.index}"


@dataclass(frozen=True)
class TfliteModel:
    """A parsed file. ``signature_*`` pair the signature's names with tensor indices.

    ``turned_inputs`` are the signature's inputs that take their picture turned by 180 degrees.
    """

    where: str
    data: bytes = field(repr=False)
    version: int
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signature_key: str
    signature_inputs: tuple[tuple[str, int], ...]
    signature_outputs: tuple[tuple[str, int], ...]
    spans: Mapping[int, tuple[int, int]] = field(repr=False)
    turned_inputs: frozenset[str] = frozenset()

    def constant(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The value of a constant in its stored type, a read-only view of the file's bytes.

        Raises:
            StageError: when the tensor is no constant or has no NumPy type.
        """
        if not tensor.is_constant:
            raise StageError(f"tensor {tensor.name!r} is not a constant", where=self.where)
        begin, length = self.spans[tensor.buffer]
        try:
            dtype = np.dtype(tensor.dtype)
        except TypeError as error:
            raise StageError(
                f"constant {tensor.name!r} is {tensor.dtype}, which NumPy cannot hold",
                where=self.where,
            ) from error
        flat = np.frombuffer(self.data, dtype, length // dtype.itemsize, begin)
        return flat.reshape(tensor.shape)

    def real_constant(self, tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The real value of a constant: dequantised when quantised; float64, the same shape."""
        value = self.constant(tensor).astype(np.float64)
        if not tensor.scales:
            return value
        scales = np.asarray(tensor.scales, np.float64)
        zeros = np.asarray(tensor.zero_points or [0] * len(scales), np.float64)
        if len(scales) > 1:
            shape = [1] * value.ndim
            shape[tensor.quantized_dimension] = -1
            scales, zeros = scales.reshape(shape), zeros.reshape(shape)
        real: np.ndarray[Any, np.dtype[np.float64]] = (value - zeros) * scales
        return real

    def operator_counts(self) -> dict[str, int]:
        """How often each operator occurs, by code; custom operators under their own name."""
        counts = Counter(op.custom_code or op.code for op in self.operators)
        return dict(sorted(counts.items()))

    def activations_of(self, operator: Operator) -> tuple[Tensor, ...]:
        """The operator's inputs and outputs that are not constants."""
        touched = (*operator.inputs, *operator.outputs)
        tensors = (self.tensors[i] for i in touched if i >= 0)
        return tuple(t for t in tensors if not t.is_constant)

    def float_operators(self) -> tuple[Operator, ...]:
        """Operators with a float activation, but for QUANTIZE and DEQUANTIZE at the boundary."""
        return tuple(
            op
            for op in self.operators
            if any(t.is_float for t in self.activations_of(op)) and not self.is_boundary(op)
        )

    def is_boundary(self, operator: Operator) -> bool:
        """Whether it turns a model input into integers, or integers into a model output."""
        if operator.code == "QUANTIZE":
            return operator.inputs[0] in self.inputs
        return operator.code == "DEQUANTIZE" and operator.outputs[0] in self.outputs

    def custom_operators(self) -> tuple[Operator, ...]:
        """Operators that a plain runtime does not have: TensorFlow's (Flex) and custom ones."""
        return tuple(op for op in self.operators if op.custom_code)


def read_model(path: Path) -> TfliteModel:
    """Parse the file at ``path``.

    Raises:
        SourceError: when it cannot be read, is no .tflite file, or is damaged.
        StageError: when it has several subgraphs (control flow).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return parse_model(data, str(path))


def parse_model(data: bytes, where: str = "model") -> TfliteModel:
    """Parse the bytes of a .tflite file; ``where`` names them in messages. Raises as read_model."""
    if len(data) < 8:
        text = f"{len(data)} bytes are too short for a .tflite file"
        raise SourceError(text, where=where, hint=DAMAGED)
    if data[4:8] != IDENTIFIER:
        text = f"not a .tflite file: identifier {data[4:8]!r}, expected {IDENTIFIER!r}"
        raise SourceError(text, where=where, hint="give a file that a TFLite converter wrote")
    schema = _schema()
    try:
        return _parse(data, where, schema)
    except (struct.error, IndexError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise SourceError(
            f"damaged or truncated .tflite file ({len(data)} bytes): {error}",
            hint=DAMAGED,
            where=where,
        ) from error


def operator_codes() -> frozenset[str]:
    """Every operator that a .tflite file can hold, but for custom ones: ``CONV_2D``.

    Raises:
        ToolError: the schema is missing.
    """
    return frozenset(_names(_schema().BuiltinOperator).values())


def _schema() -> Any:
    try:
        from ai_edge_litert import schema_py_generated as schema
    except ImportError as error:
        raise ToolError("ai-edge-litert is missing", hint="pip install ai-edge-litert") from error
    return schema


def _names(enumeration: type) -> dict[int, str]:
    return {v: k for k, v in vars(enumeration).items() if isinstance(v, int)}


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


def _vector(table: Any, field_name: str) -> tuple[Any, ...]:
    """A scalar vector of a flatbuffer table; absent reads as empty."""
    length = getattr(table, f"{field_name}Length")()
    if not length:
        return ()
    return tuple(getattr(table, f"{field_name}AsNumpy")().tolist())


def _spans(model: Any, data: bytes) -> dict[int, tuple[int, int]]:
    """Begin and length, in bytes, of every buffer that holds something."""
    spans = {}
    for index in range(model.BuffersLength()):
        buffer = model.Buffers(index)
        if buffer.Offset() > 1:
            begin, length = buffer.Offset(), buffer.Size()
        elif buffer.DataLength():
            view = buffer.DataAsNumpy()
            begin = view.__array_interface__["data"][0]
            begin -= np.frombuffer(data, np.uint8).__array_interface__["data"][0]
            length = buffer.DataLength()
        else:
            continue
        if begin < 0 or begin + length > len(data):
            raise ValueError(f"buffer {index} reaches beyond the end of the file")
        spans[index] = (begin, length)
    return spans


def _parse(data: bytes, where: str, schema: Any) -> TfliteModel:
    model = schema.Model.GetRootAs(data, 0)
    subgraphs = model.SubgraphsLength()
    if subgraphs != 1:
        raise StageError(
            f"{subgraphs} subgraphs; exactly one is supported",
            hint="export the model without control flow (if, while) and without training "
            "signatures",
            where=where,
        )
    graph = model.Subgraphs(0)
    spans = _spans(model, data)
    types = {k: v.lower() for k, v in _names(schema.TensorType).items()}
    tensors = tuple(
        _tensor(graph.Tensors(i), i, types, spans) for i in range(graph.TensorsLength())
    )
    operators = tuple(
        _operator(model, graph.Operators(i), i, schema) for i in range(graph.OperatorsLength())
    )
    inputs, outputs = _vector(graph, "Inputs"), _vector(graph, "Outputs")
    for index in (*inputs, *outputs, *(i for op in operators for i in (*op.inputs, *op.outputs))):
        if not -1 <= index < len(tensors):
            raise ValueError(f"tensor index {index} of {len(tensors)}")
    key, named_inputs, named_outputs = _signature(model, schema)
    return TfliteModel(
        where=where,
        data=data,
        version=model.Version(),
        tensors=tensors,
        operators=operators,
        inputs=inputs,
        outputs=outputs,
        signature_key=key,
        signature_inputs=named_inputs or tuple((tensors[i].name, i) for i in inputs),
        signature_outputs=named_outputs or tuple((tensors[i].name, i) for i in outputs),
        spans=spans,
        turned_inputs=_turned(model, data, spans),
    )


def _turned(model: Any, data: bytes, spans: Mapping[int, tuple[int, int]]) -> frozenset[str]:
    """The inputs that the metadata says are turned: see :mod:`edgefuse.tflite.turned`."""
    for place in range(model.MetadataLength()):
        entry = model.Metadata(place)
        if _text(entry.Name()) == TURNED_INPUTS:
            begin, length = spans[entry.Buffer()]
            names = json.loads(data[begin : begin + length])
            if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
                raise ValueError(f"metadata {TURNED_INPUTS} is no list of names")
            return frozenset(names)
    return frozenset()


def _tensor(
    table: Any, index: int, types: Mapping[int, str], spans: Mapping[int, tuple[int, int]]
) -> Tensor:
    dtype = types[table.Type()]
    shape = tuple(_vector(table, "Shape"))
    count = prod(shape)
    bits = _BITS.get(dtype)
    if bits is None:
        bits = 0 if dtype in ("string", "resource", "variant") else np.dtype(dtype).itemsize * 8
    nbytes = (count * bits + 7) // 8
    constant = table.Buffer() in spans
    if constant and bits and spans[table.Buffer()][1] != nbytes:
        raise ValueError(
            f"constant {_text(table.Name())!r} of shape {shape} {dtype} needs {nbytes} bytes, "
            f"its buffer has {spans[table.Buffer()][1]}"
        )
    if table.ExternalBuffer():
        raise StageError(
            f"constant {_text(table.Name())!r} lies outside the file", where="tensor " + str(index)
        )
    quantization = table.Quantization()
    scales = _vector(quantization, "Scale") if quantization else ()
    return Tensor(
        index=index,
        name=_text(table.Name()),
        shape=shape,
        dtype=dtype,
        is_constant=constant,
        nbytes=nbytes,
        scales=scales,
        zero_points=_vector(quantization, "ZeroPoint") if quantization else (),
        quantized_dimension=quantization.QuantizedDimension() if quantization else 0,
        is_variable=bool(table.IsVariable()),
        dynamic_axes=tuple(k for k, n in enumerate(_vector(table, "ShapeSignature")) if n == -1),
        buffer=table.Buffer(),
    )


def _operator(model: Any, table: Any, index: int, schema: Any) -> Operator:
    code = model.OperatorCodes(table.OpcodeIndex())
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    name = _names(schema.BuiltinOperator)[number]
    activation = "NONE"
    kind = _names(schema.BuiltinOptions).get(table.BuiltinOptionsType(), "NONE")
    union = table.BuiltinOptions()
    options = getattr(schema, kind, None)
    if union is not None and options is not None and hasattr(options, "FusedActivationFunction"):
        settings = options()
        settings.Init(union.Bytes, union.Pos)
        activation = _names(schema.ActivationFunctionType)[settings.FusedActivationFunction()]
    return Operator(
        index=index,
        code=name,
        inputs=_vector(table, "Inputs"),
        outputs=_vector(table, "Outputs"),
        activation=activation,
        custom_code=_text(code.CustomCode()) if name == "CUSTOM" else "",
    )


Names = tuple[tuple[str, int], ...]


def _signature(model: Any, schema: Any) -> tuple[str, Names, Names]:
    """Key, inputs and outputs of ``serving_default``, else of the only signature, else empty."""
    found = [model.SignatureDefs(i) for i in range(model.SignatureDefsLength())]
    default = [s for s in found if s.SignatureKey() == b"serving_default"]
    if default:
        found = default
    if len(found) != 1:
        return "", (), ()
    chosen = found[0]

    def pairs(kind: str) -> Names:
        rows = (getattr(chosen, kind)(i) for i in range(getattr(chosen, f"{kind}Length")()))
        return tuple((_text(row.Name()), row.TensorIndex()) for row in rows)

    return _text(chosen.SignatureKey()), pairs("Inputs"), pairs("Outputs")


def _spec(model: TfliteModel, name: str, index: int) -> TensorSpec:
    tensor = model.tensors[index]
    layout: Layout = "NHWC" if len(tensor.shape) == 4 else "other"
    quantization = None
    if len(tensor.scales) == 1:
        zero = tensor.zero_points[0] if tensor.zero_points else 0
        quantization = Quantization(tensor.scales[0], zero)
    turned = name in model.turned_inputs
    return TensorSpec(name, tensor.shape, tensor.dtype, layout, quantization, turned)


def signature_of(model: TfliteModel) -> Signature:
    """Inputs and outputs as an :class:`~edgefuse.artifact.Signature`.

    Names come from ``serving_default`` (or the only signature), else from the tensors, in the
    file's order. 4-D tensors are NHWC: TFLite's convolutions know no other layout.
    """
    return Signature(
        inputs=tuple(_spec(model, name, i) for name, i in model.signature_inputs),
        outputs=tuple(_spec(model, name, i) for name, i in model.signature_outputs),
    )
