"""Signs that a model will lose its accuracy in int8 though every file is in order.

None stops a run: the accuracy gate decides. Each finding says what was seen, where, and the remedy.
The rules look at the float .tflite, at the ranges, and at some samples of every set:

============================  ====================================================================
code                          what was seen
============================  ====================================================================
normalised_twice              the graph normalises an input that comes normalised
scale_before_graph            the graph normalises an input of another scale than it expects
constant_answer               the float model answers the same whatever it is shown
ranges_differ                 calibration and evaluation samples reach differently far
joined_ranges                 a concatenation of values on scales far apart
far_constant                  a constant (padding, a mask) far outside the values it is joined with
sample_range                  samples outside what the preprocessing can give
channel_order                 red and blue exchanged: in the recipe, the arrays, or by the labels
equal_axes                    arrays whose layout their shape cannot tell (a note)
shared_samples                the same sample in two sets that must be apart
labels_shifted                labels that fit when 1 is added or taken off
labels_guessed                labels that the float model does not know at all
============================  ====================================================================

The last six are in :mod:`edgefuse.quant.lint.lint_samples`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.quant.lint.input_affine import InputAffine, input_affine
from edgefuse.quant.lint.look import Look, look_at
from edgefuse.tflite.read import Operator, Tensor, TfliteModel, read_model

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.artifact import Layout
    from edgefuse.data import SampleSet
    from edgefuse.fetch import Downloads
    from edgefuse.quant.calibration.calibrate import TensorStatistics
    from edgefuse.quant.calibration.ranges import Range
    from edgefuse.recipe import Recipe

    Array = np.ndarray[Any, Any]
    Feeds = Mapping[str, Array]

INPUT_RATIO = 4.0
JOINED_RATIO = 100.0
CONSTANT_RATIO = 4.0
SAME_ANSWER = 0.01
BATCHES = 8
_JOINING = ("CONCATENATION", "PACK")
_CONSTANT_OPERANDS = {"PADV2": (2,), "MAXIMUM": (0, 1), "MINIMUM": (0, 1), "ADD": (0, 1)}
_CONSTANT_OPERANDS |= {"SUB": (1,), "SELECT": (1, 2), "SELECT_V2": (1, 2)}


@dataclass(frozen=True)
class Finding:
    """One sign of trouble.

    Attributes:
        code: the rule's name.
        message: what was seen.
        where: the input, operator or sample set.
        remedy: what to do.
        severity: a ``note`` may be right as it is and goes to the evidence alone.
    """

    code: str
    message: str
    where: str
    remedy: str
    severity: Literal["warning", "note"] = "warning"

    @property
    def text(self) -> str:
        return f"{self.where}: {self.message}; {self.remedy}"


def lint(
    float_model: Path,
    recipe: Recipe,
    samples: Mapping[str, SampleSet],
    downloads: Downloads | None,
    statistics: Sequence[TensorStatistics] = (),
    ranges: Mapping[str, Range] | None = None,
) -> list[Finding]:
    """Apply every rule.

    Args:
        float_model: the float .tflite.
        recipe: for model.inputs and preprocess.
        samples: the sample sets by role, those that the recipe has.
        statistics: of calibration; without them (scales that came with the model) the rules that
            need them are left out.
        ranges: by tensor name, as chosen.
    """
    from edgefuse.quant.lint.lint_samples import lint_samples
    from edgefuse.tflite.feeds import run_samples

    model = read_model(float_model)
    feeds = {
        role: list(_fed(recipe, model, samples[role], downloads))
        for role in ("calibration", "evaluation")
        if role in samples
    }
    looks = {role: look_at(fed) for role, fed in feeds.items()}
    given = looks.get("evaluation") or looks.get("calibration") or {}
    affines = {
        name: affine for name, i in model.signature_inputs if (affine := input_affine(model, i))
    }
    found: list[Finding] = []
    for name, affine in affines.items():
        found += graph_normalisation(name, affine, given[name]) if name in given else ()
    judged = feeds.get("evaluation", [])
    if statistics and judged:
        found += odd_inputs(model, statistics, judged)
    as_they_are: dict[str, Layout] = {name: "other" for name, _ in model.signature_inputs}
    found += constant_answer(list(run_samples(float_model, as_they_are, judged)))
    found += uneven_joins(model, ranges or {})
    found += far_constants(model, statistics)
    found += lint_samples(float_model, recipe, samples, downloads, looks, affines)
    return found


def _fed(
    recipe: Recipe, model: TfliteModel, samples: SampleSet, downloads: Downloads | None
) -> Iterator[dict[str, Array]]:
    from edgefuse.data import take
    from edgefuse.tflite.feeds import source_layouts, streamed
    from edgefuse.tflite.read import signature_of

    feeds = take(samples, downloads, BATCHES, recipe.model.batch)
    return streamed(signature_of(model), source_layouts(recipe), feeds)


def graph_normalisation(name: str, affine: InputAffine, look: Look) -> list[Finding]:
    """The graph's own normalisation, by what it leaves of the samples.

    A normalised input has a mean of about 0 and a deviation of about 1 behind the graph's step,
    as behind a BatchNorm that learned on normalised pictures. Signed samples that come out far
    off, or with no spread left, were normalised before.
    """
    import numpy as np

    mean = look.mean * affine.scale + affine.shift
    deviation = look.deviation * np.abs(affine.scale)
    middle = float(mean[np.abs(mean).argmax()])
    spread = float(np.median(deviation))
    labels = ", ".join(operator.label for operator in affine.operators)
    does = f"x * {_short(affine.scale)} + {_short(affine.shift)}"
    comes = (
        f"the graph normalises ({labels}: {does}), and the samples come with mean "
        f"{float(look.mean.mean()):.3g} and deviation {float(np.median(look.deviation)):.3g}: "
        f"they leave it with mean {middle:.3g} and deviation {spread:.3g}"
    )
    where = f"input {name!r}"
    shifts = bool(np.abs(affine.shift).max() > 0.01)
    if look.signed and (spread < 0.1 or (shifts and (abs(middle) > 1.0 or spread > 2.0))):
        return [
            Finding(
                "normalised_twice",
                comes,
                where,
                "normalise once: take mean and std out of the preprocessing (keep the scale that "
                "the graph expects), or the step out of the graph",
            )
        ]
    if not look.signed and look.maximum > 0 and not 0.05 < spread < 20.0:
        return [
            Finding(
                "scale_before_graph",
                comes,
                where,
                "give the values that the graph's step is made for: 0..255 or 0..1 "
                "(preprocess.scale)",
            )
        ]
    return []


def _short(values: Array) -> str:
    """One value, or the least and the greatest."""
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if low == high else f"[{low:.3g}..{high:.3g}]"


def odd_inputs(
    model: TfliteModel, statistics: Iterable[TensorStatistics], feeds: Iterable[Feeds]
) -> list[Finding]:
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
                Finding(
                    "ranges_differ",
                    f"reaches {calibrated:.3g} in calibration and {seen:.3g} in evaluation",
                    f"input {name!r}",
                    "see that both are normalised in the same way, and once",
                )
            )
    return found


def constant_answer(answers: Sequence[Feeds]) -> list[Finding]:
    """A float model that answers nearly the same for every sample: it is not shown what it knows.

    The deviation over samples below 1% of the deviation over an output's own values, for each
    output.
    """
    import numpy as np

    for name in answers[0] if answers else ():
        rows = np.concatenate([np.asarray(a[name], np.float64) for a in answers])
        rows = rows.reshape(len(rows), -1)
        own = float(rows.std(axis=1).mean())
        if len(rows) < 4 or rows.shape[1] < 2 or rows.std(axis=0).mean() > SAME_ANSWER * own:
            return []
    if not answers:
        return []
    return [
        Finding(
            "constant_answer",
            f"the float model answers nearly the same for {len(answers)} samples: to it they look "
            "alike",
            ", ".join(f"output {name!r}" for name in answers[0]),
            "compare the preprocessing (scale, mean, std) with what the model was trained on",
        )
    ]


def uneven_joins(model: TfliteModel, ranges: Mapping[str, Range]) -> list[Finding]:
    """Operators that join tensors of which one spans 100 times another: they share one scale."""
    found = []
    for operator in model.operators:
        if operator.code not in _JOINING:
            continue
        names = {model.tensors[index].name for index in operator.inputs}
        joined = sorted((ranges[n] for n in names if n in ranges), key=_span)
        if joined and _span(large := joined[-1]) > JOINED_RATIO * _span(small := joined[0]):
            found.append(
                Finding(
                    "joined_ranges",
                    f"joins values in {small.low:.3g}..{small.high:.3g} with values in "
                    f"{large.low:.3g}..{large.high:.3g}: they share an int8 step of "
                    f"{_span(large) / 255:.3g}",
                    operator.label,
                    "return them as separate outputs, or bring the larger to the scale of the "
                    "smaller (boxes divided by the picture's size)",
                )
            )
    return found


def far_constants(model: TfliteModel, statistics: Iterable[TensorStatistics]) -> list[Finding]:
    """Constants that widen an operator's range more than 4 times beyond the values they meet.

    Padding with minus infinity, or as good as, for a maximum is no value and is left out.
    """
    import numpy as np

    seen = {s.name: (s.histogram.minimum, s.histogram.maximum) for s in statistics}
    found = []
    for operator, constant, met in _met_by_constants(model):
        result = seen.get(model.tensors[operator.outputs[0]].name)
        if met.name not in seen or result is None:
            continue
        low, high = (min(seen[met.name][0], 0.0), max(seen[met.name][1], 0.0))
        span = high - low
        value = model.real_constant(constant)
        farthest = float(value.flat[int(np.abs(value).argmax())])
        least, most = min(result[0], 0.0), max(result[1], 0.0)
        # The result must show it: a constant that no value of the result holds does no harm.
        if span > 0 and abs(farthest) > CONSTANT_RATIO * span < (most - least):
            found.append(
                Finding(
                    "far_constant",
                    f"brings the constant {farthest:.3g} to values in {low:.3g}..{high:.3g}: the "
                    f"int8 step grows from {span / 255:.3g} to {(most - least) / 255:.3g}",
                    operator.label,
                    "take a constant just beyond the values (a mask of -20 before a softmax, "
                    "padding by the least value)",
                )
            )
    return found


def _met_by_constants(model: TfliteModel) -> Iterator[tuple[Operator, Tensor, Tensor]]:
    """Operators with a float constant beside one activation: the operator, both tensors."""
    for operator in model.operators:
        held = [model.tensors[i] for i in operator.inputs if i >= 0]
        moving = [t for t in held if not t.is_constant and t.is_float]
        for place in _CONSTANT_OPERANDS.get(operator.code, ()):
            if place < len(held) and held[place].is_constant and held[place].is_float and moving:
                yield operator, held[place], moving[0]


def _span(found: Range) -> float:
    return found.high - found.low
