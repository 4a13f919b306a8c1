"""The int8 program of a fused graph, with the integers of its int8 TFLite file.

Groups, kernels and layouts are those of the float program. Which operators of the file a group
became is the trace stage's answer; they must be one product, mean or pool with pointwise operators
behind it, or pointwise operators alone. Anything else is refused: lower that model in fp16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.artifact import Quantization
from edgefuse.cuda.lower import product as products
from edgefuse.cuda.lower.build import NHWC, Build, refuse
from edgefuse.cuda.lower.core import int8_mean, pool, reduction
from edgefuse.cuda.lower.graph import assembled
from edgefuse.cuda.lower.integers import (
    FLOAT_INSTEAD,
    MOVES,
    PRODUCTS,
    following,
    product,
    quantization,
)
from edgefuse.cuda.lower.layout import LAYOUTS
from edgefuse.cuda.lower.pointwise import STEPPED, operand_name
from edgefuse.cuda.lower.view import merged
from edgefuse.cuda.program import Program
from edgefuse.cuda.steps import Step
from edgefuse.cuda.weights import Weights
from edgefuse.errors import StageError
from edgefuse.graph.cost import kernel_of
from edgefuse.graph.flops import extents
from edgefuse.graph.values import attribute, constant, module_path
from edgefuse.tflite.read import Operator, TfliteModel

if TYPE_CHECKING:
    import onnx_ir as ir


def lower_int8(
    model: ir.Model,
    file: TfliteModel,
    landings: Mapping[str, Sequence[int]],
    *,
    name: str,
    kernels: Sequence[Sequence[str]] | None = None,
    bucket: str = "",
) -> tuple[Program, Weights]:
    """The int8 program; arguments as :func:`edgefuse.cuda.lower.graph.lower`'s.

    Args:
        file: the int8 TFLite file of this graph, before any shrinking.
        landings: for each node of the fused graph its operators in the file, by index
            (:class:`edgefuse.tflite.trace.Landing`, or :func:`landings_of` a trace's document).

    Raises:
        StageError: as ``lower``, or what int8 kernels do not compute.
    """
    ends = {
        group: tuple(file.operators[i] for i in indices if file.operators[i].code not in MOVES)
        for group, indices in landings.items()
    }
    lowering = _Integers(file, ends)
    inputs = {tensor: lowering.input_quantization(index) for tensor, index in file.signature_inputs}
    return assembled(
        Build("int8"),
        model,
        lowering.kernel,
        name=name,
        kernels=kernels,
        bucket=bucket,
        quantization=inputs,
    )


def landings_of(document: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The landings in the trace stage's document: ``CONV_2D#8+RELU6`` is operator 8."""
    return {
        row["node"]: tuple(int(label.split("#")[1].split("+")[0]) for label in row["ends_in"])
        for row in document["nodes"]
        if not row["merged_into"]
    }


@dataclass(frozen=True, eq=False)
class _Integers:
    """Lowers kernels; ``ends``: the operators of the file that each group became."""

    file: TfliteModel
    ends: Mapping[str, tuple[Operator, ...]]

    def input_quantization(self, index: int) -> Quantization:
        tensor = self.file.tensors[index]
        if tensor.is_float:
            ops = [o for o in self.file.operators if o.code == "QUANTIZE" and index in o.inputs]
            if len(ops) != 1:
                raise StageError(f"input {tensor.name!r} of the int8 file is not quantised")
            tensor = self.file.tensors[ops[0].outputs[0]]
        return quantization(tensor, self.file.where)

    def kernel(self, build: Build, nodes: Sequence[ir.Node]) -> None:
        special = [n for n in nodes if n.op_type not in STEPPED]
        cores = [n for n in special if n.op_type in products.CORES]
        if special and len(cores) == len(special) <= 2:
            self._product(build, cores, nodes)
        elif not special:
            self._pointwise(build, nodes)
        elif len(special) == 1 and reduction(special[0]) == "mean" and nodes[0] is special[0]:
            self._mean(build, special[0], nodes)
        elif len(special) == 1 and special[0].op_type == "MaxPool" and len(nodes) == 1:
            self._max_pool(build, special[0])
        elif len(nodes) == 1 and special[0].op_type in LAYOUTS:
            LAYOUTS[special[0].op_type](build, special[0])
        else:
            refuse(special[0], "int8 kernels do not compute it", hint=FLOAT_INSTEAD)

    def _operators(self, node: ir.Node) -> tuple[Operator, ...]:
        found = self.ends.get(kernel_of(node), ())
        if not found:
            refuse(node, "the trace says no operator of the int8 file for it", hint=FLOAT_INSTEAD)
        return found

    def _product(self, build: Build, cores: Sequence[ir.Node], nodes: Sequence[ir.Node]) -> None:
        core, result = cores[-1], nodes[-1].outputs[0]
        own = [n for n in nodes if kernel_of(n) == kernel_of(core)]
        is_conv = core.op_type == "Conv"
        order = NHWC if is_conv else tuple(range(len(extents(result))))
        name, weight, steps, q, settings = self._numbers(build, core)
        weights: tuple[str, ...] = (weight,)
        inner: tuple[Step, ...] = ()
        first = core
        if len(cores) == 2:
            first = cores[0]
            wide = [n for n in nodes if kernel_of(n) == kernel_of(first)]
            kind, wide_weight, wide_steps, wide_q, settings = self._numbers(build, first)
            if kind != "depthwise" or name != "conv1x1" or len(own) + len(wide) != len(nodes):
                refuse(core, "no int8 kernel computes these groups together", hint=FLOAT_INSTEAD)
            made = self._behind(build, first, wide, wide_steps, wide_q, NHWC)
            inner, name, weights = tuple(made[0]), "depthwise_project", (wide_weight, weight)
        elif len(own) != len(nodes):
            refuse(core, "no int8 kernel computes these groups together", hint=FLOAT_INSTEAD)
        epilogue, out = self._behind(build, core, own, steps, q, order)
        x, layout = products.given_input(build, first, "conv" if name == "conv" else name)
        held = build.tensors[x].quantization
        expected = self._product_of(first)[1]
        if held != expected:
            refuse(first, f"it reads {held}, its operator in the int8 file {expected}")
        if name == "conv":
            settings = {**settings, "layout": layout}
        if "pad_value" in settings:
            settings = {**settings, "pad_value": expected.zero_point}
        output = build.output(result, order, module_path(nodes[-1]), out)
        build.launch(name, (x,), weights, output, inner=inner, epilogue=epilogue, nodes=nodes,
                     settings=settings)  # fmt: skip

    def _product_of(self, core: ir.Node) -> tuple[Operator, Quantization]:
        found = [op for op in self._operators(core) if op.code in PRODUCTS]
        if len(found) != 1:
            refuse(core, f"it became {len(found)} products in the int8 file", hint=FLOAT_INSTEAD)
        tensor = self.file.tensors[found[0].inputs[0]]
        return found[0], quantization(tensor, found[0].label)

    def _numbers(
        self, build: Build, core: ir.Node
    ) -> tuple[str, str, tuple[Step, ...], Quantization, dict[str, Any]]:
        """Kernel, weight, steps up to the requantisation, quantisation made, attributes."""
        real = constant(core.inputs[1])
        if real is None:
            refuse(core, "its second operand is computed at run time")
        turned, name = products.kernel_weight(core, real)
        found = product(build, self.file, self._product_of(core)[0], core, turned, name)
        label = str(core.inputs[1].name) if core.inputs[1] is not None else name
        settings = {} if name in ("conv1x1", "gemm") else products.window(core)
        return (
            name, build.weight(label, found.weight, "int8"), found.steps, found.output, settings
        )  # fmt: skip

    def _behind(
        self,
        build: Build,
        core: ir.Node,
        nodes: Sequence[ir.Node],
        steps: Sequence[Step],
        q: Quantization,
        order: Sequence[int],
    ) -> tuple[list[Step], Quantization]:
        """The steps with those of the operators that follow in the file; quantisation made."""
        outside = _outside(nodes, core)
        made = list(steps)
        codes = [op for op in self._operators(core) if op.code not in PRODUCTS]
        for op in codes:
            others: list[tuple[str, Quantization]] = []
            if op.code in ("ADD", "MUL"):
                if not outside:
                    refuse(core, f"{op.label} reads what the graph does not", hint=FLOAT_INSTEAD)
                value = outside.pop(0)
                tensor = operand_name(build, value, core.outputs[0], order, core)
                others.append((tensor, self._held(build, tensor, core)))
            more, q = following(self.file, op, core, f"%{len(made) - 1}", q, others, len(made))
            made += more
        if outside:
            refuse(core, f"its group reads {outside[0].name!r}, no operator of the int8 file does")
        return made, q

    def _held(self, build: Build, tensor: str, node: ir.Node) -> Quantization:
        held = build.tensors[tensor].quantization
        if held is None:
            refuse(node, f"{tensor!r} is not quantised", hint=FLOAT_INSTEAD)
        return held

    def _pointwise(self, build: Build, nodes: Sequence[ir.Node]) -> None:
        """ADD, MUL and unary operators of int8 tensors, in one launch."""
        ops, result = self._operators(nodes[0]), nodes[-1].outputs[0]
        if {kernel_of(n) for n in nodes} != {kernel_of(nodes[0])}:
            refuse(nodes[0], "no int8 kernel computes these groups together", hint=FLOAT_INSTEAD)
        outside = _outside(nodes, None)
        shape = extents(result)
        views = [build.view(v).broadcast(shape) for v in outside]
        views.sort(key=lambda v: -v.distinct)
        order = views[0].memory_order()
        turned = [v.transposed(order) for v in views]
        names = ["acc", *(f"${k}" for k in range(1, len(views)))]
        rest = list(zip(names, turned, strict=True))
        value, first = rest.pop(0)
        q = self._held(build, first.tensor, nodes[0])
        steps: list[Step] = []
        for op in ops:
            others = []
            if op.code in ("ADD", "MUL"):
                if not rest:
                    refuse(nodes[0], f"{op.label} reads a constant", hint=FLOAT_INSTEAD)
                other, view = rest.pop(0)
                others.append((other, self._held(build, view.tensor, nodes[0])))
            more, q = following(self.file, op, nodes[0], value, q, others, len(steps))
            steps += more
            value = f"%{len(steps) - 1}"
        space, strides = merged([shape[a] for a in order], turned)
        output = build.output(result, order, module_path(nodes[-1]), q)
        build.launch(
            "pointwise", [v.tensor for v in turned], (), output, epilogue=steps, nodes=nodes,
            shape=space,
            views=tuple((v.offset, tuple(s)) for v, s in zip(turned, strides, strict=True)),
        )  # fmt: skip

    def _mean(self, build: Build, core: ir.Node, nodes: Sequence[ir.Node]) -> None:
        op = self._operators(core)[0]
        x = self.file.tensors[op.inputs[0]]
        if op.code not in ("MEAN", "AVERAGE_POOL_2D"):
            refuse(core, f"it became {op.label}", hint=FLOAT_INSTEAD)
        q_in = quantization(x, op.label)
        out = quantization(self.file.tensors[op.outputs[0]], op.label)
        read = build.view(core.inputs[0])
        count = prod(read.shape) // prod(extents(core.outputs[0]))
        shift = np.asarray([-count * q_in.zero_point], np.int32)
        multiplier = np.asarray([q_in.scale / (out.scale * count)], np.float32)
        steps = (
            Step("add", ("acc", build.weight(f"{core.name} shift", shift, "int32"))),
            Step(
                "requantize",
                ("%0", build.weight(f"{core.name} multiplier", multiplier, "float32")),
                (float(out.zero_point), -128.0, 127.0),
            ),
        )
        if len(nodes) > 1 or len(self._operators(core)) > 1:
            refuse(nodes[-1], "int8 kernels compute nothing behind a mean", hint=FLOAT_INSTEAD)
        if build.tensors[read.tensor].quantization != q_in:
            refuse(core, "it reads another scale than its operator in the int8 file")
        int8_mean(build, core, steps, out)

    def _max_pool(self, build: Build, core: ir.Node) -> None:
        tensor = build.view(core.inputs[0]).tensor
        q = self._held(build, tensor, core)
        op = self._operators(core)[0]
        out = quantization(self.file.tensors[op.outputs[0]], op.label)
        if op.code != "MAX_POOL_2D" or out != q or attribute(core, "ceil_mode", 0):
            refuse(core, f"it became {op.label}, or changes the scale", hint=FLOAT_INSTEAD)
        pool(build, core, (), (), q)


def _outside(nodes: Sequence[ir.Node], core: ir.Node | None) -> list[ir.Value]:
    """Computed values that a group reads beside its core's own operands, in order."""
    inside = {v for n in nodes for v in n.outputs}
    read = [v for n in nodes if n is not core for v in n.inputs if v is not None]
    return [v for v in dict.fromkeys(read) if v not in inside and constant(v) is None]
