"""The one way in which passes change a graph: names stay unique, shared constants stay intact.

Everything a pass adds gets a name that no value or node of the model has, subgraphs and function
bodies included. A constant that only the rewritten node reads is replaced in place and keeps its
name; one that others read is left alone and a new one is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefuse.graph.clean import graphs_of, release
from edgefuse.graph.summary import is_view
from edgefuse.graph.values import Array, at_run_time, is_constant, nbytes, set_origin

if TYPE_CHECKING:
    import onnx_ir as ir


class GraphBuilder:
    """Changes one model in place and counts what each rewrite saved."""

    def __init__(self, model: ir.Model) -> None:
        import onnx_ir as ir

        self.model = model
        self._names: set[str] = set()
        for graph in (model.graph, *model.functions.values()):
            self._names.update(str(v.name) for v in graph.inputs)
            self._names.update(getattr(graph, "initializers", {}))
            for node in ir.traversal.RecursiveGraphIterator(graph):
                self._names.add(str(node.name))
                self._names.update(str(v.name) for v in node.outputs)
                for attribute in node.attributes.values():
                    for inner in graphs_of(attribute):
                        self._names.update(str(v.name) for v in inner.inputs)
                        self._names.update(inner.initializers)
        self.launches_saved = 0
        self.bytes_saved = 0

    def fresh(self, hint: str) -> str:
        """``hint``, or ``hint_2``, ``hint_3``, ... when it is taken; reserved from then on."""
        name, number = hint, 1
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        return name

    def constant(self, array: Array, hint: str, graph: ir.Graph) -> ir.Value:
        """A new initializer of ``graph``, in the array's dtype."""
        import onnx_ir as ir

        name = self.fresh(hint)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        graph.register_initializer(value)
        return value

    def set_constant(self, node: ir.Node, index: int, array: Array, hint: str) -> None:
        """Make input ``index`` of ``node`` the constant ``array``."""
        import onnx_ir as ir

        while len(node.inputs) <= index:
            node.resize_inputs(len(node.inputs) + 1)
        old = node.inputs[index]
        alone = old is not None and len(list(old.uses())) == 1 and not old.is_graph_output()
        if alone and is_constant(old):
            tensor = ir.tensor(array, name=old.name)
            old.const_value, old.shape = tensor, tensor.shape
            old.dtype = tensor.dtype
            return
        node.replace_input_with(index, self.constant(array, hint, node.graph))

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | Sequence[ir.Attr] = (),
        *,
        replaces: tuple[ir.Node, ...],
        domain: str = "",
    ) -> ir.Node:
        """One node that takes the place and the output of the last node it replaces.

        It keeps the first node's metadata (so the torch module path survives), the last node's
        output value (so names of graph outputs survive), and records what it stands for.
        """
        import onnx_ir as ir

        last = replaces[-1]
        if isinstance(attributes, Mapping):
            attributes = ir.convenience.convert_attributes(attributes)
        new = ir.Node(
            domain,
            op_type,
            inputs,
            attributes,
            name=self.fresh(f"{replaces[0].name}_{op_type}"),
            metadata_props=dict(replaces[0].metadata_props),
        )
        set_origin(new, replaces)
        old_output, output = last.outputs[0], new.outputs[0]
        output.shape, output.type = old_output.shape, old_output.type
        output.metadata_props.update(old_output.metadata_props)
        last.graph.insert_before(last, new)
        self._account(new, -1)
        old_output.replace_all_uses_with(output, replace_graph_outputs=True)
        output.name, old_output.name = old_output.name, self.fresh(f"{old_output.name}_replaced")
        self.remove(replaces)
        return new

    def insert(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | Sequence[ir.Attr] = (),
        *,
        before: ir.Node,
        like: ir.Value | None = None,
    ) -> ir.Value:
        """The result of one new node in front of ``before``, for rewrites of one node into several.

        It keeps the metadata of ``before`` and stands for the same nodes.

        Args:
            like: a value of the result's shape and type; None for that of ``before``'s output.
        """
        import onnx_ir as ir

        if isinstance(attributes, Mapping):
            attributes = ir.convenience.convert_attributes(attributes)
        new = ir.Node(
            "",
            op_type,
            inputs,
            attributes,
            name=self.fresh(f"{before.name}_{op_type}"),
            metadata_props=dict(before.metadata_props),
        )
        set_origin(new, (before,))
        like = before.outputs[0] if like is None else like
        output: ir.Value = new.outputs[0]
        output.name = self.fresh(f"{before.outputs[0].name}_{op_type.lower()}")
        output.shape, output.type = like.shape, like.type
        before.graph.insert_before(before, new)
        self._account(new, -1)
        return output

    def merge(self, node: ir.Node, twin: ir.Node) -> None:
        """Let ``twin``, which comes first and computes the same, serve the users of ``node``."""
        for output, other in zip(node.outputs, twin.outputs):
            if not output.is_graph_output() and not list(output.uses()):
                continue
            rename = output.is_graph_output()
            output.replace_all_uses_with(other, replace_graph_outputs=True)
            if rename:
                other.name, output.name = output.name, self.fresh(f"{output.name}_replaced")
        set_origin(twin, (twin, node))
        self.remove((node,))

    def bypass(self, node: ir.Node, value: ir.Value, *, keep_name: bool = False) -> None:
        """Let the users of the node's first output read ``value``, and remove the node.

        ``value`` takes over the output's name when that is a graph output, or with ``keep_name``.
        """
        output = node.outputs[0]
        rename = keep_name or output.is_graph_output()
        output.replace_all_uses_with(value, replace_graph_outputs=True)
        if rename:
            value.name, output.name = output.name, self.fresh(f"{output.name}_replaced")
        if value.shape is None:
            value.shape = output.shape
        if value.type is None:
            value.type = output.type
        self.remove((node,))

    def become_constants(self, node: ir.Node, arrays: Sequence[Array]) -> None:
        """Replace a node by one initializer for each output that is read.

        Counts as no saving: a runtime may well do the same when it loads the model.
        """
        import onnx_ir as ir

        for output, array in zip(node.outputs, arrays):
            if not list(output.uses()):
                continue
            name = output.name
            output.name = self.fresh(f"{name}_replaced")
            tensor = ir.tensor(array, name=name)
            value = ir.Value(
                name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            output.replace_all_uses_with(value)
            node.graph.register_initializer(value)
        node.graph.remove(node, safe=True)

    def remove(self, nodes: Sequence[ir.Node]) -> None:
        """Take nodes out that nothing reads any more, last one first."""
        for node in reversed(nodes):
            self._account(node, 1)
            node.graph.remove(node, safe=True)
            release(node)

    def remove_unread(self, nodes: Sequence[ir.Node]) -> None:
        """Take out those of the nodes that nothing reads any more, and what they alone read."""
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            read = any(list(value.uses()) or value.is_graph_output() for value in node.outputs)
            if node.graph is None or read:
                continue
            waiting += producers(node)
            self.remove((node,))

    def _account(self, node: ir.Node, sign: int) -> None:
        if at_run_time(node) and not is_view(node):
            self.launches_saved += sign
            self.bytes_saved += sign * sum(nbytes(v) for v in node.outputs)


def producers(node: ir.Node) -> list[ir.Node]:
    """The nodes that compute what it reads."""
    made = (value.producer() for value in node.inputs if value is not None)
    return [producer for producer in made if producer is not None]
