"""The range of a classifier's scores: the low ones decide nothing and may be clipped.

Problem: logits reach as far below zero as above, and the scores that matter, the greatest, are
packed at the top: half of the int8 levels serve scores that never decide a class.

    high = the greatest score of all        low = min over samples of the r-th greatest score

with r = 5, or all classes when there are fewer: in every calibration sample the first five ranks
stay as they are, and all scores below ``low`` become equal. Zero stays inside, as in every range.

Scope: one output [batch, classes], or one that a SOFTMAX makes of such scores: its output has the
fixed scale 1/256, so the scores that it reads are the ones that count. Whoever uses the low
scores (distillation, rejection by the mean) must not ask for this. Judged by rank and agreement,
never by SQNR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgefuse.quant.calibration.calibrate import TensorStatistics
    from edgefuse.quant.calibration.ranges import Range
    from edgefuse.tflite.read import TfliteModel

#: How many of the greatest scores stay distinct in every calibration sample.
KEPT_RANKS = 5
_REMEDY = "set quantize.head: values"


def class_scores(model: TfliteModel) -> str:
    """The name of the tensor that holds the scores.

    Raises:
        StageError: the model has no output of class scores.
    """
    if len(model.outputs) != 1:
        raise StageError(
            f"quantize.head: classes needs one output of class scores, found {len(model.outputs)}",
            hint=_REMEDY,
            where=model.where,
        )
    output = model.tensors[model.outputs[0]]
    maker = next((o for o in model.operators if output.index in o.outputs), None)
    if maker is not None and maker.code in ("LOGISTIC", "ARG_MAX", "TANH"):
        raise StageError(
            f"quantize.head: classes needs scores that compete for the first rank; output "
            f"{output.name!r} comes from {maker.label}",
            hint=_REMEDY,
            where=model.where,
        )
    scores = output
    if maker is not None and maker.code == "SOFTMAX":
        scores = model.tensors[maker.inputs[0]]
    if len(scores.shape) != 2 or scores.shape[1] < 2 or not scores.is_float:
        raise StageError(
            f"quantize.head: classes needs scores [batch, classes], and {scores.name!r} is "
            f"{scores.dtype} {list(scores.shape)}",
            hint=_REMEDY,
            where=model.where,
        )
    if scores.is_constant or not any(scores.index in o.outputs for o in model.operators):
        raise StageError(
            f"quantize.head: classes: {scores.name!r} is computed by no operator",
            hint=_REMEDY,
            where=model.where,
        )
    return scores.name


def class_range(statistics: TensorStatistics) -> tuple[float, float]:
    """The ends [low, high] for scores whose greatest decide."""
    if statistics.ranks is None:
        raise StageError(
            f"the ranks of {statistics.name!r} were not watched in calibration",
            hint=_REMEDY,
        )
    least = statistics.ranks.least
    return float(least[min(KEPT_RANKS, len(least)) - 1]), statistics.histogram.maximum


def class_evidence(
    statistics: Sequence[TensorStatistics], ranges: Mapping[str, Range]
) -> dict[str, Any]:
    """What clipping the scores did, JSON; empty when no range is of a classifier's scores."""
    for s in statistics:
        found = ranges[s.name]
        if found.method == "classes" and s.ranks is not None:
            return {
                "tensor": s.name,
                "kept_ranks": min(KEPT_RANKS, len(s.ranks.least)),
                "least": round(s.histogram.minimum, 6),
                "low": round(found.low, 6),
                "high": round(found.high, 6),
                "clipped_fraction": round(found.clipped_fraction, 6),
            }
    return {}
