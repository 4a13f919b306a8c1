"""Signs that a model will lose its accuracy in int8 though every file is in order.

Neither stops a run: the accuracy gate decides. They say what to look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from edgefuse.quant.calibrate import TensorStatistics
from edgefuse.quant.ranges import Range

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.tflite.read import TfliteModel

INPUT_RATIO = 4.0
JOINED_RATIO = 100.0
_JOINING = ("CONCATENATION", "PACK")


def odd_inputs(
    model: TfliteModel,
    statistics: Iterable[TensorStatistics],
    feeds: Iterable[Mapping[str, np.ndarray[Any, Any]]],
) -> list[str]:
    """Inputs whose largest values in calibration and in ``feeds`` differ by more than 4 times.

    The usual reason is samples that were normalised twice, or not at all, on one side.
    """
    peaks: dict[str, float] = {}
    for feed in feeds:
        for name, value in feed.items():
            peaks[name] = max(peaks.get(name, 0.0), float(abs(value).max()))
    known = {s.name: max(-s.histogram.minimum, s.histogram.maximum) for s in statistics}
    found = []
    for name, index in model.signature_inputs:
        calibrated, seen = known.get(model.tensors[index].name), peaks.get(name)
        if calibrated is None or seen is None:
            continue
        if max(calibrated, seen) > INPUT_RATIO * min(calibrated, seen):
            found.append(
                f"input {name!r} reaches {calibrated:.3g} in calibration and {seen:.3g} in "
                "evaluation: are both normalised in the same way, and once?"
            )
    return found


def uneven_joins(model: TfliteModel, ranges: Mapping[str, Range]) -> list[str]:
    """Operators that join tensors of which one spans 100 times another: they share one scale."""
    found = []
    for operator in model.operators:
        if operator.code not in _JOINING:
            continue
        names = {model.tensors[index].name for index in operator.inputs}
        joined = sorted((ranges[n] for n in names if n in ranges), key=_span)
        if joined and _span(large := joined[-1]) > JOINED_RATIO * _span(small := joined[0]):
            found.append(
                f"{operator.label} joins values in {small.low:.3g}..{small.high:.3g} with values "
                f"in {large.low:.3g}..{large.high:.3g}: they share an int8 step of "
                f"{_span(large) / 255:.3g}; return them as separate outputs, or bring the larger "
                "to the scale of the smaller (boxes divided by the picture's size)"
            )
    return found


def _span(found: Range) -> float:
    return found.high - found.low
