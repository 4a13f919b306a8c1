"""What of a QDQ model an int8 .tflite can hold, and the refusal of everything else.

An activation: int8 or uint8, one scale, any zero point. A weight: int8, one scale or one for each
output channel, zero point 0; other zero points are taken where q - zero_point still fits int8 for
every weight, which is exact (uint8 around 128 always fits). A bias: int32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Quantization
from edgefuse.errors import SourceError
from edgefuse.graph.quantization import WeightScales
from edgefuse.graph.values import attribute, constant, describe, read

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.values import Array

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_INTEGER_FORMS = (
    "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QLinearAdd", "QLinearMul",
    "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearConcat", "QLinearAveragePool",
    "QLinearGlobalAveragePool", "QGemm", "QAttention",
)  # fmt: skip
_AS_QDQ = "export in QDQ format (onnxruntime: quant_format=QuantFormat.QDQ)"
_EIGHT_BITS = "quantise activations and weights to 8 bits"
_TYPES = {"INT8": "int8", "UINT8": "uint8", "INT32": "int32"}


@dataclass(frozen=True)
class Parameters:
    """What one QuantizeLinear or DequantizeLinear says: real = scale * (q - zero).

    Attributes:
        scales, zeros: one, or one for each index of ``axis``.
        dtype: int8, uint8 or int32.
        axis: None when there is one scale; may count from the end.
    """

    scales: tuple[float, ...]
    zeros: tuple[int, ...]
    dtype: str
    axis: int | None

    @property
    def shown(self) -> str:
        return f"scale {self.scales[0]:.9g}, zero point {self.zeros[0]} ({self.dtype})"

    def quantized(self, value: Array) -> Array:
        """As QuantizeLinear does: the quotient in float32, halves to even, saturated."""
        import numpy as np

        limits = np.iinfo(self.dtype)
        scale, zero = self._shaped(value.ndim)
        steps = np.rint(value.astype(np.float32) / scale).astype(np.float64) + zero
        stored: Array = np.clip(steps, limits.min, limits.max).astype(self.dtype)
        return stored

    def dequantized(self, stored: Array) -> Array:
        """As DequantizeLinear does: the product in float32."""
        import numpy as np

        scale, zero = self._shaped(stored.ndim)
        centred = (stored.astype(np.int64) - zero).astype(np.float32)
        real: Array = centred * scale
        return real

    def _shaped(self, rank: int) -> tuple[Array, Array]:
        """Scales and zero points, to be broadcast against an array of this rank."""
        import numpy as np

        shape = [1] * rank
        if self.axis is not None:
            shape[self.axis] = len(self.scales)
        scales = np.asarray(self.scales, np.float32).reshape(shape)
        return scales, np.asarray(self.zeros, np.int64).reshape(shape)

    def of_activation(self, name: str, where: str) -> Quantization:
        """One scale and zero point in int8 terms.

        Raises:
            SourceError: there are several, or the type is not one of 8 bits.
        """
        if self.axis is not None:
            raise SourceError(
                f"activation {name!r} has {len(self.scales)} scales along axis {self.axis}",
                where=where,
                hint="TFLite knows one scale for an activation: quantise activations per tensor",
            )
        if self.dtype == "int32":
            raise SourceError(
                f"activation {name!r} is quantised to int32", where=where, hint=_EIGHT_BITS
            )
        shift = 128 if self.dtype == "uint8" else 0
        return Quantization(self.scales[0], self.zeros[0] - shift)


def parameters(node: ir.Node, where: str) -> Parameters:
    """What the node says.

    Raises:
        SourceError: a type, a block size or a scale that cannot be held; scale or zero point is
            computed.
    """
    import numpy as np

    value = node.inputs[0]
    name = str(value.name) if value is not None else ""
    dtype = _dtype(node)
    if dtype not in _TYPES:
        kind = dtype.lower().replace("undefined", "an unknown type")
        raise SourceError(
            f"{name!r} is quantised to {kind} by {describe(node)}, which an int8 .tflite cannot "
            "hold",
            where=where,
            hint=_EIGHT_BITS,
        )
    if attribute(node, "block_size", 0):
        raise SourceError(
            f"{name!r} has one scale for each block of {attribute(node, 'block_size', 0)}",
            where=where,
            hint="TFLite knows one scale for a tensor or for a channel: quantise without blocks",
        )
    scale = _given(node, 1, "scale", where)
    zero = _given(node, 2, "zero point", where) if read(node, 2) is not None else None
    if scale.dtype != np.float32:
        raise SourceError(
            f"the scale of {name!r} is {scale.dtype}",
            where=where,
            hint="export the model in float32 before it is quantised",
        )
    scales = scale.reshape(-1).astype(np.float64)
    zeros = np.zeros(scales.size, np.int64) if zero is None else zero.reshape(-1).astype(np.int64)
    if scale.ndim > 1 or zeros.size != scales.size:
        raise SourceError(
            f"{name!r} has scales of shape {scale.shape} and {zeros.size} zero points",
            where=where,
            hint="TFLite knows one scale for a tensor or for a channel",
        )
    if not np.isfinite(scales).all() or (scales <= 0).any():
        worst = next(s for s in scales if not (np.isfinite(s) and s > 0))
        raise SourceError(
            f"the scale of {name!r} is {worst:.9g}; it must be above 0",
            where=where,
            hint="the quantiser saw no values there: calibrate on real samples, or floor the scale",
        )
    axis = int(attribute(node, "axis", 1)) if scales.size > 1 else None
    return Parameters(tuple(scales.tolist()), tuple(zeros.tolist()), _TYPES[dtype], axis)


def symmetric(stored: Array, held: Parameters, name: str, where: str) -> WeightScales:
    """The scales of a weight whose integers, its zero point taken off, fit int8.

    Raises:
        SourceError: they do not.
    """
    import numpy as np

    _, zero = held._shaped(stored.ndim)
    centred = stored.astype(np.int64) - zero
    if centred.size and (centred.min() < -128 or centred.max() > 127):
        raise SourceError(
            f"weight {name!r} is asymmetric: with its zero point {held.zeros[0]} taken off, its "
            f"integers go from {centred.min()} to {centred.max()}",
            where=where,
            hint="TFLite's weights are symmetric int8: quantise them so (onnxruntime: "
            "weight_type=QuantType.QInt8; NNCF: mode symmetric)",
        )
    axis = None if held.axis is None else held.axis % stored.ndim
    return WeightScales(held.scales, axis)


def constant_array(value: ir.Value | None) -> Array | None:
    """The array of an initializer or of a Constant, seen through Identity and Cast."""
    import numpy as np
    import onnx_ir as ir

    if value is None:
        return None
    if (found := constant(value)) is not None:
        return found
    maker = value.producer()
    if maker is None or maker.domain != "":
        return None
    if maker.op_type in ("Identity", "Cast"):
        inner = constant_array(maker.inputs[0])
        if inner is None or maker.op_type == "Identity":
            return inner
        return inner.astype(ir.DataType(int(attribute(maker, "to", 1))).numpy())
    if maker.op_type != "Constant":
        return None
    for key, dtype in (("value_float", np.float32), ("value_floats", np.float32),
                       ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if key in maker.attributes:
            return np.asarray(maker.attributes[key].value, dtype)
    held = maker.attributes.get("value")
    array: Array | None = None if held is None else held.value.numpy()
    return array


def refuse_other_forms(proto: Any, where: str) -> None:
    """Refuse quantised models that are not in QDQ format, and pairs inside of subgraphs.

    Args:
        proto: an ``onnx.ModelProto``; its operators need not be known ones.

    Raises:
        SourceError: names the node and the remedy.
    """
    for node in proto.graph.node:
        _refuse_form(node, where)
    for node in _inner(proto):
        _refuse_form(node, where)
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            raise SourceError(
                f"{node.op_type} {node.name!r} lies in a subgraph or a function",
                where=where,
                hint="inline functions (onnx.inliner) and export without control flow",
            )


def _refuse_form(node: Any, where: str) -> None:
    shown = f"{node.op_type} {node.name!r}"
    if node.op_type in _INTEGER_FORMS:
        raise SourceError(f"{shown} computes on integers", where=where, hint=_AS_QDQ)
    if node.op_type == "DynamicQuantizeLinear":
        raise SourceError(
            f"{shown} takes its scale from each sample (dynamic quantisation)",
            where=where,
            hint="an int8 .tflite has fixed scales: quantise statically, in QDQ format",
        )
    if node.op_type in (QUANTIZE, DEQUANTIZE) and node.domain not in ("", "ai.onnx"):
        raise SourceError(
            f"{shown} is of domain {node.domain}",
            where=where,
            hint="only ONNX's own can be read: onnxruntime takes UseQDQContribOps=False",
        )


def _inner(proto: Any) -> Iterable[Any]:
    """Nodes of functions, and of every subgraph."""
    pending = [(function, True) for function in proto.functions] + [(proto.graph, False)]
    while pending:
        graph, inside = pending.pop()
        for node in graph.node:
            if inside:
                yield node
            pending += [(a.g, True) for a in node.attribute if a.HasField("g")]
            pending += [(inner, True) for a in node.attribute for inner in a.graphs]


def _given(node: ir.Node, index: int, what: str, where: str) -> Array:
    value = read(node, index)
    found = constant_array(value)
    if found is None:
        name = node.inputs[0].name if node.inputs[0] is not None else ""
        raise SourceError(
            f"the {what} of {name!r} is no constant (input {index} of {describe(node)})",
            where=where,
            hint="an int8 .tflite has fixed scales: export the model in eval mode, with its "
            "scales as constants, and keep initializers out of the graph inputs",
        )
    return found


def _dtype(node: ir.Node) -> str:
    """The integer type on the quantised side, by ONNX's name."""
    import onnx_ir as ir

    value = node.inputs[0]
    if node.op_type == DEQUANTIZE:
        maker = value.producer() if value is not None else None
        if maker is not None and maker.op_type == QUANTIZE:
            return _dtype(maker)
        known = value.dtype if value is not None else None
        if known is None:
            array = constant_array(value)
            known = None if array is None else ir.DataType.from_numpy(array.dtype)
        return known.name if known is not None else "UNDEFINED"
    if (zero := read(node, 2)) is not None:
        if zero.dtype is not None:
            return str(zero.dtype.name)
        array = constant_array(zero)
        return "UNDEFINED" if array is None else str(ir.DataType.from_numpy(array.dtype).name)
    kind = int(attribute(node, "output_dtype", 0))
    return str(ir.DataType(kind).name) if kind else "UINT8"
