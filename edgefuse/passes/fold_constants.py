"""Compute what does not depend on the input, once, while the model is built.

Problem: exporters spell constants as small programs (Shape, Expand, CastLike, Concat, ...), which
hide weights and bounds from the other passes and run again on every inference.

Rewrite: f(c1, c2, ...) = c for constants c1, c2, ...; Shape(x) = c where the extents
asked for are static; CastLike(c, x) = Cast(c, type of x). Evaluated by the ONNX reference
implementation.

Scope: deterministic operators without subgraphs. The size of the result is inferred *before* it is
computed, and nothing larger than the recipe's limit is made. Left alone: what reads an initializer
that a caller may override, quantisation operators (they carry meaning), graph outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    Array,
    attribute,
    constant,
    describe,
    is_constant,
    is_overridable,
    read,
    why_not_constant,
)

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", "RandomNormalLike",
          "RandomUniformLike", "Dropout")  # fmt: skip
QUANTISATION = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
DATA_BYTES = 1 << 13


def match(node: ir.Node, context: Context) -> Verdict:
    if node.op_type in RANDOM + QUANTISATION or any(o.is_graph_output() for o in node.outputs):
        return None
    if any(a.is_ref() or a.type.name in ("GRAPH", "GRAPHS") for a in node.attributes.values()):
        return None
    if node.op_type in ("Shape", "Size"):
        return _static(node)
    needed = [v for v in node.inputs if v is not None]
    if node.op_type == "CastLike":
        if needed[1].dtype is None:
            return None
        needed = needed[:1]
    if not needed and node.op_type != "Constant":
        return None
    if open_inputs := [v for v in needed if not is_constant(v)]:
        if all(is_overridable(v) for v in open_inputs):
            what, remedy = why_not_constant(open_inputs[0])
            return _refuse(node, f"the input of {describe(node)} {what}", remedy)
        return None
    return _evaluate(node, context)


def _static(node: ir.Node) -> Verdict:
    import numpy as np

    value = read(node, 0)
    if value is None or value.shape is None:
        return None
    extents = list(value.shape)
    if node.op_type == "Shape":
        extents = extents[slice(attribute(node, "start", 0), attribute(node, "end", None))]
    if any(not isinstance(extent, int) for extent in extents):
        return None
    result = np.array(extents, np.int64)
    if node.op_type == "Size":
        result = np.array(result.prod(), np.int64)
    return Match((node,), {"arrays": [result]})


def _evaluate(node: ir.Node, context: Context) -> Verdict:
    import onnx.reference

    proto, inputs = _single(node, context.opset)
    try:
        types = _output_types(proto, inputs)
    except Exception as error:
        return _refuse(node, f"the size of {describe(node)} cannot be inferred: {_line(error)}")
    size = sum(_type_bytes(t) for t in types.values())
    if any(_type_bytes(t) < 0 for t in types.values()) or len(types) < len(proto.graph.output):
        return _refuse(node, f"the size of {describe(node)} is not known before it is computed")
    if size > context.fold_size_limit_bytes:
        return _refuse(
            node,
            f"{describe(node)} would become a constant of {size:,} bytes, "
            f"the limit is {context.fold_size_limit_bytes:,}",
            "raise fuse.fold_size_limit_bytes, or let the model compute it from its input",
        )
    arrays_in = {str(v.name): constant(v) for v in node.inputs if is_constant(v)}
    try:
        arrays = onnx.reference.ReferenceEvaluator(proto).run(None, arrays_in)
    except Exception as error:
        return _refuse(node, f"{describe(node)} cannot be evaluated: {_line(error)}")
    for info, array in zip(proto.graph.output, arrays):
        wanted = onnx.helper.tensor_dtype_to_np_dtype(types[info.name].tensor_type.elem_type)
        if getattr(array, "dtype", None) != wanted:
            return _refuse(node, f"{describe(node)} was evaluated to another type than {wanted}")
    return Match((node,), {"arrays": arrays})


def _single(node: ir.Node, opset: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of the one node; CastLike as Cast."""
    import onnx
    import onnx_ir as ir

    reads = [v for v in node.inputs if v is not None and is_constant(v)]
    if node.op_type == "CastLike":
        to = int(node.inputs[1].dtype)
        single = onnx.helper.make_node("Cast", [node.inputs[0].name], [node.outputs[0].name], to=to)
    else:
        single = ir.serde.serialize_node(node)
    tensors = {str(v.name): v.const_value for v in reads}
    infos = [
        onnx.helper.make_tensor_value_info(name, int(t.dtype), [int(d) for d in t.shape])
        for name, t in tensors.items()
    ]
    outputs = [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in single.output if n]
    graph = onnx.helper.make_graph([single], "constant", infos, outputs)
    imports = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=imports), tensors


def _output_types(proto: onnx.ModelProto, tensors: dict[str, Any]) -> dict[str, Any]:
    import onnx
    import onnx_ir as ir

    node = proto.graph.node[0]
    small = {
        name: ir.serde.serialize_tensor(tensor)
        for name, tensor in tensors.items()
        if tensor.nbytes <= DATA_BYTES
    }
    schema = onnx.defs.get_schema(node.op_type, proto.opset_import[0].version, "")
    types: dict[str, Any] = onnx.shape_inference.infer_node_outputs(
        schema,
        node,
        {info.name: info.type for info in proto.graph.input},
        small,
        opset_imports=list(proto.opset_import),
        ir_version=proto.ir_version,
    )
    return types


def _type_bytes(kind: onnx.TypeProto) -> int:
    """Bytes of a tensor type; -1 when it is not known or no tensor."""
    import onnx

    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return -1
    count = 1
    for extent in tensor.shape.dim:
        if not extent.HasField("dim_value"):
            return -1
        count *= extent.dim_value
    return int(count * onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import numpy as np

    arrays: list[Array] = [np.asarray(a) for a in found.data["arrays"]]
    builder.become_constants(found.nodes[0], arrays)


PASS = PASSES.add(
    Pass(
        name="fold_constants",
        summary="What does not depend on the input is computed once, within a size limit.",
        phase="normalise",
        anchors=("*",),
        match=match,
        rewrite=rewrite,
        after=("remove_identity",),
        tolerance=1e-6,
        example="""(float[1,4] x, float[4] a, float[4] b) => (float[1,4] y) {
            c = Mul(a, b)
            y = Add(x, c) }""",
    ),
    __name__,
)
