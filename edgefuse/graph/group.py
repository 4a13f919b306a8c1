"""Fused groups: several operators as one node whose meaning stays plain ONNX.

A chain ``a -> b -> c`` becomes one node of the domain ``edgefuse`` named after its operators
(``ConvClip``, ``ConvAddRelu``). Its body is a model-local function of standard operators:
``f(x, w, b, ...) = c(b(a(x, w, b), ...), ...)``, attributes by reference. The checker, onnxruntime
and the ONNX inliner all understand it; inlining gives the plain graph back, bit for bit.

Inputs are those of the first operator, all of them, then what the later ones read beside the
chain, called ``<operator>_<input>``; an optional input that is left out stays left out. Attributes
likewise: the first operator's under their own names, the others' as ``<operator>_<attribute>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.graph.activation import ACTIVATIONS, bounds_kind
from edgefuse.graph.normalise import DOMAIN, load_proto
from edgefuse.graph.values import Array, attribute, constant, module_path, origin

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

COMMUTATIVE = ("Add", "Mul")


@dataclass(frozen=True, eq=False)
class Group:
    """One fused group of a fused model.

    Attributes:
        name: the node's name.
        op_type: like ``ConvClip``.
        ops: standard operators of the group, in order.
        original_nodes: names of the nodes of the unfused graph that it holds, in order.
        original_ops: their operator types.
        module: torch module path of the first one; empty when unknown.
        weight: the constant second input of the first operator, ONNX layout; None if computed.
        bias: the constant third input; None when there is none.
        activation: NONE, RELU, RELU6, RELU_N1_TO_1, CLIP, or an operator's name in capitals; it
            applies to the result of the operator before it in ``ops`` (the Add of a residual).
        output: name of the output value.
    """

    name: str
    op_type: str
    ops: tuple[str, ...]
    original_nodes: tuple[str, ...]
    original_ops: tuple[str, ...]
    module: str
    weight: Array | None
    bias: Array | None
    activation: str
    output: str


def fuse_chain(builder: GraphBuilder, chain: Sequence[ir.Node]) -> ir.Node:
    """Replace a chain of standard operators by one group, at the last one's place.

    Each node must read the previous one's output exactly once: as its first input, or as either
    input of a commutative operator.
    """
    import onnx_ir as ir

    opset = int(builder.model.opset_imports[""])
    name = "".join(node.op_type for node in chain)
    if (DOMAIN, name, "") not in builder.model.functions:
        function = _function(name, [node.op_type for node in chain], opset)
        builder.model.functions[function.identifier()] = function
        builder.model.opset_imports[DOMAIN] = 1
    inputs: list[ir.Value | None] = []
    attributes: list[ir.Attr] = []
    for position, (node, prefix) in enumerate(zip(chain, _prefixes(chain))):
        given = list(node.inputs)
        if position:
            previous = chain[position - 1].outputs[0]
            index = next(i for i, value in enumerate(given) if value is previous)
            assert index == 0 or node.op_type in COMMUTATIVE
            del given[index]
        arity = len(_schema(node.op_type, opset).inputs) - (1 if position else 0)
        inputs += given + [None] * (arity - len(given))
        attributes += [ir.Attr(prefix + a.name, a.type, a.value) for a in node.attributes.values()]
    return builder.node(name, inputs, attributes, replaces=tuple(chain), domain=DOMAIN)


def inline_groups(source: Path, destination: Path) -> None:
    """Write the fused model as plain ONNX: every group as its standard operators.

    Raises:
        SourceError: when ``source`` is not a valid ONNX model.
    """
    import onnx.inliner

    proto = onnx.inliner.inline_local_functions(load_proto(source))
    kept = [o for o in proto.opset_import if o.domain != DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    destination.write_bytes(proto.SerializeToString(deterministic=True))


def groups(path: Path) -> list[Group]:
    """Every fused group of an ONNX file, in graph order.

    Raises:
        SourceError: when the file is not a valid ONNX model.
    """
    import onnx_ir as ir

    model = ir.serde.deserialize_model(load_proto(path))
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return [_group(n, model.functions[n.op_identifier()]) for n in nodes if n.domain == DOMAIN]


def _group(node: ir.Node, function: ir.Function) -> Group:
    ops = tuple(str(n.op_type) for n in function)
    names, original_ops = origin(node)
    formal = {v.name: node.inputs[i] for i, v in enumerate(function.inputs) if i < len(node.inputs)}
    return Group(
        name=str(node.name),
        op_type=str(node.op_type),
        ops=ops,
        original_nodes=tuple(names),
        original_ops=tuple(original_ops),
        module=module_path(node),
        weight=constant(formal.get("W")),
        bias=constant(formal.get("B")),
        activation=_activation(node, ops[-1], formal),
        output=str(node.outputs[0].name),
    )


def _activation(node: ir.Node, op: str, formal: dict[str, Any]) -> str:
    if op not in ACTIVATIONS:
        return "NONE"
    if op == "Relu":
        return "RELU"
    if op != "Clip":
        return op.upper()
    bounds: list[float | None] = []
    for name in ("clip_min", "clip_max"):
        array = constant(formal.get(name))
        number = attribute(node, name, None) if array is None else float(array.reshape(()))
        bounds.append(number)
    return bounds_kind(bounds[0], bounds[1])


def _schema(op_type: str, opset: int) -> Any:
    import onnx.defs

    return onnx.defs.get_schema(op_type, opset, "")


def _prefixes(chain: Sequence[ir.Node]) -> list[str]:
    return ["" if i == 0 else f"{node.op_type.lower()}_" for i, node in enumerate(chain)]


def _function(name: str, op_types: Sequence[str], opset: int) -> ir.Function:
    import onnx_ir as ir

    inputs: list[ir.Value] = []
    formals: list[ir.Attr] = []
    nodes: list[ir.Node] = []
    for position, op_type in enumerate(op_types):
        schema = _schema(op_type, opset)
        prefix = "" if position == 0 else f"{op_type.lower()}_"
        read = [ir.Value(name=prefix + formal.name) for formal in schema.inputs]
        if position:
            read[0] = nodes[-1].outputs[0]
            inputs += read[1:]
        else:
            inputs += read
        references = []
        for attribute_name in sorted(schema.attributes):
            kind = ir.AttributeType(schema.attributes[attribute_name].type.value)
            references.append(ir.RefAttr(attribute_name, prefix + attribute_name, kind))
            formals.append(ir.Attr(prefix + attribute_name, kind, None))
        output = ir.Value(name=f"{op_type.lower()}_{position}")
        nodes.append(
            ir.Node("", op_type, read, references, outputs=[output], name=f"{op_type}_{position}")
        )
    graph = ir.Graph(
        inputs, nodes[-1].outputs, nodes=nodes, opset_imports={"": opset}, name=f"{name}_body"
    )
    return ir.Function(DOMAIN, name, graph=graph, attributes=formals)
