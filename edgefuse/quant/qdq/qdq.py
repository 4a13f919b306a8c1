"""Which tensors of a float .tflite the scales of a QDQ model belong to.

Problem: the scales are known by the values of the exported ONNX graph
(:mod:`edgefuse.graph.quantization`); fusing and converting merges, renames and turns them. So an
activation is followed by value on one sample, as :mod:`edgefuse.tflite.trace` follows nodes: it is
the tensor with the same numbers in any order. Weights are found by their integers
(:mod:`edgefuse.quant.qdq.qdq_weights`).

A tensor without a scale of its own takes that of the tensor whose values an operator only moves or
compares (PAD, RESHAPE, MAX_POOL_2D, CONCATENATION). What is left must be calibrated: ``missing``.

An activation whose numbers are nowhere was fused into what alone reads it: a pointwise operator
with constants (an activation function, the addition of a bias), whose result has a scale of its
own. The fused operator rounds once, where the model rounded twice. The activation is listed, since
no tensor is left to carry its scale. Any other activation that is nowhere is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Quantization
from edgefuse.errors import RecipeError, StageError
from edgefuse.quant.calibration.ranges import Range
from edgefuse.quant.qdq.qdq_weights import Integers, find_constants, find_weights, require_all
from edgefuse.tflite.trace import Step, locate

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.artifact import Layout
    from edgefuse.graph.quantization import Annotations
    from edgefuse.recipe.quantize import Quantize
    from edgefuse.tflite.read import TfliteModel

    Array = np.ndarray[Any, Any]

# The result has the scale of what was read: TFLite's kernels demand it, or it loses nothing.
SAME_SCALE = frozenset((
    "RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "PAD", "PADV2", "MIRROR_PAD", "SLICE",
    "STRIDED_SLICE", "SPLIT", "SPLIT_V", "CONCATENATION", "PACK", "UNPACK", "GATHER", "GATHER_ND",
    "MAX_POOL_2D", "AVERAGE_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "TILE",
    "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "BROADCAST_TO",
    "REVERSE_V2", "MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN",
))  # fmt: skip
# What was read may have the scale of the result: no value is lost that the result keeps.
_SAME_BEFORE = frozenset((
    "RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "PAD", "PADV2", "MIRROR_PAD",
    "CONCATENATION", "PACK", "MAX_POOL_2D", "TILE", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE",
    "SPACE_TO_BATCH_ND", "BROADCAST_TO", "REVERSE_V2",
))  # fmt: skip
_POINTWISE = (
    "Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish", "Add", "Sub", "Mul", "Div",
    "BatchNormalization",
)  # fmt: skip
_CUTTING = ("Relu", "Clip")


@dataclass(frozen=True)
class Carried:
    """What the tensors of a float file have by the QDQ model, by tensor index.

    Attributes:
        source: the float file.
        activations: scale and zero point, in int8.
        followed: those of ``activations`` that only follow a neighbour.
        weights: of convolutions and matrix products.
        constants: operands that are no weights.
        missing: activations without a scale.
        plain: weights without scales.
        fused_away: values of the ONNX graph that no tensor carries.
    """

    source: TfliteModel
    activations: Mapping[int, Quantization]
    followed: tuple[int, ...]
    weights: Mapping[int, Integers]
    constants: Mapping[int, Quantization]
    missing: tuple[int, ...]
    plain: tuple[int, ...]
    fused_away: tuple[str, ...]

    @property
    def ranges(self) -> dict[str, Range]:
        """The range of each tensor that has a scale, by name, as the quantiser takes it."""
        return {
            self.source.tensors[index].name: Range(
                found.scale * (-128 - found.zero_point),
                found.scale * (127 - found.zero_point),
                0.0,
                "given",
            )
            for index, found in self.activations.items()
        }

    def names(self, indices: Iterable[int]) -> list[str]:
        return [self.source.tensors[index].name for index in indices]


def carried(
    exported: Path, converted: Path, layouts: Mapping[str, Layout], feed: Mapping[str, Array]
) -> Carried | None:
    """The scales that the exported model brings, on the tensors of the converted one.

    Args:
        exported: the ONNX file of stage ``export``.
        converted: the float .tflite that was made from it.
        layouts: of the inputs, as :func:`edgefuse.tflite.feeds.source_layouts` has them.
        feed: one real sample.

    Returns:
        None when the model brings none.

    Raises:
        StageError: a scale that no tensor can carry; names the value and the remedy.
    """
    from edgefuse.graph.quantization import annotated_constants, annotations_of
    from edgefuse.graph.watch import watch

    annotations = annotations_of(exported)
    if annotations is None:
        return None
    steps, onnx_values = watch(exported, feed, fold=True)
    model, float_values = _values(converted, layouts, feed)
    place = locate(steps, onnx_values, model, float_values)
    activations, fused_away = _activations(annotations, steps, place, model)
    arrays = annotated_constants(exported, annotations)
    weights, plain, used = find_weights(annotations, arrays, model)
    constants, others = find_constants(annotations, arrays, model)
    require_all(annotations, used | others)
    own = set(activations)
    _follow(model, activations)
    needed = {t.index for op in model.operators for t in model.activations_of(op) if t.is_float}
    return Carried(
        source=model,
        activations=activations,
        followed=tuple(sorted(activations.keys() - own)),
        weights=weights,
        constants=constants,
        missing=tuple(sorted(needed - activations.keys())),
        plain=plain,
        fused_away=fused_away,
    )


def refuse_options(options: Quantize, given: Carried) -> None:
    """Refuse what would change scales that are given, or would leave them unused.

    How ranges are chosen says only something of activations without a scale of their own, so it is
    no contradiction; a rule for a tensor that has one is, and clipping a head that has one.

    Raises:
        RecipeError: names the key.
    """
    names = given.names(sorted(given.activations))
    outputs = [index for index in given.source.outputs if index in given.activations]
    changing = {
        "format": options.format != "int8",
        "weights": options.weights != "per_channel",
        "equalize": options.equalize,
        "rounding": options.rounding != "nearest",
        "correct_bias": options.correct_bias != "none",
        "keep_float": bool(options.keep_float),
        "int16": bool(options.int16),
        "head": options.head == "classes" and bool(outputs),
        "goal": options.goal is not None,
        "qat": options.qat is not None,
    }
    for place, rule in enumerate(options.tensors):
        changing[f"tensors.{place}"] = any(re.search(rule.match, name) for name in names)
    for key, asked in changing.items():
        if asked:
            raise RecipeError(
                f"the model brings its own int8 scales, and {key} would change them",
                where=f"quantize.{key}",
                hint=f"leave quantize.{key} out, or give the float model",
            )


def _values(
    converted: Path, layouts: Mapping[str, Layout], feed: Mapping[str, Array]
) -> tuple[TfliteModel, dict[int, Array]]:
    """The float file, and its computed tensors on one sample by index."""
    from edgefuse.tflite.feeds import streamed
    from edgefuse.tflite.runtime import open_model

    running = open_model(converted, kernels="builtin", preserve_all_tensors=True)
    (given,) = streamed(running.signature, layouts, [feed])
    running.run(given)
    model = running.source
    made = {i for op in model.operators for i in op.outputs if model.tensors[i].is_float}
    return model, {index: running.value(index) for index in sorted(made)}


def _activations(
    annotations: Annotations, steps: Sequence[Step], place: Mapping[str, int], model: TfliteModel
) -> tuple[dict[int, Quantization], tuple[str, ...]]:
    """Scale and zero point by tensor, and the values that no tensor carries."""
    found: dict[int, Quantization] = {}
    owner: dict[int, str] = {}
    away = []
    for name, given in annotations.activations.items():
        index = place.get(name)
        behind, cutting = _result_behind(name, steps, annotations)
        if behind and index in (None, place.get(behind)):
            if cutting:
                _require_cover(name, given, behind, annotations.activations[behind])
            away.append(name)
            continue
        if index is None:
            readers = ", ".join(s.op_type for s in steps if name in s.inputs) or "the caller"
            raise StageError(
                f"no tensor of the float file holds {name!r}, which is quantised with scale "
                f"{given.scale:.9g} and read by {readers}: it was fused into what follows",
                hint="fold normalisations before quantising, and quantise the result of a fused "
                "group (Conv, Add, activation), not a value within it",
            )
        if found.setdefault(index, given) != given:
            raise StageError(
                f"{name!r} and {owner[index]!r} are one tensor of the float file, with scales "
                f"{given.scale:.9g} and {found[index].scale:.9g}",
                where=model.tensors[index].name,
                hint="values that only change their shape need one scale: quantise again",
            )
        owner.setdefault(index, name)
    return found, tuple(away)


def _result_behind(name: str, steps: Sequence[Step], annotations: Annotations) -> tuple[str, bool]:
    """The next value with a scale, behind pointwise operators that alone read each other; and
    whether all that they do is to cut. Empty when there is none."""
    cutting = True
    while True:
        readers = [s for s in steps if name in s.inputs]
        if len(readers) != 1 or len(readers[0].inputs) != 1:
            return "", False
        if readers[0].op_type not in _POINTWISE:
            return "", False
        cutting = cutting and readers[0].op_type in _CUTTING
        name = readers[0].outputs[0]
        if name in annotations.activations:
            return name, cutting


def _require_cover(name: str, given: Quantization, behind: str, result: Quantization) -> None:
    """Without the first rounding nothing may get through that it would have cut."""
    step = max(given.scale, result.scale)
    first, second = (q.scale * (127 - q.zero_point) for q in (given, result))
    if first < second - step:
        raise StageError(
            f"{name!r} is quantised up to {first:.6g}, and {behind!r}, the activation function "
            f"behind it, up to {second:.6g}: fused, the values between would get through",
            hint="quantise the result of the activation function only",
        )


def _follow(model: TfliteModel, known: dict[int, Quantization]) -> None:
    """Give tensors without a scale that of their neighbour."""
    from edgefuse.quant.writing.repair import FIXED_OUTPUTS

    for op in model.operators:
        if op.code in FIXED_OUTPUTS:
            known.setdefault(op.outputs[0], Quantization(*FIXED_OUTPUTS[op.code]))
    readers = [index for op in model.operators for index in set(op.inputs)]
    count = -1
    while count != len(known):
        count = len(known)
        for op in model.operators:
            scales = {known.get(index) for index in _moved(model, op.inputs)}
            if op.code in SAME_SCALE and len(scales) == 1 and None not in scales:
                for index in op.outputs:
                    known.setdefault(index, next(s for s in scales if s is not None))
        for op in reversed(model.operators):
            result = known.get(op.outputs[0])
            if op.code in _SAME_BEFORE and result is not None:
                for index in _moved(model, op.inputs):
                    if readers.count(index) == 1:
                        known.setdefault(index, result)


def _moved(model: TfliteModel, indices: Iterable[int]) -> list[int]:
    """The float tensors among an operator's inputs that are no constants."""
    tensors = (model.tensors[index] for index in indices if index >= 0)
    return [t.index for t in tensors if t.is_float and not t.is_constant]
