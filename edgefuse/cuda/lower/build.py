"""What lowering collects: tensors, weights, launches, and where each value of the graph lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from edgefuse.artifact import Quantization
from edgefuse.cuda.contract import view_spaces
from edgefuse.cuda.lower.view import View, contiguous, merged
from edgefuse.cuda.program import Attribute, Launch, Role, Tensor, indexable
from edgefuse.cuda.steps import Step
from edgefuse.cuda.storage import ACTIVATIONS, ITEM_BYTES, Array, Dtype, Precision, encode
from edgefuse.cuda.weights import WeightsWriter
from edgefuse.errors import StageError
from edgefuse.graph.cost import kernel_of, work
from edgefuse.graph.flops import extents
from edgefuse.graph.values import constant, describe, module_path, origin

if TYPE_CHECKING:
    import onnx_ir as ir

NHWC = (0, 2, 3, 1)
SUPPORTED = (
    "supported: convolutions (dense, depthwise, transposed without overlap), MatMul and Gemm with "
    "constant weights, attention, pooling, reductions, LayerNorm, RMSNorm, Softmax, pointwise "
    "operators, Concat, Resize by whole factors, and all views and layouts"
)


def refuse(node: ir.Node, problem: str, hint: str = "") -> NoReturn:
    """Raise for an operator that no kernel computes.

    Raises:
        StageError: with the operator, its torch module, and a remedy.
    """
    module = module_path(node)
    place = f" (torch module {module})" if module else ""
    raise StageError(
        f"{describe(node)}{place} has no kernel on CUDA: {problem}",
        hint=hint or f"replace it in the model, or leave out `cuda`; {SUPPORTED}",
        where=str(kernel_of(node)),
    )


@dataclass
class Build:
    """A program in the making.

    Attributes:
        views: of each value of the graph that is known, by the value.
        scope: the groups, and the last one's part number, that launches are made for.
    """

    precision: Precision
    tensors: dict[str, Tensor] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    writer: WeightsWriter = field(default_factory=WeightsWriter)
    views: dict[ir.Value, View] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    parts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)

    @property
    def dtype(self) -> Dtype:
        return ACTIVATIONS[self.precision]

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        *,
        role: Role = "inner",
        dtype: Dtype | None = None,
        offset: int = 0,
        quantization: Quantization | None = None,
        alias_of: str = "",
        module: str = "",
    ) -> str:
        """A new tensor under a name of its own."""
        unique, number = name, 1
        while unique in self.tensors:
            number += 1
            unique = f"{name} ({number})"
        size = tuple(int(n) for n in shape)
        indexable(unique, size, f"torch module {module}" if module else "")
        self.tensors[unique] = Tensor(
            unique, size, dtype or self.dtype, role, offset, quantization, alias_of, module
        )
        return unique

    def weight(self, name: str, values: Array, dtype: Dtype) -> str:
        """The tensor of a constant; equal constants of one name are one tensor."""
        held = encode(np.asarray(values), dtype)
        key = (name, held.shape, dtype, held.tobytes())
        if key not in self._known:
            offset = self.writer.add(held)
            self._known[key] = self.tensor(
                name, held.shape, role="weight", dtype=dtype, offset=offset
            )
        return self._known[key]

    def view(self, value: ir.Value | None) -> View:
        """Where a value lies; a constant becomes a weight."""
        assert value is not None
        if value not in self.views:
            array = constant(value)
            if array is None:
                raise StageError(f"value {value.name!r} is read before it is computed")
            name = self.weight(str(value.name), array, "float32")
            self.views[value] = contiguous(name, array.shape)
        return self.views[value]

    def alias(self, name: str, shape: Sequence[int]) -> str:
        """A tensor's bytes under another shape."""
        tensor = self.tensors[name]
        if tensor.shape == tuple(shape):
            return name
        root = tensor.alias_of or name
        key = ("alias", root, tuple(shape))
        if key not in self._known:
            whole = self.tensors[root]
            self._known[key] = self.tensor(
                f"{root} as {'x'.join(map(str, shape))}",
                shape,
                role="weight" if whole.role == "weight" else "inner",
                dtype=whole.dtype,
                offset=whole.offset,
                quantization=whole.quantization,
                alias_of=root,
                module=whole.module,
            )
        return self._known[key]

    def is_whole(self, view: View, order: Sequence[int]) -> bool:
        whole = prod(view.shape) == self.tensors[view.tensor].elements
        return whole and view.is_contiguous(order)

    def stored(self, view: View, order: Sequence[int], nodes: Sequence[ir.Node]) -> str:
        """The name of a contiguous tensor with the view's axes in this order; copied if need be."""
        shape = [view.shape[a] for a in order]
        if self.is_whole(view, order):
            return self.alias(view.tensor, shape)
        made = self.copy(view, order, nodes)
        return made.tensor

    def copy(self, view: View, order: Sequence[int], nodes: Sequence[ir.Node]) -> View:
        """Copy a view into a tensor of its own, its axes in this order."""
        key = ("copy", view, tuple(order))
        turned = view.transposed(order)
        if key not in self._known:
            source = self.tensors[view.tensor]
            output = self.tensor(
                f"{view.tensor} copied",
                turned.shape,
                dtype=source.dtype,
                quantization=source.quantization,
                module=source.module,
            )
            shape, strides = merged(turned.shape, [turned])
            views: Attribute = ((view.offset, tuple(strides[0])),)
            self.launch("pointwise", (view.tensor,), (), output, nodes=nodes, shape=shape,
                        views=views)  # fmt: skip
            self._known[key] = output
        return contiguous(self._known[key], view.shape, order)

    def launch(
        self,
        kernel: str,
        inputs: Sequence[str],
        weights: Sequence[str],
        output: str,
        *,
        inner: Sequence[Step] = (),
        epilogue: Sequence[Step] = (),
        nodes: Sequence[ir.Node] = (),
        settings: Mapping[str, Attribute] | None = None,
        **attributes: Attribute,
    ) -> None:
        """Append a launch that computes ``nodes``; its bytes and FLOPs are counted here.

        Args:
            settings: further attributes.
        """
        group = self.groups[-1]
        part = self.parts[group] = self.parts.get(group, 0) + 1
        costs = [work(node) for node in nodes]
        first = next((m for node in nodes if (m := module_path(node))), "")
        launch = Launch(
            name=group if part == 1 else f"{group}/{part}",
            kernel=kernel,
            inputs=tuple(inputs),
            weights=tuple(weights),
            output=output,
            attributes={**(settings or {}), **attributes},
            inner=tuple(inner),
            epilogue=tuple(epilogue),
            groups=self.groups,
            nodes=tuple(dict.fromkeys(n for node in nodes for n in origin(node)[0])),
            module=first,
            matrix_flops=sum(c.matrix_flops for c in costs),
            vector_flops=sum(c.vector_flops for c in costs),
        )
        read, written = moved_bytes(launch, self.tensors)
        self.launches.append(
            Launch(**{**vars(launch), "bytes_read": read, "bytes_written": written})
        )

    def output(
        self,
        node_output: ir.Value,
        order: Sequence[int],
        module: str,
        quantization: Quantization | None = None,
    ) -> str:
        """The tensor of a value that a launch makes, its axes in this order; its view is known."""
        shape = extents(node_output)
        name = self.tensor(
            str(node_output.name),
            [shape[a] for a in order],
            module=module,
            quantization=quantization,
        )
        self.views[node_output] = contiguous(name, shape, order)
        return name


def moved_bytes(launch: Launch, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Bytes read and written: each tensor once, of views only what they touch."""
    read: dict[tuple[Any, ...], int] = {}
    views: Any = launch.attributes.get("views", ())
    spaces = view_spaces(launch)
    for place, name in enumerate(launch.inputs):
        tensor = tensors[name]
        key: tuple[Any, ...] = (tensor.alias_of or name,)
        size = tensor.nbytes
        if views:
            offset, strides = views[place]
            touched = prod(n for n, s in zip(spaces[place], strides, strict=True) if s)
            if touched < tensor.elements:
                key = (*key, offset, strides)
            size = min(size, touched * ITEM_BYTES[tensor.dtype])
        read[key] = max(size, read.get(key, 0))
    for name in (*launch.weights, *launch.operands):
        tensor = tensors[name]
        read[(tensor.alias_of or name,)] = tensor.nbytes
    return sum(read.values()), tensors[launch.output].nbytes
