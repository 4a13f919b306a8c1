"""Take QuantizeLinear and DequantizeLinear out of a model, and keep what they say.

Problem: a model quantised elsewhere (NNCF, onnxruntime, quantisation-aware training) carries its
scales as pairs of nodes. No fusion pass looks through them, no converter takes their scales over.

    activation  x -> Q -> DQ -> f     becomes  x -> f,  and x is noted with (scale, zero point)
    weight      [w -> Q ->] q -> DQ   becomes  the float constant scale * (q - zero point)

Quantising also saturates, and that stays: where the least value is 0 behind an operator that can
compute less, a Relu takes its place (a Clip to 6 where the greatest value is 6). onnxruntime's
quantiser removes just these activations. ``put_back`` is the way back: it proves that nothing was
lost, since the model with its nodes put back must answer as the one that was given.

Scope: int8 and uint8, one scale for an activation, symmetric weights. What TFLite cannot hold is
refused (:mod:`edgefuse.graph.qdq_limits`). A value of which a copy is also read without having been
quantised is noted all the same: an integer file has one tensor for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgefuse.artifact import Quantization
from edgefuse.errors import SourceError
from edgefuse.graph.builder import GraphBuilder
from edgefuse.graph.normalise import drop_dead
from edgefuse.graph.qdq_limits import (
    DEQUANTIZE,
    QUANTIZE,
    Parameters,
    constant_array,
    parameters,
    refuse_other_forms,
    symmetric,
)
from edgefuse.graph.quantization import Annotations, WeightScales, annotate, annotations_of
from edgefuse.graph.values import describe

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    import onnx_ir as ir

    from edgefuse.graph.values import Array

_WEIGHT_INPUT = {"Conv": (1,), "ConvTranspose": (1,), "Gemm": (1,), "MatMul": (0, 1)}
_VIEWS = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
_CAN_BE_NEGATIVE = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "BatchNormalization",
)  # fmt: skip
_SIX = 6.0


@dataclass(frozen=True)
class TakenOut:
    """A model without its quantisation nodes.

    Attributes:
        proto: the float model, annotated in its metadata.
        annotations: the same, as data.
        reference: the given model, every reader of a quantised value reading it quantised.
        also_float: values that the given model also reads unquantised.
    """

    proto: onnx.ModelProto
    annotations: Annotations
    reference: onnx.ModelProto
    also_float: tuple[str, ...]


def take_out(proto: onnx.ModelProto, where: str = "") -> TakenOut | None:
    """The model without QuantizeLinear and DequantizeLinear; None when it has none.

    Args:
        proto: a checked model; it is not changed.
        where: the file, for messages.

    Raises:
        SourceError: scales that an int8 .tflite cannot hold, or another form of quantisation.
    """
    import onnx_ir as ir

    refuse_other_forms(proto, where)
    if not any(node.op_type in (QUANTIZE, DEQUANTIZE) for node in proto.graph.node):
        return None
    model = ir.serde.deserialize_model(proto)
    drop_dead(model)
    taking = _Taking(model, where)
    taking.gather()
    also_float = taking.redirect_float_readers()
    reference = ir.serde.serialize_model(model)
    taking.clamp()
    taking.dissolve()
    drop_dead(model)
    annotations = taking.annotations()
    result = ir.serde.serialize_model(model)
    annotate(result, annotations)
    return TakenOut(result, annotations, reference, also_float)


@dataclass
class _Taking:
    """One model at work: its activations with their nodes, in graph order."""

    model: ir.Model
    where: str
    activations: dict[ir.Value, Quantization] = field(default_factory=dict)
    quantizers: dict[ir.Value, list[ir.Node]] = field(default_factory=dict)
    weights: dict[ir.Value, WeightScales] = field(default_factory=dict)
    constants: dict[ir.Value, Quantization] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.builder = GraphBuilder(self.model)

    def gather(self) -> None:
        """Constants become float at once; pairs on activations are checked and listed."""
        for node in list(self.model.graph):
            if node.op_type == DEQUANTIZE and node.graph is not None:
                stored = constant_array(node.inputs[0])
                if stored is not None:
                    self._constant(node, stored, parameters(node, self.where))
        for node in list(self.model.graph):
            if node.op_type != QUANTIZE or node.graph is None:
                continue
            held = parameters(node, self.where)
            value = constant_array(node.inputs[0])
            readers = self._dequantizers(node, held)
            if value is None:
                self._activation(node, held)
                continue
            stored = held.quantized(value)
            for reader in readers:
                self._constant(reader, stored, held)
            self.builder.remove((node,))
        for node in self.model.graph:
            if node.op_type == DEQUANTIZE and _maker(node.inputs[0]) != QUANTIZE:
                raise SourceError(
                    f"{describe(node)} reads {node.inputs[0].name!r}, which no QuantizeLinear made",
                    where=self.where,
                    hint="save the QDQ model before a runtime optimises it, with float32 inputs",
                )

    def _dequantizers(self, node: ir.Node, held: Parameters) -> list[ir.Node]:
        """The readers of what a QuantizeLinear made: all of them its counterparts."""
        made = node.outputs[0]
        readers = [use.node for use in made.uses()]
        other = next((n for n in readers if n.op_type != DEQUANTIZE), None)
        if made.is_graph_output() or other is not None or not readers:
            who = describe(other) if other is not None else "the caller"
            raise SourceError(
                f"the integers of {node.inputs[0].name!r} are read by {who} without a "
                "DequantizeLinear between them",
                where=self.where,
                hint="export in QDQ format, and save the model before a runtime optimises it",
            )
        for reader in readers:
            if parameters(reader, self.where) != held:
                raise SourceError(
                    f"{node.inputs[0].name!r} is quantised with {held.shown} and read back with "
                    f"{parameters(reader, self.where).shown}",
                    where=self.where,
                    hint="both nodes of a pair need one scale and zero point: quantise again",
                )
        return readers

    def _activation(self, node: ir.Node, held: Parameters) -> None:
        """Note a pair under the float value that it starts from, through pairs before it."""
        value = node.inputs[0]
        while (maker := value.producer()) is not None and maker.op_type == DEQUANTIZE:
            value = maker.inputs[0].producer().inputs[0]
        found = held.of_activation(str(node.inputs[0].name), self.where)
        if self.activations.setdefault(value, found) != found:
            was = self.activations[value]
            raise SourceError(
                f"{value.name!r} is quantised twice, with scale {was.scale:.9g} and zero point "
                f"{was.zero_point}, and with {found.scale:.9g} and {found.zero_point}",
                where=self.where,
                hint="a tensor has one scale in TFLite: let the quantiser unify the scales of its "
                "readers (NNCF and onnxruntime do so by default)",
            )
        self.quantizers.setdefault(value, []).append(node)

    def _constant(self, node: ir.Node, stored: Array, held: Parameters) -> None:
        """A DequantizeLinear of a constant becomes the float constant."""
        output = node.outputs[0]
        name = str(node.inputs[0].name)
        real = held.dequantized(stored)
        kinds = {_is_weight(use.node, use.idx) for use in _final_uses(output)}
        weight = constant = None
        if held.dtype == "int32":
            pass  # A bias: its scale is that of input and weight.
        elif True in kinds:
            weight = symmetric(stored, held, name, self.where)
        else:
            constant = held.of_activation(name, self.where)
        value = self.builder.constant(real, f"{output.name}_real", self.model.graph)
        if output.is_graph_output():
            raise SourceError(
                f"output {output.name!r} is a constant", where=self.where, hint="remove it"
            )
        output.replace_all_uses_with(value)
        self.builder.remove((node,))
        if weight is not None:
            self.weights[value] = weight
        elif constant is not None:
            self.constants[value] = constant

    def redirect_float_readers(self) -> tuple[str, ...]:
        """Let every reader of a quantised value read it quantised; the values that had others."""
        found = []
        for value, quantizers in self.quantizers.items():
            others = [use for use in value.uses() if use.node.op_type != QUANTIZE]
            if not others and not value.is_graph_output():
                continue
            found.append(str(value.name))
            quantised = next(iter(quantizers[0].outputs[0].uses())).node.outputs[0]
            for use in others:
                use.node.replace_input_with(use.idx, quantised)
            if value.is_graph_output():
                self._as_output(value, quantised)
        if found:
            self.model.graph.sort()
        return tuple(found)

    def _as_output(self, value: ir.Value, quantised: ir.Value) -> None:
        """Hand the name and the place of a graph output to its quantised twin."""
        outputs = self.model.graph.outputs
        name = str(value.name)
        value.name = self.builder.fresh(f"{name}_float")
        quantised.name = name
        quantised.shape, quantised.type = value.shape, value.type
        for place, output in enumerate(outputs):
            if output is value:
                outputs[place] = quantised

    def clamp(self) -> None:
        """Keep what quantising saturates where an activation function says the same."""
        for value, quantizers in list(self.quantizers.items()):
            maker, found = value.producer(), self.activations[value]
            if maker is None or maker.op_type not in _CAN_BE_NEGATIVE or found.zero_point != -128:
                continue
            first = quantizers[0]
            clamped = self._clamped(value, first, abs(found.scale * 255 - _SIX) < 1e-5 * _SIX)
            for node in quantizers:
                if node.inputs[0] is value:
                    node.replace_input_with(0, clamped)
            self.activations = {
                clamped if v is value else v: q for v, q in self.activations.items()
            }

    def _clamped(self, value: ir.Value, before: ir.Node, six: bool) -> ir.Value:
        import numpy as np

        if not six:
            return self.builder.insert("Relu", [value], before=before, like=value)
        if int(self.model.opset_imports[""]) < 11:
            return self.builder.insert(
                "Clip", [value], {"min": 0.0, "max": _SIX}, before=before, like=value
            )
        bounds = [
            self.builder.constant(
                np.asarray(bound, np.float32), f"{value.name}_{side}", self.model.graph
            )
            for side, bound in (("least", 0.0), ("greatest", _SIX))
        ]
        return self.builder.insert("Clip", [value, *bounds], before=before, like=value)

    def dissolve(self) -> None:
        """Let the readers of every pair read the float value."""
        import onnx_ir as ir

        pairs = [node for node in self.model.graph if node.op_type == QUANTIZE]
        for node in pairs:
            for reader in [use.node for use in node.outputs[0].uses()]:
                value, output = node.inputs[0], reader.outputs[0]
                if output.is_graph_output() and (
                    value.producer() is None or value.is_graph_output()
                ):
                    same = ir.Node("", "Identity", [value], name=self.builder.fresh("same"))
                    self.model.graph.insert_before(reader, same)
                    value = same.outputs[0]
                    value.name = self.builder.fresh(f"{output.name}_same")
                self.builder.bypass(reader, value)
            self.builder.remove((node,))

    def annotations(self) -> Annotations:
        return Annotations(
            activations={str(v.name): q for v, q in self.activations.items()},
            weights={str(v.name): w for v, w in self.weights.items()},
            constants={str(v.name): q for v, q in self.constants.items()},
        )


def put_back(proto: onnx.ModelProto, annotations: Annotations) -> onnx.ModelProto:
    """The float model with a pair of nodes behind every annotated value; a copy.

    Raises:
        SourceError: a value that is annotated is not there.
    """
    import numpy as np
    import onnx_ir as ir

    model = ir.serde.deserialize_model(proto)
    builder = GraphBuilder(model)
    graph = model.graph
    values = {str(v.name): v for v in graph.inputs}
    values |= {str(v.name): v for node in graph for v in node.outputs}
    for name, found in annotations.activations.items():
        if (value := values.get(name)) is None:
            raise SourceError(f"{name!r} is annotated with a scale and is not in the graph")
        uses, is_output = list(value.uses()), value.is_graph_output()
        scale = builder.constant(np.asarray(found.scale, np.float32), f"{name}_scale", graph)
        zero = builder.constant(np.asarray(found.zero_point, np.int8), f"{name}_zero_point", graph)
        there = ir.Node("", QUANTIZE, [value, scale, zero], name=builder.fresh(f"{name}_Q"))
        back = ir.Node(
            "", DEQUANTIZE, [there.outputs[0], scale, zero], name=builder.fresh(f"{name}_DQ")
        )
        there.outputs[0].name = builder.fresh(f"{name}_quantized")
        back.outputs[0].name = builder.fresh(f"{name}_dequantized")
        maker = value.producer()
        if maker is None:
            graph.insert_before(graph[0], [there, back])
        else:
            graph.insert_after(maker, [there, back])
        for use in uses:
            use.node.replace_input_with(use.idx, back.outputs[0])
        if is_output:
            for place, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[place] = back.outputs[0]
            back.outputs[0].shape, back.outputs[0].type = value.shape, value.type
            value.name, back.outputs[0].name = builder.fresh(f"{name}_float"), name
    return ir.serde.serialize_model(model)


def restored(exported: Path) -> onnx.ModelProto | None:
    """The QDQ model that an exported file was taken out of; None when it brings no scales."""
    import onnx

    found = annotations_of(exported)
    return None if found is None else put_back(onnx.load(exported), found)


def _maker(value: ir.Value | None) -> str:
    producer = None if value is None else value.producer()
    return "" if producer is None else str(producer.op_type)


def _is_weight(node: ir.Node, index: int) -> bool:
    return node.domain == "" and index in _WEIGHT_INPUT.get(str(node.op_type), ())


def _final_uses(value: ir.Value) -> Iterator[ir.Usage]:
    """Who reads a value, through nodes that only look at it otherwise."""
    for use in value.uses():
        if use.node.op_type in _VIEWS and use.idx == 0:
            yield from _final_uses(use.node.outputs[0])
        else:
            yield use
