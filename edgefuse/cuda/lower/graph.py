"""A fused graph at its shapes, and the kernels that were chosen for it, as a program.

Every kernel is one launch where a kernel of :mod:`edgefuse.cuda.contract` computes all of it.
Pictures lie as [N, H, W, C] inside; transposes, slices and reshapes are views of what they read,
and cost a launch only where strides cannot say them. Inputs and outputs keep the model's layout.

Scope: static shapes, groups spelt out; the operators of MobileNet, EfficientNet-Lite, ResNet,
ConvNeXt, ViT and their like. Anything else is refused by name, with its torch module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgefuse.artifact import Quantization
from edgefuse.cuda.lower.arena import planned
from edgefuse.cuda.lower.attention import is_attention, lower_attention
from edgefuse.cuda.lower.build import Build, refuse
from edgefuse.cuda.lower.core import LOWERINGS
from edgefuse.cuda.lower.layout import LAYOUTS
from edgefuse.cuda.lower.pointwise import STEPPED, lower_pointwise
from edgefuse.cuda.lower.product import CORES, lower_product
from edgefuse.cuda.lower.view import contiguous
from edgefuse.cuda.program import Program
from edgefuse.cuda.storage import ACTIVATIONS, ITEM_BYTES, Precision
from edgefuse.cuda.weights import Weights
from edgefuse.errors import StageError
from edgefuse.graph.cost import kernel_cost, kernel_of, load_time
from edgefuse.graph.cost import kernels as kernels_of
from edgefuse.graph.flops import extents
from edgefuse.graph.shapes import fold_load_time
from edgefuse.graph.values import is_constant, is_float, nbytes

if TYPE_CHECKING:
    import onnx_ir as ir

_FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16")


def lower(
    model: ir.Model,
    precision: Precision,
    *,
    name: str,
    kernels: Sequence[Sequence[str]] | None = None,
    bucket: str = "",
) -> tuple[Program, Weights]:
    """The program of a model in fp32, fp16 or bf16.

    Args:
        model: its groups spelt out, every shape known, from
            :func:`edgefuse.graph.shapes.at_shapes`; constants that are still computed are folded.
        kernels: names of the groups of each kernel, the one that it ends with last, as
            :class:`edgefuse.graph.dynamic.Plan` has them; None: a group a kernel.
        bucket: label of the shapes.

    Raises:
        StageError: an operator without a kernel, a tensor that 32 bits do not reach, or what the
            planner refuses.
    """
    return assembled(
        Build(precision), model, _lower_kernel, name=name, kernels=kernels, bucket=bucket
    )


def assembled(
    build: Build,
    model: ir.Model,
    lower_kernel: Callable[[Build, Sequence[ir.Node]], None],
    *,
    name: str,
    kernels: Sequence[Sequence[str]] | None,
    bucket: str,
    quantization: Mapping[str, Quantization] | None = None,
) -> tuple[Program, Weights]:
    """As :func:`lower`, each kernel made by ``lower_kernel`` from its operators.

    Args:
        quantization: of each input, in int8 programs.
    """
    if load_time(model):
        fold_load_time(model)
    for value in model.graph.inputs:
        if value.const_value is None:
            shape = extents(value)
            if value.dtype is None or value.dtype.name not in _FLOATS:
                raise StageError(f"input {value.name!r} holds no real numbers: no kernel reads it")
            held = (quantization or {}).get(str(value.name))
            made = build.tensor(str(value.name), shape, role="input", quantization=held)
            build.views[value] = contiguous(made, shape)
    floor = _lower_kernels(build, model, kernels, lower_kernel)
    for value in model.graph.outputs:
        _hand_out(build, value)
    arena, tensors = planned(build.tensors, build.launches)
    weights = build.writer.weights()
    program = Program(
        name=name,
        bucket=bucket,
        precision=build.precision,
        tensors=tuple(tensors.values()),
        launches=tuple(build.launches),
        arena=arena,
        weights_bytes=len(weights.data),
        floor_bytes=floor,
        notes=tuple(build.notes),
    )
    return program.checked(), weights


def _lower_kernels(
    build: Build,
    model: ir.Model,
    kernels: Sequence[Sequence[str]] | None,
    lower_kernel: Callable[[Build, Sequence[ir.Node]], None],
) -> int:
    """Every launch; returns the least bytes that these kernels have to move."""
    counted = kernels_of(model)
    groups = {name: list(nodes) for name, nodes in counted.items()}
    for node in model.graph:
        group = kernel_of(node)
        if group in groups and node not in groups[group]:
            groups[group].append(node)  # A view inside a group; the cost model leaves views out.
    place = {node: index for index, node in enumerate(model.graph)}
    if kernels is None:
        kernels = [(group,) for group in groups]
    named = {group for names in kernels for group in names}
    unknown = sorted(named - set(groups))
    if unknown:
        raise StageError(
            f"the plan of kernels names {unknown[0]!r}, which the graph does not have",
            hint="make the plan from this fused graph, at these shapes",
        )
    by_end: dict[ir.Node, tuple[str, ...]] = {}
    for names in [*kernels, *((group,) for group in groups if group not in named)]:
        end = max(groups[names[-1]], key=place.__getitem__)
        by_end[end] = tuple(names)
    inside = {node for nodes in groups.values() for node in nodes}
    bytes_each = ITEM_BYTES[ACTIVATIONS[build.precision]]
    floor = 0
    for node in model.graph:
        if node in by_end:
            build.groups = by_end[node]
            nodes = sorted((n for g in build.groups for n in groups[g]), key=place.__getitem__)
            silent = [n for g in build.groups[:-1] for n in counted[g]]
            before = len(build.launches)
            lower_kernel(build, nodes)
            if len(build.launches) > before:
                floor += kernel_cost(nodes, float_bytes=bytes_each, inner=silent).bytes_moved
                floor -= _integer_bytes(nodes)
        elif node not in inside:
            build.groups = (str(node.name),)
            LAYOUTS[node.op_type](build, node)
    return floor


def _integer_bytes(nodes: Sequence[ir.Node]) -> int:
    """Of constants that say axes and shapes: the cost model counts them, no kernel reads them."""
    read = {v for node in nodes for v in node.inputs if v is not None and is_constant(v)}
    return sum(nbytes(v) for v in read if not is_float(v))


def _lower_kernel(build: Build, nodes: Sequence[ir.Node]) -> None:
    if is_attention(nodes):
        lower_attention(build, nodes)
        return
    special = [n for n in nodes if n.domain not in ("", "ai.onnx") or n.op_type not in STEPPED]
    products = [n for n in special if n.op_type in CORES]
    if not special:
        lower_pointwise(build, nodes)
    elif products and len(products) == len(special) and len(build.groups) >= len(products):
        lower_product(build, products[-1], nodes)
    elif len(special) == 1 and nodes[0] is special[0]:
        _lower_one(build, special[0], nodes[1:])
    elif len(build.groups) == 1:
        build.notes.append(
            f"group {build.groups[0]!r} has no kernel of its own: an operator a launch"
        )
        for node in nodes:
            _lower_kernel(build, [node])
    else:
        refuse(special[0], f"no kernel computes {', '.join(build.groups)} together")


def _lower_one(build: Build, core: ir.Node, after: Sequence[ir.Node]) -> None:
    if core.op_type in LOWERINGS and core.domain in ("", "ai.onnx"):
        LOWERINGS[core.op_type](build, core, after)
    elif core.op_type in LAYOUTS and not after:
        LAYOUTS[core.op_type](build, core)
    else:
        refuse(core, "no kernel computes it")


def _hand_out(build: Build, value: ir.Value) -> None:
    """Make a value an output of the program, in the layout that the model gives it."""
    view, name = build.view(value), str(value.name)
    order = range(len(view.shape))
    if not build.is_whole(view, order) or build.tensors[view.tensor].role != "inner":
        build.groups = (f"output {name}",)
        view = build.copy(view, order, [])
    made = build.tensors[view.tensor]
    root = made.alias_of or made.name
    if (
        name in build.tensors
        and build.tensors[name].role == "inner"
        and (build.tensors[name].alias_of or name) == root
        and build.tensors[name].shape == view.shape
    ):
        build.tensors[name] = replace(build.tensors[name], role="output")
        return
    if name in build.tensors:
        _rename(build, name, f"{name} inside")
        root = f"{name} inside" if root == name else root
    whole = build.tensors[root]
    build.tensors[name] = replace(whole, name=name, shape=view.shape, role="output", alias_of=root)


def _rename(build: Build, old: str, new: str) -> None:
    """Free the name of a tensor that an output of the model goes by."""

    def renamed(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    build.tensors = {
        new if name == old else name: replace(
            tensor,
            name=new if name == old else name,
            alias_of=new if tensor.alias_of == old else tensor.alias_of,
        )
        for name, tensor in build.tensors.items()
    }
    build.launches = [
        replace(
            launch,
            inputs=renamed(launch.inputs),
            output=new if launch.output == old else launch.output,
            inner=tuple(replace(s, operands=renamed(s.operands)) for s in launch.inner),
            epilogue=tuple(replace(s, operands=renamed(s.operands)) for s in launch.epilogue),
        )
        for launch in build.launches
    ]
