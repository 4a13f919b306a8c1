"""Operators that the quantiser leaves float although the runtime has an integer kernel.

ai-edge-quantizer 0.4.1 puts a DEQUANTIZE before such an operator and a QUANTIZE behind it.

    QUANTIZE(f(DEQUANTIZE(q))) = f_int8(q) within the rounding of one step

An operator becomes an integer one when all its values come as integers of one type already (or are
constants), from the front of the graph to its end. How its output's scale follows is a fact of the
kernel (TFLite's quantisation specification, and what kernels compute on the bare integers):

    free      any scale: the kernel converts
    same      the input's scale: values are moved, not changed
    merged    inputs and output have one scale, the output's: min(clip a, clip b) = clip(min(a, b))
    fixed     a scale that the kernel knows by heart
    compared  integers or booleans come out; inputs of two scales are converted by the kernel

Left alone: operators without such a kernel (:data:`KERNELS` is what was run), those that a recipe
keeps float, and those between float operators, where an integer kernel would only add roundings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.quant.calibration.ranges import Range

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import Operator, TfliteModel

Kind = Literal["free", "same", "merged", "fixed", "compared"]


@dataclass(frozen=True)
class Kernel:
    """An integer kernel: how its output's scale follows, and for which activations it exists."""

    kind: Kind
    dtypes: tuple[str, ...] = ("int8", "int16")
    scale: float = 0.0
    zero: int = 0


_INT8 = ("int8",)
# Run on LiteRT 2.1.0 and tflite-runtime 2.14.0 with every set of kernels that has the float one.
# Missing: NEG (LiteRT's int8 kernel answers wrongly, the other has none), LOG (only LiteRT), EXP in
# int16 (its table interpolates: 88 steps of error).
KERNELS: Mapping[str, Kernel] = {
    "ABS": Kernel("free"),
    "ARG_MAX": Kernel("compared", _INT8),
    "ARG_MIN": Kernel("compared", _INT8),
    "BATCH_TO_SPACE_ND": Kernel("same"),
    "DEPTH_TO_SPACE": Kernel("same", _INT8),
    "ELU": Kernel("free", _INT8),
    "EXP": Kernel("free", _INT8),
    "EXPAND_DIMS": Kernel("same"),
    "GREATER": Kernel("compared", _INT8),
    "GREATER_EQUAL": Kernel("compared", _INT8),
    "L2_NORMALIZATION": Kernel("fixed", _INT8, 1 / 128, 0),
    "LEAKY_RELU": Kernel("free"),
    "LESS": Kernel("compared", _INT8),
    "LESS_EQUAL": Kernel("compared", _INT8),
    "LOG_SOFTMAX": Kernel("fixed", _INT8, 16 / 256, 127),
    "MAXIMUM": Kernel("merged"),
    "MINIMUM": Kernel("merged"),
    "PRELU": Kernel("free", _INT8),
    "REDUCE_MAX": Kernel("same"),
    "REDUCE_MIN": Kernel("same"),
    "RELU6": Kernel("free", _INT8),
    "RELU_0_TO_1": Kernel("free", _INT8),
    "RELU_N1_TO_1": Kernel("free", _INT8),
    "RESIZE_NEAREST_NEIGHBOR": Kernel("same"),
    "REVERSE_V2": Kernel("same"),
    "SPACE_TO_BATCH_ND": Kernel("same"),
    "SPACE_TO_DEPTH": Kernel("same", _INT8),
    "SPLIT_V": Kernel("same"),
    "SQUEEZE": Kernel("same"),
    "TILE": Kernel("same", _INT8),
    "TOPK_V2": Kernel("same"),
}


def aligned(model: TfliteModel, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges with the input's for each output of a ``same`` operator: no scale is changed on
    the way through, and no QUANTIZE is needed behind."""
    found = dict(ranges)
    for operator in model.operators:
        kernel = KERNELS.get(operator.code)
        if kernel is None or kernel.kind != "same":
            continue
        span = found.get(model.tensors[operator.inputs[0]].name)
        for index in operator.outputs:
            name = model.tensors[index].name
            if span is not None and name in found:
                found[name] = span
    return found


def collapse(
    edit: Edit,
    found: TfliteModel,
    source: TfliteModel,
    ranges: Mapping[str, Range],
    keep_float: Collection[int] = (),
) -> None:
    """Put integer operators where there are kernels for them.

    Args:
        edit, found: what the quantiser wrote from ``source``, unpacked and read; tensors of
            ``source`` have their indices.
        ranges: by tensor name of ``source``.
        keep_float: operators of ``source`` that stay as they are.
    """
    kept = {source.operators[index].outputs[0] for index in keep_float}
    spans = {t.index: ranges[t.name] for t in source.tensors if t.name in ranges}
    work = _Collapse(edit, found, spans)
    changed = [work.take(operator, operator.outputs[0] in kept) for operator in found.operators]
    if any(changed):
        work.finish()


class _Collapse:
    """Goes over the operators once, in order, and writes the new list."""

    def __init__(self, edit: Edit, found: TfliteModel, ranges: Mapping[int, Range]) -> None:
        self._edit, self._found, self._ranges = edit, found, ranges
        self._operators: list[Any] = []
        # Float tensors whose integers exist, and tensors that another one took the place of.
        self._integers: dict[int, int] = {}
        self._instead: dict[int, int] = {}
        self._replaced: set[int] = set()
        self._readers: dict[int, list[Operator]] = {}
        for operator in found.operators:
            for index in operator.inputs:
                self._readers.setdefault(index, []).append(operator)

    def take(self, operator: Operator, kept: bool) -> bool:
        """Put the operator into the new list, as integers if it can be; whether it was."""
        table = self._edit.graph.operators[operator.index]
        table.inputs = [self._instead.get(index, index) for index in operator.inputs]
        if operator.code == "DEQUANTIZE":
            self._integers[operator.outputs[0]] = int(table.inputs[0])
        elif operator.code == "QUANTIZE" and operator.inputs[0] in self._integers:
            held, wanted = self._integers[operator.inputs[0]], operator.outputs[0]
            if self._parameters(held) == self._parameters(wanted):
                self._instead[wanted] = held
                return False
            if held == operator.inputs[0] and self._dtype(held) == self._dtype(wanted):
                table.inputs = [held]
        kernel = KERNELS.get(operator.code)
        if kernel is None or kept or not self._fits(operator, kernel):
            self._operators.append(table)
            return False
        self._collapse(operator, table, kernel)
        return True

    def _fits(self, operator: Operator, kernel: Kernel) -> bool:
        """Whether it is float, and each value it reads is there in integers of one type."""
        tensors = self._found.tensors
        values = [i for i in operator.inputs if i >= 0 and tensors[i].dtype == "float32"]
        flowing = [i for i in values if not tensors[i].is_constant]
        if not flowing or not all(i in self._integers for i in flowing):
            return False
        dtypes = {self._dtype(self._integers[i]) for i in flowing}
        return len(dtypes) == 1 and dtypes <= set(kernel.dtypes)

    def _collapse(self, operator: Operator, table: Any, kernel: Kernel) -> None:
        tensors = self._found.tensors
        first = next(i for i in operator.inputs if i in self._integers)
        dtype = self._dtype(self._integers[first])
        outputs = [i for i in operator.outputs if tensors[i].is_float]
        scales: dict[int, tuple[float, int]] = {}
        for index in outputs:
            if kernel.kind == "same":
                scales[index] = self._parameters(self._integers[first])[1:]
            elif kernel.kind == "fixed":
                scales[index] = (kernel.scale, kernel.zero)
            else:
                scales[index] = self._wanted(index, dtype)
        inputs = []
        for index in operator.inputs:
            if index < 0 or not tensors[index].is_float:
                inputs.append(self._instead.get(index, index))
                continue
            merged = scales[outputs[0]] if kernel.kind == "merged" else None
            if index in self._integers:
                inputs.append(self._rescaled(self._integers[index], merged))
            else:
                inputs.append(self._constant(index, dtype, merged))
        table.inputs = inputs
        self._operators.append(table)
        for index in outputs:
            self._edit.quantise(index, dtype, *scales[index])
            self._integers[index] = index
            back = self._edit.like(index, "_dequantized", "float32")
            self._operators.append(self._edit.operator("DEQUANTIZE", [index], [back]))
            self._instead[index] = back

    def _wanted(self, index: int, dtype: str) -> tuple[float, int]:
        """The scale that a reader asks for already, or the one that follows from the range."""
        for reader in self._readers.get(index, []):
            if reader.code == "QUANTIZE":
                parameters = self._parameters(reader.outputs[0])
                if parameters[0] == dtype:
                    return parameters[1:]
        return parameters_of(self._ranges[index], dtype)

    def _rescaled(self, index: int, wanted: tuple[float, int] | None) -> int:
        if wanted is None or self._parameters(index)[1:] == wanted:
            return index
        made = self._edit.like(index, "_rescaled", self._dtype(index), *wanted)
        self._operators.append(self._edit.operator("QUANTIZE", [index], [made]))
        return made

    def _constant(self, index: int, dtype: str, wanted: tuple[float, int] | None) -> int:
        """A constant's values as integers, in a tensor of their own."""
        import numpy as np

        value = self._found.constant(self._found.tensors[index]).astype(np.float64)
        if wanted is None:
            low, high = min(float(value.min()), 0.0), max(float(value.max()), 0.0)
            wanted = parameters_of(Range(low, high, 0.0), dtype)
        limits = np.iinfo(dtype)
        steps = np.clip(np.rint(value / wanted[0]) + wanted[1], limits.min, limits.max)
        made = self._edit.like(index, "_integers", dtype, *wanted)
        self._edit.fill(made, steps.astype(dtype))
        self._replaced.add(index)
        return made

    def _dtype(self, index: int) -> str:
        return self._edit.dtype(index)

    def _parameters(self, index: int) -> tuple[str, float, int]:
        held = self._edit.graph.tensors[index].quantization
        return self._dtype(index), float(held.scale[0]), int(held.zeroPoint[0])

    def finish(self) -> None:
        graph = self._edit.graph
        graph.outputs = [self._instead.get(index, index) for index in graph.outputs]
        graph.operators = _without_unread(self._operators, self._edit)
        read = {int(i) for operator in graph.operators for i in operator.inputs}
        for index in self._replaced - read:
            self._edit.release(index)


def parameters_of(span: Range, dtype: str) -> tuple[float, int]:
    """Scale and zero point of an activation: asymmetric int8, symmetric int16."""
    import numpy as np

    if dtype == "int16":
        return float(np.float32(max(-span.low, span.high, 1e-9) / 32767)), 0
    scale = np.float32(max(span.high - span.low, 1e-9)) / np.float32(255)
    return float(scale), int(np.rint(-128 - np.float32(span.low) / scale))


def _without_unread(operators: list[Any], edit: Edit) -> list[Any]:
    """Without QUANTIZE and DEQUANTIZE whose result nobody reads."""
    read = {int(i) for operator in operators for i in operator.inputs}
    read |= {int(i) for i in edit.graph.outputs}
    kept = [
        operator
        for operator in operators
        if edit.code(operator) not in ("QUANTIZE", "DEQUANTIZE") or int(operator.outputs[0]) in read
    ]
    return kept if len(kept) == len(operators) else _without_unread(kept, edit)
