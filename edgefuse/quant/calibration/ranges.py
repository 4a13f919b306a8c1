"""From statistics to quantisation ranges.

A range [low, high] always holds zero, so that padding and ReLU are exact (Jacob et al., 2018,
arXiv:1712.05877, section 2.1). Ranges are rounded outwards to 10 significant bits: differences in
the last bits of a float kernel, from CPU to CPU, then do not change the quantised file.

Which rule gives a tensor its range: the first of the recipe's own rules that matches its name;
for a classifier's scores :mod:`~.class_scores`; for the model's other inputs and
outputs all of their values; for the rest the recipe's method. Inputs and outputs are not cut
unasked: an output cut at the top makes ties among the very scores that decide the class.
MobileNetV2 on ImageNet pictures, mean of six splits of 100 for calibration and 400 judged: cutting
the logits with all other tensors costs a point of top-1.

A tensor that was zero in every sample gets [0, 1]: any range holds it exactly, and a tiny one
would saturate, and overflow the int32 bias of the next layer, once a sample wakes it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgefuse.errors import RecipeError
from edgefuse.quant.calibration.class_scores import class_range, class_scores
from edgefuse.quant.calibration.range_search import least_divergence, least_squares

if TYPE_CHECKING:
    from edgefuse.quant.calibration.calibrate import TensorStatistics
    from edgefuse.recipe.quantize import Quantize, RangeMethod, TensorRule
    from edgefuse.tflite.read import TfliteModel

_BITS = 10
_SMALLEST = 1e-6
_NAMED = 5


@dataclass(frozen=True)
class Range:
    """The real values that int8 -128..127 shall span, and the share of values outside.

    Attributes:
        method: the recipe's method; ``whole`` of inputs and outputs, ``classes`` of a
            classifier's scores, ``zero`` of a tensor that was zero throughout.
    """

    low: float
    high: float
    clipped_fraction: float
    method: str = ""


def choose(
    statistics: Sequence[TensorStatistics],
    method: RangeMethod,
    tail_percent: float,
    whole: Collection[str] = (),
    *,
    rules: Sequence[TensorRule] = (),
    classes: str | None = None,
) -> dict[str, Range]:
    """One range a tensor, by tensor name; tensors of one name get a range that holds both's.

    Args:
        method: ``minmax`` keeps every value; ``percentile`` cuts ``tail_percent`` off each end;
            ``mse`` has the least squared error, ``entropy`` the least divergence.
        whole: tensors that keep every value: the model's inputs and outputs.
        rules: other methods for some tensors; the first that matches the name counts, before
            ``whole`` and ``classes``.
        classes: the tensor of a classifier's scores.

    Raises:
        RecipeError: a rule that matches no tensor.
    """
    names = [s.name for s in statistics]
    for place, rule in enumerate(rules):
        if not any(re.search(rule.match, name) for name in names):
            _raise_unmatched(place, rule.match, names)
    ranges: dict[str, Range] = {}
    for s in statistics:
        own = next((r for r in rules if re.search(r.match, s.name)), None)
        if own is not None:
            found = _range(s, own.ranges, own.tail_percent)
        elif s.name == classes:
            found = _bounded(s, *class_range(s), "classes")
        elif s.name in whole:
            found = replace(_range(s, "minmax", 0.0), method="whole")
        else:
            found = _range(s, method, tail_percent)
        ranges[s.name] = _wider(ranges[s.name], found) if s.name in ranges else found
    return ranges


def choose_for(
    source: TfliteModel, statistics: Sequence[TensorStatistics], options: Quantize
) -> dict[str, Range]:
    """The ranges that a recipe asks for.

    Of format ``int16x8`` they are symmetric, and ``minmax`` but for the recipe's own rules: a
    32,767th of the peak is no step to clip values for, nor low scores.

    Raises:
        RecipeError: a rule that matches no tensor.
        StageError: ``head: classes``, and the output is no classifier's.
    """
    whole = {source.tensors[i].name for i in (*source.inputs, *source.outputs)}
    if options.format == "int16x8":
        return symmetric(choose(statistics, "minmax", 0.0, whole, rules=options.tensors))
    return choose(
        statistics,
        options.ranges,
        options.tail_percent,
        whole,
        rules=options.tensors,
        classes=class_scores(source) if options.head == "classes" else None,
    )


def symmetric(ranges: Mapping[str, Range]) -> dict[str, Range]:
    """[-peak, peak] of each range, as int16 activations need it: their zero point is 0."""
    found = {}
    for name, given in ranges.items():
        peak = max(-given.low, given.high)
        found[name] = replace(given, low=-peak, high=peak)
    return found


def unsure(statistics: Sequence[TensorStatistics], samples: int) -> list[str]:
    """What the samples cannot tell, in sentences: tensors of one value, a single sample."""
    found = []
    if samples == 1:
        found.append(
            "the ranges rest on one calibration sample: values of others will be clipped; "
            "give a hundred"
        )
    zero = [s.name for s in statistics if s.histogram.minimum == s.histogram.maximum == 0]
    fixed = [
        s.name
        for s in statistics
        if s.histogram.minimum == s.histogram.maximum != 0 and math.prod(s.shape) > 1
    ]
    for names, what in ((zero, "zero"), (fixed, "one value")):
        if names:
            found.append(
                f"{_listed(names)} held {what} throughout calibration, so nothing is known of the "
                "range: give samples that exercise it, or look at the layer before"
            )
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMED]))
    more = len(names) - _NAMED
    word = "tensor" if len(names) == 1 else "tensors"
    return f"{word} {shown}" + (f" and {more} more" if more > 0 else "")


def _raise_unmatched(place: int, expression: str, names: Sequence[str]) -> None:
    near = difflib.get_close_matches(expression, names, 3, cutoff=0.3)
    raise RecipeError(
        f"{expression!r} is found in no tensor's name",
        where=f"quantize.tensors.{place}.match",
        hint=f"near: {', '.join(near or names[:3])}; `edgefuse inspect` lists the names",
    )


def _range(statistics: TensorStatistics, method: RangeMethod, tail_percent: float) -> Range:
    histogram = statistics.histogram
    low, high = histogram.minimum, histogram.maximum
    if low == high == 0.0:
        return Range(0.0, 1.0, 0.0, "zero")
    if method == "percentile" and tail_percent > 0:
        tail = tail_percent / 100
        low, high = histogram.quantile(tail), histogram.quantile(1 - tail)
    elif method == "mse":
        low, high = least_squares(histogram)
    elif method == "entropy":
        low, high = least_divergence(histogram)
    return _bounded(statistics, low, high, method)


def _bounded(statistics: TensorStatistics, low: float, high: float, method: str) -> Range:
    """Zero taken in, no empty range, rounded outwards."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < _SMALLEST:
        high = low + _SMALLEST
    low, high = _outwards(low), _outwards(high)
    return Range(low, high, statistics.histogram.fraction_outside(low, high), method)


def _wider(one: Range, other: Range) -> Range:
    clipped = max(one.clipped_fraction, other.clipped_fraction)
    return Range(min(one.low, other.low), max(one.high, other.high), clipped, one.method)


def _outwards(value: float) -> float:
    """The nearest number of 10 significant bits that is no smaller in magnitude."""
    if value == 0.0:
        return 0.0
    mantissa, exponent = math.frexp(value)
    return math.copysign(math.ldexp(math.ceil(abs(mantissa) * 2**_BITS), exponent - _BITS), value)
