"""Matrix products and convolutions with what is fused around them, as one launch.

A group is a core operator, pointwise operators on its result (the epilogue), and, where the plan
says so, operators on the way to its operand: pointwise ones, or a depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgefuse.cuda.lower.build import NHWC, Build, refuse
from edgefuse.cuda.lower.pointwise import STEPPED, Chain, finished, operand_name
from edgefuse.cuda.program import Attribute
from edgefuse.cuda.steps import Step
from edgefuse.cuda.storage import Array
from edgefuse.graph.flops import extents, group_count, is_depthwise
from edgefuse.graph.values import attribute, constant, module_path, read

if TYPE_CHECKING:
    import onnx_ir as ir

CORES = ("Conv", "MatMul", "Gemm")


def lower_product(build: Build, core: ir.Node, nodes: Sequence[ir.Node]) -> None:
    """One launch for a product and all of ``nodes``, which hold it; the last one is handed out."""
    before, after = _split(core, nodes)
    wide = next((n for n in before if n.op_type == "Conv"), None)
    if wide is not None and not (is_depthwise(wide) and is_1x1(core)):
        refuse(core, "what it is merged with is no depthwise convolution of a 1x1 convolution")
    result = nodes[-1].outputs[0]
    if core.op_type == "Conv":
        rank = len(extents(result))
        if rank != 4:
            refuse(core, f"it is a convolution over {rank - 2} axes", hint="use Conv2d")
        order: tuple[int, ...] = NHWC
    else:
        order = tuple(range(len(extents(result))))
    if extents(core.outputs[0]) != extents(result):
        refuse(core, "what follows it changes its shape")
    name, weights, attributes = _kernel(build, core)
    operand = core.inputs[0]
    assert operand is not None
    inner: tuple[Step, ...] = ()
    source = operand
    if wide is not None:
        inner_chain = _chain(build, wide, NHWC)
        _add_bias(build, inner_chain, wide)
        for node in before:
            if node is not wide:
                inner_chain.add(node)
        inner = finished(inner_chain.steps, inner_chain.known[operand])
        _, wide_weights, attributes = _kernel(build, wide)
        name, weights = "depthwise_project", (*wide_weights, *weights)
        source = _given(wide)
    elif before:
        source, inner = _prologue(build, core, operand, before)
    x, layout = _input(build, source, wide or core, name)
    if name == "conv":
        attributes = {**attributes, "layout": layout}
    chain = _chain(build, core, order)
    _add_bias(build, chain, core)
    for node in after:
        chain.add(node)
    steps = finished(chain.steps, chain.known[result])
    output = build.output(result, order, module_path(nodes[-1]))
    build.launch(name, (x,), weights, output, inner=inner, epilogue=steps, nodes=nodes,
                 settings=attributes)  # fmt: skip


def is_1x1(node: ir.Node) -> bool:
    """A convolution that is a matrix product of pixels."""
    return (
        node.op_type == "Conv"
        and group_count(node) == 1
        and extents(node.inputs[1])[2:] == (1, 1)
        and not any(attribute(node, "pads", ()))
        and set(attribute(node, "strides", (1,))) == {1}
    )


def window(node: ir.Node) -> dict[str, Attribute]:
    """Strides, pads and dilations of a convolution or pool over pictures."""
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        refuse(node, f"auto_pad is {attribute(node, 'auto_pad', '')}", hint="give explicit pads")
    pads = tuple(attribute(node, "pads", (0, 0, 0, 0)))
    return {
        "strides": tuple(attribute(node, "strides", (1, 1))),
        "pads": (pads[0], pads[1], pads[2], pads[3]),
        "dilations": tuple(attribute(node, "dilations", (1, 1))),
        "pad_value": 0,
    }


def _split(core: ir.Node, nodes: Sequence[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
    """Nodes on the way to the core's operand, and those after it; in their order."""
    made = {v: node for node in nodes for v in node.outputs}
    before: set[ir.Node] = set()
    waiting = [core.inputs[0]]
    while waiting:
        value = waiting.pop()
        node = None if value is None else made.get(value)
        if node is not None and node not in before:
            before.add(node)
            waiting += node.inputs
    after = [n for n in nodes if n is not core and n not in before]
    for node in after:
        if node.op_type not in STEPPED:
            refuse(node, f"it cannot be computed on the result of {core.op_type}")
    return [n for n in nodes if n in before], after


def _chain(build: Build, core: ir.Node, order: Sequence[int]) -> Chain:
    result = core.outputs[0]

    def operand(value: ir.Value) -> str:
        return operand_name(build, value, result, order, core)

    return Chain(operand, {result: "acc"})


def _add_bias(build: Build, chain: Chain, core: ir.Node) -> None:
    bias = read(core, 2)
    if bias is None:
        return
    array = constant(bias)
    if array is None:
        refuse(core, f"its bias {bias.name!r} is computed at run time")
    beta = float(attribute(core, "beta", 1.0))
    columns = extents(core.outputs[0])[1 if core.op_type == "Conv" else -1]
    vector = array.astype(np.float32).reshape(-1) * np.float32(beta)
    if vector.size not in (1, columns):
        refuse(core, f"its bias {bias.name!r} is no vector")
    name = build.weight(str(bias.name), vector, "float32")
    chain.steps.append(Step("add", ("acc", name)))
    chain.known[core.outputs[0]] = f"%{len(chain.steps) - 1}"


def _prologue(
    build: Build, core: ir.Node, operand: ir.Value, before: Sequence[ir.Node]
) -> tuple[ir.Value, tuple[Step, ...]]:
    """The value that a product's input is computed from element by element, and the steps."""
    for node in before:
        if node.op_type not in STEPPED:
            refuse(node, f"no kernel computes it on the way to {core.op_type}")
    inside = {v for node in before for v in node.outputs}
    outside = [v for node in before for v in node.inputs if v is not None and v not in inside]
    whole = [v for v in outside if constant(v) is None and extents(v) == extents(operand)]
    if not whole:
        refuse(core, "no operand of what is merged into it has its shape")
    order = NHWC if core.op_type == "Conv" else tuple(range(len(extents(operand))))
    chain = Chain(lambda v: operand_name(build, v, operand, order, core), {whole[0]: "acc"})
    for node in before:
        chain.add(node)
    return whole[0], finished(chain.steps, chain.known[operand])


def _given(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _kernel(build: Build, core: ir.Node) -> tuple[str, tuple[str, ...], dict[str, Attribute]]:
    """Name, weights and attributes, the layout of a dense convolution left out."""
    value = core.inputs[1]
    array = constant(value)
    if array is None or value is None:
        refuse(core, "its second operand is computed at run time, and it is no attention")
    turned, name = kernel_weight(core, array)
    attributes: dict[str, Attribute] = {} if name in ("conv1x1", "gemm") else window(core)
    return name, (build.weight(str(value.name), turned, build.dtype),), attributes


def kernel_weight(core: ir.Node, array: Array) -> tuple[Array, str]:
    """The weight as its kernel takes it, and the kernel."""
    if core.op_type == "Conv":
        if is_1x1(core):
            return array[:, :, 0, 0].T, "conv1x1"
        if is_depthwise(core):
            if array.shape[0] != group_count(core):
                refuse(core, "each channel makes several: no kernel does", hint="repeat channels")
            return array[:, 0].transpose(1, 2, 0), "depthwise"
        if group_count(core) != 1:
            refuse(core, f"it has {group_count(core)} groups", hint="use one group, or depthwise")
        return array.transpose(2, 3, 1, 0), "conv"
    if core.op_type == "Gemm":
        if attribute(core, "transA", 0):
            refuse(core, "its first operand is transposed")
        alpha = np.float32(attribute(core, "alpha", 1.0))
        return (array.T if attribute(core, "transB", 0) else array) * alpha, "gemm"
    if array.ndim != 2:
        refuse(core, f"its weight has {array.ndim} axes")
    return array, "gemm"


def given_input(build: Build, reader: ir.Node, kernel: str) -> tuple[str, str]:
    """The tensor that a product's first operand lies in, and its layout."""
    return _input(build, _given(reader), reader, kernel)


def _input(build: Build, value: ir.Value, reader: ir.Node, kernel: str) -> tuple[str, str]:
    view = build.view(value)
    if reader.op_type != "Conv":
        return build.stored(view, range(len(view.shape)), [reader]), "NHWC"
    if kernel == "conv" and not build.is_whole(view, NHWC) and build.is_whole(view, range(4)):
        return build.stored(view, range(4), [reader]), "NCHW"
    return build.stored(view, NHWC, [reader]), "NHWC"
