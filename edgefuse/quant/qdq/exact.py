"""Make a quantised file carry given scales and integers bit for bit.

The quantiser was given ranges and computed scales anew, in float32; its weights have scales of
its own. Written over it, in place:

    activation   scale, where the file's is the same but for the last bits; or that of the result
                 which an operator with one scale makes of it (a CONCATENATION): the quantiser lets
                 the operator before compute in that scale at once, and it is listed as merged;
                 LOGISTIC, SOFTMAX and TANH know one scale, which stays and is listed as fixed;
                 a pooling whose result has another scale than its input gets a QUANTIZE behind it
    weight       scales and integers
    bias         scale = input scale * weight scale; integers round(b / scale)
    constant     scale, integers round(v / scale) + zero point

The file is then read back, and everything compared. Left alone: tensors that the model says
nothing about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.artifact import Quantization
from edgefuse.errors import StageError
from edgefuse.quant.qdq.qdq import SAME_SCALE
from edgefuse.quant.qdq.qdq_weights import CHANNEL_AXES
from edgefuse.quant.writing.repair import FIXED_OUTPUTS

if TYPE_CHECKING:
    from edgefuse.quant.qdq.qdq import Carried
    from edgefuse.tflite.read import Operator, Tensor, TfliteModel

Array = np.ndarray[Any, Any]
_CROSSING = ("QUANTIZE", "DEQUANTIZE")
_LAST_BITS = 1e-5
_INT32 = 2.0**31 - 1


def write_exact(path: Path, carried: Carried) -> dict[str, Any]:
    """Put the scales and integers into the int8 file at ``path``, and verify them.

    Returns:
        JSON-able evidence: how many activations, weights and biases are as given, and what no
        tensor could carry or was not given.

    Raises:
        StageError: the quantiser gave a tensor another type, zero point or scale than asked for; a
            bias does not fit int32.
    """
    from edgefuse.tflite.edit import with_constants
    from edgefuse.tflite.read import parse_model
    from edgefuse.tflite.scales import with_scales

    data = path.read_bytes()
    model = parse_model(data, path.name)
    writing = _Writing(model, carried)
    writing.activations()
    data = _with_quantizers(data, model, writing.kept)
    writing.weights()
    writing.constants()
    written = with_constants(with_scales(data, writing.scales, writing.zeros), writing.values)
    _verify(parse_model(written, path.name), writing)
    path.write_bytes(written)
    return {
        "activations": len(carried.activations) - len(carried.followed),
        "weights": len(carried.weights),
        "biases": writing.biases,
        "followed": len(carried.followed),
        "calibrated": carried.names(carried.missing),
        "weights_without_scales": carried.names(carried.plain),
        "requantized": [model.tensors[index].name for index in writing.kept],
        "merged": writing.merged,
        "fixed": writing.fixed,
        "fused_away": list(carried.fused_away),
    }


class _Writing:
    """What is to be written into one file: scales and constants by tensor index."""

    def __init__(self, model: TfliteModel, carried: Carried) -> None:
        self.model, self.carried = model, carried
        self.scales: dict[int, tuple[float, ...]] = {}
        self.zeros: dict[int, tuple[int, ...]] = {}
        self.values: dict[int, Array] = {}
        self.kept: dict[int, Quantization] = {}
        self.merged: list[str] = []
        self.fixed: list[str] = []
        self.biases = 0
        self._carriers = _carriers(model)

    def activations(self) -> None:
        exact: dict[tuple[float, int], float] = {}
        source = self.carried.source
        makers = {index: op for op in source.operators for index in op.outputs}
        order = sorted(
            self.carried.activations, key=lambda i: makers[i].index if i in makers else -1
        )
        final: dict[int, Quantization] = {}
        for index in order:
            tensor, wanted = self._carrier(index), self.carried.activations[index]
            op = makers.get(index)
            fixed, before = self._fixed(index, op), _scale_kept(op, final)
            if fixed is not None and _near(tensor, fixed):
                final[index] = fixed
                self.fixed.append(source.tensors[index].name)
                continue
            if before is not None and not _near(tensor, wanted):
                self.zeros[tensor.index] = (wanted.zero_point,)
                if before != wanted:
                    self.kept[tensor.index] = before
            elif not _near(tensor, wanted):
                wanted = self._merged(index, tensor)
                self.merged.append(source.tensors[index].name)
            if _near(tensor, wanted):
                exact[tensor.scales[0], wanted.zero_point] = wanted.scale
            final[index] = wanted
            self.scales[tensor.index] = (wanted.scale,)
        for tensor in self.model.tensors:  # what the quantiser added: the same, or as uint8
            if tensor.is_constant or tensor.index in self.scales or len(tensor.scales) != 1:
                continue
            zero = tensor.zero_points[0] - (128 if tensor.dtype == "uint8" else 0)
            if (scale := exact.get((tensor.scales[0], zero))) is not None:
                self.scales[tensor.index] = (scale,)

    def _fixed(self, index: int, op: Operator | None) -> Quantization | None:
        """The only scale that the tensor's operator knows, where the model has another."""
        if op is None or op.code not in FIXED_OUTPUTS:
            return None
        fixed = Quantization(*FIXED_OUTPUTS[op.code])
        return None if self.carried.activations[index] == fixed else fixed

    def _merged(self, index: int, tensor: Tensor) -> Quantization:
        """The scale of a result that the tensor has in the file. Where others read the tensor too,
        it must reach as far as the tensor's own.

        Raises:
            StageError: there is none.
        """
        given, source = self.carried.activations[index], self.carried.source
        codes = {op.code for op in source.operators if index in op.inputs}
        alone = codes <= SAME_SCALE and index not in source.outputs
        for result in self._results(index):
            if _near(tensor, result) and (alone or _reaches(result, given)):
                return result
        scale, zero = tensor.scales[0], tensor.zero_points[0]
        raise StageError(
            f"{tensor.name!r} has scale {given.scale:.9g} and zero point {given.zero_point} in "
            f"the model, and {scale:.9g} and {zero} in the file: its operator knows no other",
            hint="give what is read and what is computed there one scale (pooling, concatenation, "
            "padding and reshaping keep that of their input in TFLite)",
        )

    def _results(self, index: int) -> list[Quantization]:
        """Scales of what operators that keep the scale make of a tensor."""
        found = []
        waiting, seen = [index], {index}
        while waiting:
            read = waiting.pop()
            for op in self.carried.source.operators:
                if op.code not in SAME_SCALE or read not in op.inputs:
                    continue
                for made in op.outputs:
                    if made in seen:
                        continue
                    seen.add(made)
                    waiting.append(made)
                    if made in self.carried.activations:
                        found.append(self.carried.activations[made])
        return found

    def _carrier(self, index: int) -> Tensor:
        """The int8 tensor that stands for a float one."""
        tensor = self.model.tensors[index]
        if tensor.is_float and index in self._carriers:
            tensor = self.model.tensors[self._carriers[index]]
        if tensor.dtype != "int8" or len(tensor.scales) != 1:
            raise StageError(
                f"{tensor.name!r} has a scale in the model and is {tensor.dtype} in the file",
                hint="leave quantize.keep_float and quantize.int16 out: the scales are for int8",
            )
        return tensor

    def _pairs(self) -> Iterator[tuple[Operator, Operator]]:
        """Each operator of the float file, and what it is in the int8 file.

        Constants are found through them: what several operators read, each at another input's
        scale, is as many tensors in the int8 file.
        """
        computing = [op for op in self.model.operators if op.code not in _CROSSING]
        source = [op for op in self.carried.source.operators if op.code not in _CROSSING]
        if [op.code for op in computing] != [op.code for op in source]:
            raise StageError("the int8 file's operators are not those of the float file")
        yield from zip(source, computing)

    def weights(self) -> None:
        for source, op in self._pairs():
            if op.code not in CHANNEL_AXES:
                continue
            index, held = op.inputs[1], self.carried.weights.get(source.inputs[1])
            tensor = self.model.tensors[index]
            if held is not None:
                if tensor.dtype != "int8" or len(tensor.scales) != held.scales.size:
                    raise StageError(
                        f"weight {tensor.name!r} is {tensor.dtype} with {len(tensor.scales)} "
                        f"scales, expected int8 with {held.scales.size}"
                    )
                self.scales[index] = tuple(held.scales.tolist())
                self.values[index] = held.integers
            if tensor.dtype == "int8":  # weights without given scales too: inputs have them
                self._bias(op, source)

    def _bias(self, op: Operator, source: Operator) -> None:
        transposed = op.code == "TRANSPOSE_CONV"
        place = 3 if transposed else 2
        index = op.inputs[place] if len(op.inputs) > place else -1
        if index < 0 or not self.model.tensors[index].is_constant:
            return
        bias, weight = self.model.tensors[index], op.inputs[1]
        data = op.inputs[2 if transposed else 0]
        if bias.dtype != "int32":
            raise StageError(f"bias {bias.name!r} is {bias.dtype}, expected int32")
        step = np.float64(self._scale(data)[0]) * np.asarray(self._scale(weight), np.float64)
        floats = self.carried.source
        real = floats.constant(floats.tensors[source.inputs[place]]).astype(np.float64)
        integers = np.rint(real / step)
        if np.abs(integers).max(initial=0) > _INT32:
            raise StageError(
                f"bias {bias.name!r} is {np.abs(integers).max():.3g} steps of its input's times "
                "its weights' scale: beyond int32",
                hint="raise the scale of that channel's weights, or of the layer's input",
            )
        scales = step.astype(np.float32)
        if len(bias.scales) == 1 and scales.size > 1 and np.unique(scales).size == 1:
            scales = scales[:1]
        self.scales[index] = tuple(scales.tolist())
        self.values[index] = integers.astype(np.int32)
        self.biases += 1

    def _scale(self, index: int) -> tuple[float, ...]:
        return self.scales.get(index, self.model.tensors[index].scales)

    def constants(self) -> None:
        floats = self.carried.source
        for source, op in self._pairs():
            for given, index in zip(source.inputs, op.inputs):
                if (wanted := self.carried.constants.get(given)) is None:
                    continue
                tensor = self.model.tensors[index]
                if tensor.dtype != "int8" or len(tensor.scales) != 1:
                    continue  # not quantised in the file: exact as it is
                real = floats.constant(floats.tensors[given]).astype(np.float64)
                steps = np.rint(real / wanted.scale) + wanted.zero_point
                self.scales[index] = (wanted.scale,)
                self.zeros[index] = (wanted.zero_point,)
                self.values[index] = np.clip(steps, -128, 127).astype(np.int8)


def _carriers(model: TfliteModel) -> dict[int, int]:
    """The int8 twin of each float input (behind its QUANTIZE) and output (before its
    DEQUANTIZE)."""
    found = {}
    for op in model.operators:
        if op.code == "QUANTIZE":
            found[op.inputs[0]] = op.outputs[0]
        elif op.code == "DEQUANTIZE":
            found[op.outputs[0]] = op.inputs[0]
    return found


def _scale_kept(op: Operator | None, final: Mapping[int, Quantization]) -> Quantization | None:
    """The scale of what an operator reads, if its result has to have it."""
    if op is None or op.code not in SAME_SCALE:
        return None
    found = {final[index] for index in op.inputs if index in final}
    return found.pop() if len(found) == 1 else None


def _with_quantizers(data: bytes, model: TfliteModel, kept: Mapping[int, Quantization]) -> bytes:
    """With a QUANTIZE before each of these tensors, from the scale that its operator keeps."""
    from edgefuse.tflite.edit import Edit

    if not kept:
        return data
    edit = Edit(data)
    for op in reversed(model.operators):
        for place, index in enumerate(op.outputs):
            if (held := kept.get(index)) is None:
                continue
            twin = edit.like(index, "_kept", "int8", held.scale, held.zero_point)
            operator = edit.graph.operators[op.index]
            operator.outputs = [*operator.outputs[:place], twin, *operator.outputs[place + 1 :]]
            edit.graph.operators.insert(op.index + 1, edit.operator("QUANTIZE", [twin], [index]))
    return edit.packed()


def _near(tensor: Tensor, wanted: Quantization | None) -> bool:
    """Whether the file has these but for the last bits of the scale."""
    if wanted is None:
        return False
    scale, zero = tensor.scales[0], tensor.zero_points[0]
    return zero == wanted.zero_point and abs(scale / wanted.scale - 1) <= _LAST_BITS


def _reaches(held: Quantization, other: Quantization) -> bool:
    """Whether a scale spans the real values of another, but for a step."""
    step = max(held.scale, other.scale)
    low, high = ([q.scale * (end - q.zero_point) for q in (held, other)] for end in (-128, 127))
    return low[0] <= low[1] + step and high[0] >= high[1] - step


def _verify(model: TfliteModel, writing: _Writing) -> None:
    """Everything that was asked for is in the file."""
    for index, scales in writing.scales.items():
        if model.tensors[index].scales != tuple(np.asarray(scales, np.float32).tolist()):
            raise StageError(f"the scale of {model.tensors[index].name!r} was not written")
    for index, value in writing.values.items():
        if not np.array_equal(model.constant(model.tensors[index]), value):
            raise StageError(f"the integers of {model.tensors[index].name!r} were not written")


def described(evidence: Mapping[str, Any]) -> tuple[str, list[str]]:
    """What :func:`write_exact` did, for a summary, and what a user should be warned of."""
    said = f"{evidence['activations']} activations and {evidence['weights']} weights as given"
    warnings = []
    for key, text in (
        ("calibrated", "activations have no scale in the model: calibrated here"),
        ("weights_without_scales", "weights have no scale in the model: rounded here"),
        ("fused_away", "quantised values were fused into what follows, and are not rounded"),
    ):
        if names := evidence[key]:
            more = ", ..." if len(names) > 3 else ""
            warnings.append(f"{len(names)} {text} ({', '.join(names[:3])}{more})")
    return said, warnings
