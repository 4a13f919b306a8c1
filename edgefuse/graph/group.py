"""Fused groups: several operators as one node whose meaning stays plain ONNX.

Nodes ``a -> b -> c`` become one node of the domain ``edgefuse`` named after its operators
(``ConvClip``, ``ConvAddRelu``) or after what they are together (``LayerNormalization``). Its body
is a model-local function of standard operators: ``f(x, w, b, ...) = c(b(a(x, w, b), ...), ...)``,
attributes by reference. The checker, onnxruntime and the ONNX inliner all understand it; inlining
gives the plain graph back, bit for bit.

Inputs are those of the first operator, all of them, then what the later ones read beside the
group, called ``<operator>_<input>``; an optional input that is left out stays left out, and a
value that is read twice is one input. Attributes likewise: the first operator's under their own
names, the others' as ``<operator>_<attribute>``. Two structures never share a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.graph.normalise import DOMAIN, load_proto
from edgefuse.graph.values import Array, constant, module_path, origin

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

ACTIVATION_KEY = "edgefuse.activation"
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


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
        weight: the constant weight of its Conv, ConvTranspose, Gemm or MatMul, ONNX layout; None
            if computed, or if it has no such operator.
        bias: the constant third input of that operator, for MatMul what the Add behind it adds to
            each row; None when there is none.
        activation: NONE, RELU, RELU6, RELU_N1_TO_1, CLIP, SILU, GELU, or an operator's name in
            capitals; it applies to the result of the operator before it in ``ops`` (the Add of a
            residual).
        output: name of the output value.
        residual: place in ``ops`` of the Add of a residual; -1 when there is none. Where it is the
            last one, the activation comes before it.
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
    residual: int = -1


def fuse_nodes(
    builder: GraphBuilder, nodes: Sequence[ir.Node], *, name: str = "", activation: str = "NONE"
) -> ir.Node:
    """Replace standard operators by one group, at the last one's place.

    Args:
        nodes: in graph order; the first output of the last one is the group's; outputs of the
            others are read inside the group alone, and only their first outputs.
        name: what the group is called; its operators' names joined when empty. Another structure
            of the same name gets a number behind it.
        activation: recorded on the node for :attr:`Group.activation`.
    """
    body = _body(nodes, int(builder.model.opset_imports[""]))
    function = _registered(builder, body, name or "".join(n.op_type for n in nodes))
    builder.model.opset_imports[DOMAIN] = 1
    node = builder.node(
        function.name, body.actual, body.attributes, replaces=tuple(nodes), domain=DOMAIN
    )
    if activation != "NONE":
        node.metadata_props[ACTIVATION_KEY] = activation
    return node


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
    names, original_ops = origin(node)
    given = {v.name: node.inputs[i] for i, v in enumerate(function.inputs) if i < len(node.inputs)}
    layer = next((n for n in function if n.op_type in WEIGHTED), None)

    def operand(index: int) -> Array | None:
        if layer is None or index >= len(layer.inputs) or layer.inputs[index] is None:
            return None
        return constant(given.get(layer.inputs[index].name))

    return Group(
        name=str(node.name),
        op_type=str(node.op_type),
        ops=tuple(str(n.op_type) for n in function),
        original_nodes=tuple(names),
        original_ops=tuple(original_ops),
        module=module_path(node),
        weight=operand(1),
        bias=_added_to_rows(layer, given) if _is_matmul(layer) else operand(2),
        activation=node.metadata_props.get(ACTIVATION_KEY, "NONE"),
        output=str(node.outputs[0].name),
        residual=-1 if layer is None else _residual(function, given),
    )


def _is_matmul(layer: ir.Node | None) -> bool:
    return layer is not None and layer.op_type == "MatMul"


def _added_to_rows(layer: ir.Node, given: Mapping[str, ir.Value | None]) -> Array | None:
    """The bias [N] or [1, N] of a MatMul in a function's body; ``given``: the caller's inputs."""
    readers = [use.node for use in layer.outputs[0].uses()]
    if len(readers) != 1 or readers[0].op_type != "Add":
        return None
    added = next((v for v in readers[0].inputs if v is not layer.outputs[0]), None)
    array = None if added is None else constant(given.get(str(added.name)))
    weight = given.get(str(layer.inputs[1].name))
    if array is None or weight is None or weight.shape is None or array.ndim == 0:
        return None
    return array if array.size == weight.shape[-1] else None


def _residual(function: ir.Function, given: Mapping[str, ir.Value | None]) -> int:
    for place, node in enumerate(function):
        outer = [v for v in node.inputs if v is not None and v.producer() is None]
        if node.op_type == "Add" and any(constant(given.get(str(v.name))) is None for v in outer):
            return place
    return -1


@dataclass
class _Body:
    """A function's content, and what its one caller passes."""

    graph: ir.Graph
    formals: list[ir.Attr]
    actual: list[ir.Value | None]
    attributes: list[ir.Attr]


def _body(nodes: Sequence[ir.Node], opset: int) -> _Body:
    import onnx_ir as ir

    inputs: list[ir.Value] = []
    actual: list[ir.Value | None] = []
    formals: list[ir.Attr] = []
    attributes: list[ir.Attr] = []
    copies: list[ir.Node] = []
    known: dict[ir.Value, ir.Value] = {}
    for position, (node, prefix) in enumerate(zip(nodes, _prefixes(nodes))):
        schema = _schema(node.op_type, opset)
        read: list[ir.Value] = []
        for formal, value in _operands(node, schema):
            if value is not None and value in known:
                read.append(known[value])
                continue
            stand_in = ir.Value(name=prefix + formal)
            inputs.append(stand_in)
            actual.append(value)
            read.append(stand_in)
            if value is not None:
                known[value] = stand_in
        references = []
        for key in sorted(schema.attributes):
            kind = ir.AttributeType(schema.attributes[key].type.value)
            references.append(ir.RefAttr(key, prefix + key, kind))
            formals.append(ir.Attr(prefix + key, kind, None))
        attributes += [ir.Attr(prefix + a.name, a.type, a.value) for a in node.attributes.values()]
        output = ir.Value(name=f"{node.op_type.lower()}_{position}")
        known[node.outputs[0]] = output
        copies.append(
            ir.Node(
                "",
                node.op_type,
                read,
                references,
                outputs=[output],
                name=f"{node.op_type}_{position}",
            )
        )
    graph = ir.Graph(inputs, copies[-1].outputs, nodes=copies, opset_imports={"": opset})
    return _Body(graph, formals, actual, attributes)


def _registered(builder: GraphBuilder, body: _Body, name: str) -> ir.Function:
    """The model's function with this body; a new one when there is none."""
    import onnx_ir as ir

    functions = builder.model.functions
    number, candidate = 1, name
    while True:
        body.graph.name = f"{candidate}_body"
        made = ir.Function(DOMAIN, candidate, graph=body.graph, attributes=body.formals)
        found = functions.get(made.identifier())
        if found is None:
            functions[made.identifier()] = made
            return made
        if _meaning(found) == _meaning(made):
            return found
        number += 1
        candidate = f"{name}_{number}"


def _meaning(function: ir.Function) -> tuple[object, ...]:
    """Operators and wiring, without names that carry no meaning."""
    return (
        tuple(value.name for value in function.inputs),
        tuple(
            (node.op_type, tuple(None if v is None else v.name for v in node.inputs))
            for node in function
        ),
    )


def _operands(node: ir.Node, schema: Any) -> Iterator[tuple[str, ir.Value | None]]:
    """Each input with its formal name, those left out too; variadic ones are numbered."""
    names = [formal.name for formal in schema.inputs]
    if names and schema.inputs[-1].option.name == "Variadic":
        last = names.pop()
        names += [f"{last}_{k}" for k in range(len(node.inputs) - len(names))]
    for index, name in enumerate(names):
        yield name, node.inputs[index] if index < len(node.inputs) else None


def _schema(op_type: str, opset: int) -> Any:
    import onnx.defs

    return onnx.defs.get_schema(op_type, opset, "")


def _prefixes(nodes: Sequence[ir.Node]) -> list[str]:
    """``""``, then ``relu_``, ``mul_``, ``mul2_``: unique for every node after the first."""
    prefixes = [""]
    seen: dict[str, int] = {}
    for node in nodes[1:]:
        word = node.op_type.lower()
        seen[word] = seen.get(word, 0) + 1
        prefixes.append(f"{word}_" if seen[word] == 1 else f"{word}{seen[word]}_")
    return prefixes
