"""A model at other input shapes, with every shape inferred anew and every group spelt out.

Problem: a graph exported for one shape holds that shape in its constants, mostly as the first
extent of a Reshape target. Rewrite: the input shapes are replaced and all others inferred again;
where a constant target starts with the old batch, and its operand with the new one, the first
extent becomes the new batch::

    Reshape(x, [b, ...])  ->  Reshape(x, [B, ...])     if x.shape[0] was b and is B now

and the same for the sizes of a Resize. That reading of a constant is an assumption, so whoever
uses it must prove it (:mod:`edgefuse.graph.bucket` compares with the model at its own batch).

Left alone: every other constant. An operator that cannot take the shapes it would get is refused
by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from edgefuse.errors import RecipeError, StageError
from edgefuse.graph.cost import KERNEL_KEY, kernel_of, load_time
from edgefuse.graph.flops import extents
from edgefuse.graph.normalise import DOMAIN, SEQUENCES, infer_shapes, prepare
from edgefuse.graph.pipeline import ordered_passes, run_passes
from edgefuse.graph.values import Array, constant, describe, is_constant, read

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

InputShapes = Mapping[str, tuple[int, ...]]
# The input that holds a target shape, by operator.
_TARGETS = {"Reshape": 1, "Resize": 3}
BAKED = "export the model so that this size follows its input, or leave the bucket out"


@dataclass(frozen=True, eq=False)
class Reshaped:
    """A model at given input shapes.

    Attributes:
        proto: runnable, its groups kept as functions.
        model: its groups spelt out as standard operators, every shape known.
        rebound: names of the nodes whose constant batch was replaced.
    """

    proto: onnx.ModelProto
    model: ir.Model
    rebound: tuple[str, ...]


def spell_out(model: ir.Model) -> None:
    """Replace every fused group by its operators, in place; each keeps the group's name as a tag.

    An operator is called ``<group>/<operator>``; shapes and types are inferred. ``kernel_of`` in
    :mod:`edgefuse.graph.cost` reads the tag.
    """
    import onnx_ir as ir

    grouped = [n for n in ir.traversal.RecursiveGraphIterator(model.graph) if n.domain == DOMAIN]
    for group in grouped:
        _spell_group(model, group)
    for identifier in [i for i in model.functions if i[0] == DOMAIN]:
        del model.functions[identifier]
    model.opset_imports.pop(DOMAIN, None)
    infer_shapes(model)


def spelt_out(proto: onnx.ModelProto) -> ir.Model:
    """A model of a proto, normalised, its groups spelt out: what :mod:`edgefuse.graph.cost` reads.

    The proto is not changed.
    """
    model = prepare(proto)
    spell_out(model)
    return model


def fold_load_time(model: ir.Model) -> None:
    """Compute, in place, what an unfused export spells as programs over constants and shapes."""
    fold = [p for p in ordered_passes() if p.name == "fold_constants"]
    run_passes(model, passes=fold)


def at_shapes(proto: onnx.ModelProto, shapes: InputShapes, *, where: str = "") -> Reshaped:
    """The model at other input shapes; the proto is not changed.

    Args:
        proto: a checked model with static input shapes, fused or not.
        shapes: by input name; an input that is not named keeps its shape.
        where: the place that asked for these shapes, for messages.

    Raises:
        RecipeError: the model cannot take these shapes; names the operator.
    """
    model = spelt_out(proto)
    inputs = {str(v.name): v for v in model.graph.inputs if v.const_value is None}
    old = {name: extents(value) for name, value in inputs.items()}
    new = {name: tuple(shapes.get(name, shape)) for name, shape in old.items()}
    batches = _batches(old, new)
    rebound = _targets_with_batch(model, *batches) if batches else {}
    while True:
        model = spelt_out(proto)
        _rebind(model, rebound)
        _set_shapes(model, new)
        kept = {n: t for n, t in rebound.items() if _leads(model, n, int(t.array[0]))}
        if len(kept) == len(rebound):
            break
        rebound = kept
    _check_complete(model, old, new, where)
    whole = prepare(proto)
    tags = {str(n.name): kernel_of(n) for n in model.graph}
    _rebind_groups(whole, model, rebound, tags)
    _finish(whole, model, new)
    return Reshaped(_serialise(whole), model, tuple(dict.fromkeys(tags[name] for name in rebound)))


@dataclass(frozen=True, eq=False)
class _Target:
    """A constant target shape with another batch in front, and the value that it replaces."""

    replaces: str
    array: Array

    @property
    def name(self) -> str:
        return f"{self.replaces}_batch_{int(self.array[0])}"


def _spell_group(model: ir.Model, group: ir.Node) -> None:
    import onnx_ir as ir

    function = model.functions[group.op_identifier()]
    given = [*group.inputs, *[None] * (len(function.inputs) - len(group.inputs))]
    actual: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, given))
    for node in function:
        if any(not a.is_ref() and a.type.name in ("GRAPH", "GRAPHS") for a in _all(node)):
            raise StageError(f"{describe(group)} holds a subgraph: it cannot be spelt out")
        new = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else actual[value] for value in node.inputs],
            list(_attributes(node, group, function)),
            num_outputs=len(node.outputs),
            name=f"{group.name}/{node.name}",
            metadata_props={**group.metadata_props, KERNEL_KEY: str(group.name)},
        )
        for formal, output in zip(node.outputs, new.outputs):
            output.name = f"{group.name}/{formal.name}"
            actual[formal] = output
        group.graph.insert_before(group, new)
    for formal, output in zip(function.outputs, group.outputs):
        result = actual[formal]
        assert result is not None
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        result.shape, result.type = output.shape, output.type
        result.name, output.name = output.name, f"{output.name}_grouped"
    group.graph.remove(group, safe=True)


def _all(node: ir.Node) -> tuple[ir.Attr, ...]:
    return tuple(node.attributes.values())


def _attributes(node: ir.Node, group: ir.Node, function: ir.Function) -> Iterator[ir.Attr]:
    """A body node's attributes, references replaced by what the group gives or by defaults."""
    import onnx_ir as ir

    for found in _all(node):
        if not found.is_ref():
            yield found
            continue
        given = group.attributes.get(found.ref_attr_name)
        if given is None:
            given = function.attributes.get(found.ref_attr_name)
        if given is not None and given.value is not None:
            yield ir.Attr(found.name, given.type, given.value)


def _batches(old: InputShapes, new: InputShapes) -> tuple[int, int] | None:
    """The old and the new batch, where all inputs have one as their first axis and it changes."""
    before = {shape[0] if shape else 0 for shape in old.values()}
    after = {shape[0] if shape else 0 for shape in new.values()}
    if len(before) != 1 or len(after) != 1 or before == after or 0 in before:
        return None
    return before.pop(), after.pop()


def _targets_with_batch(model: ir.Model, old: int, new: int) -> dict[str, _Target]:
    """By node name: constant targets that start with the batch of operand and result.

    The model's programs over constants are folded. A target that is computed from the shape of a
    computed value follows its input by itself.
    """
    fixed = load_time(model, static_shapes=False)
    names = {
        str(node.name): str(target.name)
        for node in model.graph
        if (target := _target(node)) is not None
        and (is_constant(target) or target.producer() in fixed)
    }
    fold_load_time(model)
    found: dict[str, _Target] = {}
    for node in model.graph:
        array = constant(_target(node))
        if node.name not in names or array is None or not array.size or int(array[0]) != old:
            continue
        operand, result = extents(node.inputs[0]), extents(node.outputs[0])
        if not operand or operand[0] != old or result[0] != old:
            continue
        if node.op_type == "Reshape" and prod(operand[1:]) != prod(result[1:]):
            continue
        changed = array.copy()
        changed[0] = new
        found[str(node.name)] = _Target(names[str(node.name)], changed)
    return found


def _target(node: ir.Node) -> ir.Value | None:
    """The value that holds the target shape of a Reshape or Resize."""
    index = _TARGETS.get(node.op_type) if node.domain == "" else None
    return None if index is None else read(node, index)


def _rebind(model: ir.Model, rebound: Mapping[str, _Target]) -> None:
    for node in model.graph:
        if target := rebound.get(str(node.name)):
            node.replace_input_with(_TARGETS[node.op_type], _initializer(model, target))


def _initializer(model: ir.Model, target: _Target) -> ir.Value:
    """The target as a constant of the graph, one for all its uses."""
    import onnx_ir as ir

    if target.name in model.graph.initializers:
        return model.graph.initializers[target.name]
    tensor = ir.tensor(target.array, name=target.name)
    value = ir.Value(
        name=target.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    model.graph.register_initializer(value)
    return value


def _set_shapes(model: ir.Model, shapes: InputShapes) -> None:
    """Pin the inputs, forget every computed shape, infer again."""
    import onnx_ir as ir

    for value in model.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[str(value.name)])
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            value.shape = None
    infer_shapes(model)
    if not all(_static(v) for n in model.graph for v in n.outputs if v.name):
        fold_load_time(model)


def _leads(model: ir.Model, name: str, batch: int) -> bool:
    """Whether the node's operand really starts with the new batch; unknown counts as yes."""
    node = next((n for n in model.graph if n.name == name), None)
    shape = None if node is None else node.inputs[0].shape
    return shape is None or (len(shape) > 0 and shape[0] == batch)


def _check_complete(model: ir.Model, old: InputShapes, new: InputShapes, where: str) -> None:
    """Name the first operator that cannot take the shapes it gets."""
    changed = ", ".join(
        f"{name} {_shown(shape)} instead of {_shown(old[name])}"
        for name, shape in new.items()
        if shape != old[name]
    )
    early = load_time(model)
    for node in model.graph:
        if node in early:
            continue
        given = [v for v in node.inputs if v is not None and not is_constant(v)]
        if node.op_type == "Reshape" and node.domain == "" and _static(node.outputs[0]):
            operand, result = extents(node.inputs[0]), extents(node.outputs[0])
            if prod(operand) != prod(result):
                fixed = is_constant(_target(node))
                held = "holds the exported shape as a constant: " if fixed else ""
                raise RecipeError(
                    f"{_place(node)} {held}it cannot make {_shown(result)} of {_shown(operand)} "
                    f"({changed})",
                    hint=BAKED,
                    where=where,
                )
        if all(_static(v) for v in node.outputs if v.name and (v.uses() or v.is_graph_output())):
            continue
        taken = ", ".join(_shown(v.shape) for v in given)
        raise RecipeError(
            f"{_place(node)} cannot take {taken}, or its result has no fixed shape "
            f"({changed or 'at the exported shapes'})",
            hint=BAKED,
            where=where,
        )


def _static(value: ir.Value) -> bool:
    """Whether it has a fixed shape. A list of tensors needs none: what is taken out of it does."""
    producer = value.producer()
    if producer is not None and producer.domain == "" and producer.op_type in SEQUENCES:
        return True
    return value.shape is not None and all(isinstance(extent, int) for extent in value.shape)


def _shown(shape: object) -> str:
    return f"[{', '.join(map(str, shape))}]" if isinstance(shape, tuple) else str(shape)


def _place(node: ir.Node) -> str:
    tag = kernel_of(node)
    return f"{node.op_type} {tag!r}" if tag == node.name else f"{node.op_type} in group {tag!r}"


def _rebind_groups(
    whole: ir.Model, spelt: ir.Model, rebound: Mapping[str, _Target], tags: Mapping[str, str]
) -> None:
    """Give nodes and groups the new targets that their spelt-out operators have.

    Raises:
        StageError: a group uses one constant both as a batch and as something else.
    """
    import onnx_ir as ir

    wanted: dict[str, dict[str, _Target]] = {}
    for name, target in rebound.items():
        wanted.setdefault(tags[name], {})[target.replaces] = target
    kept: dict[str, set[str]] = {}
    for node in spelt.graph:
        kept.setdefault(kernel_of(node), set()).update(str(v.name) for v in node.inputs if v)
    for node in ir.traversal.RecursiveGraphIterator(whole.graph):
        changes = wanted.get(str(node.name), {})
        for index, value in enumerate(node.inputs):
            change = None if value is None else changes.get(str(value.name))
            if change is None:
                continue
            if change.replaces in kept[str(node.name)]:
                raise StageError(
                    f"{describe(node)} uses the constant {change.replaces!r} as a batch and as "
                    "something else: it cannot be given another batch"
                )
            node.replace_input_with(index, _initializer(whole, change))


def _finish(whole: ir.Model, spelt: ir.Model, shapes: InputShapes) -> None:
    """Pin inputs and outputs; the shapes between are left to the runtime."""
    import onnx_ir as ir

    for value in whole.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[str(value.name)])
    for node in ir.traversal.RecursiveGraphIterator(whole.graph):
        for value in node.outputs:
            value.shape = None
    for value, found in zip(whole.graph.outputs, spelt.graph.outputs):
        value.shape = found.shape


def _serialise(model: ir.Model) -> onnx.ModelProto:
    import onnx_ir as ir

    proto: onnx.ModelProto = ir.serde.serialize_model(model)
    return proto
