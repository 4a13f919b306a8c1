"""One quantised file, as the recipe's section asks for it: the steps in their order.

    ranges from samples -> the file -> rounding and biases of layers -> bias of the head

Each step is a choice of :class:`~edgefuse.recipe.quantize.Quantize`. A :class:`Maker` keeps what
several files share, so that a search calibrates once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import StageError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.quant.calibration.measure import Measured
    from edgefuse.quant.calibration.ranges import Range
    from edgefuse.recipe.quantize import Quantize
    from edgefuse.stage import Progress
    from edgefuse.tflite.read import TfliteModel
    from edgefuse.tflite.runtime import Runtime

    Feed = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Material:
    """What every file is made from.

    Attributes:
        float_file: the float .tflite.
        equalized_file: the same with its channels equalised; None where nobody asks for it, or
            where ``not_equalized`` says why it could not be.
        feeds: starts the calibration samples anew: float32 by signature name, in the file's layout.
        samples, digest, batch: their number, the set's digest, and how many a feed holds.
        given: ranges that the model brings itself (QDQ), by tensor name.
        runtime: the target's.
        work: a folder for what is in between.
        scratch: a folder that outlives an interrupted run.
    """

    float_file: Path
    equalized_file: Path | None
    feeds: Callable[[], Iterator[Feed]]
    samples: int
    digest: str
    batch: int
    given: Mapping[str, Range]
    runtime: Runtime
    work: Path
    scratch: Path
    warn: Callable[[str], None]
    progress: Progress
    not_equalized: str = ""


@dataclass(frozen=True)
class Made:
    """A quantised file.

    Attributes:
        float_file: what its layers were quantised from: the equalised file, or the given one.
        measured: the statistics and ranges.
        evidence: JSON: what each step did.
    """

    path: Path
    float_file: Path
    measured: Measured
    evidence: Mapping[str, Any]


@dataclass
class Maker:
    """Makes quantised files of one model."""

    material: Material
    _measured: dict[bool, Measured] = field(default_factory=dict)

    def make(self, options: Quantize, destination: Path) -> Made:
        """Write the file that ``options`` describe; a goal or fine-tuning in them is not for here.

        Raises:
            RecipeError: an expression of keep_float or int16 that matches no operator.
            StageError, DataError: as the steps do.
        """
        from edgefuse.quant.weights.head_bias import correct_head
        from edgefuse.quant.weights.layer import MOST_STEPS
        from edgefuse.quant.weights.rounding import improve
        from edgefuse.quant.writing.formats import named_operators
        from edgefuse.quant.writing.quantize import quantize_file
        from edgefuse.tflite.read import read_model

        material = self.material
        source = material.equalized_file if options.equalize else material.float_file
        if source is None:
            raise StageError(
                f"the channels could not be equalised: {material.not_equalized}",
                hint="set quantize.equalize: false",
            )
        model = read_model(source)
        int16 = named_operators(model, options.int16, "quantize.int16")
        measured = with_int16(model, self._ranges(source, options), int16, options)
        quantize_file(
            source,
            destination,
            {**measured.ranges, **material.given},
            format=options.format,
            per_tensor_weights=options.weights == "per_tensor",
            keep_float=named_operators(model, options.keep_float, "quantize.keep_float"),
            int16=int16,
            input_type=options.input_type,
            output_type=options.output_type,
            runtime=material.runtime,
        )
        gptq = options.rounding == "gptq"
        evidence: dict[str, Any] = {
            "equalized": options.equalize,
            "max_weight_steps": 0.5 + (MOST_STEPS if gptq else 0),
            **measured.evidence,
        }
        if gptq or options.correct_bias == "layers":
            found = improve(
                source,
                destination,
                material.feeds(),
                rounding=gptq,
                may_be_none=bool(options.keep_float),
                progress=lambda done, total: material.progress(done, total, "rounding layers"),
            )
            evidence["rounding"] = {
                "layers": found.layers,
                "samples": found.samples,
                "changed_fraction": round(found.changed_fraction, 4),
            }
        if options.correct_bias == "head":
            shift = correct_head(source, destination, material.feeds())
            evidence["head_bias"] = {name: round(value, 6) for name, value in shift.items()}
        return Made(destination, source, measured, evidence)

    def remake(self, options: Quantize, base: Made, trained: Path, destination: Path) -> Made:
        """``base`` again, from its float file with trained weights: the same ranges, and weights
        rounded to nearest, which is what they were trained for."""
        material = replace(self.material, float_file=trained)
        plain = {"equalize": False, "rounding": "nearest", "correct_bias": "none"}
        again = Maker(material, _measured={False: base.measured})
        made = again.make(options.model_copy(update=plain), destination)
        return replace(made, evidence=base.evidence)

    def _ranges(self, source: Path, options: Quantize) -> Measured:
        from edgefuse.quant.calibration.measure import measure_ranges, rechosen, unmeasured
        from edgefuse.quant.writing.formats import ACTIVATION_BITS

        if ACTIVATION_BITS[options.format] is None:
            return unmeasured()
        if (known := self._measured.get(options.equalize)) is not None:
            return rechosen(source, known, options)
        material = self.material
        found = measure_ranges(
            source,
            material.feeds(),
            options,
            samples=material.samples,
            samples_digest=material.digest,
            batch=material.batch,
            scratch=material.scratch,
            warn=material.warn,
        )
        self._measured[options.equalize] = found
        return found


def with_int16(
    model: TfliteModel, measured: Measured, operators: Collection[int], options: Quantize
) -> Measured:
    """All of their values for tensors that int16 operators alone touch, but for the recipe's rules.

    A 32,767th of the peak is no step to clip values for. What an int8 operator reads or writes
    keeps the range that is best for int8.
    """
    from edgefuse.quant.calibration.ranges import choose

    touching: dict[int, list[bool]] = {}
    for operator in model.operators:
        for index in {*operator.inputs, *operator.outputs}:
            touching.setdefault(index, []).append(operator.index in operators)
    names = {model.tensors[i].name for i, wide in touching.items() if i >= 0 and all(wide)}
    asked = [s for s in measured.statistics if s.name in names]
    own = [rule for rule in options.tensors if any(re.search(rule.match, s.name) for s in asked)]
    whole = choose(asked, "minmax", 0.0, rules=own)
    return replace(measured, ranges={**measured.ranges, **whole}) if whole else measured
