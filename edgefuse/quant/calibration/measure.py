"""From a float .tflite and samples to the ranges that a recipe asks for, in one pass.

Calibration that can go on after an interruption, the ranges, whether they are settled, and what
the samples cannot tell: what the stages need, with its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.quant.calibration.calibrate import TensorStatistics, calibrate
from edgefuse.quant.calibration.class_scores import class_evidence
from edgefuse.quant.calibration.convergence import Convergence
from edgefuse.quant.calibration.ranges import Range, choose_for, unsure
from edgefuse.quant.calibration.resume import Resume, resume_key
from edgefuse.tflite.read import read_model

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.recipe.quantize import Quantize


@dataclass(frozen=True)
class Measured:
    """What calibration found.

    Attributes:
        warnings: sentences for the user; calibration itself goes on.
        evidence: JSON: ``method``, ``tensors``, ``max_clipped_fraction``, ``convergence`` and, of
            a classifier's scores, ``head``; method ``none`` where nothing was to be measured.
    """

    statistics: Sequence[TensorStatistics]
    ranges: Mapping[str, Range]
    warnings: Sequence[str]
    evidence: Mapping[str, Any]


def measure_ranges(
    model: Path,
    feeds: Iterable[Mapping[str, np.ndarray[Any, Any]]],
    options: Quantize,
    *,
    samples: int,
    samples_digest: str,
    batch: int,
    scratch: Path,
    warn: Callable[[str], None],
) -> Measured:
    """Calibrate a float .tflite and choose its ranges.

    Args:
        feeds: as :func:`~edgefuse.quant.calibrate.calibrate` takes them.
        samples: how many samples the feeds hold; the last feed may be filled up.
        batch: samples a feed.
        scratch: a folder that outlives an interrupted run.
        warn: told of a saved state that cannot be used.

    Raises:
        DataError, StageError, RecipeError: as calibrating and choosing do.
    """
    source = read_model(model)
    convergence = Convergence(
        -(-samples // batch), lambda so_far: choose_for(source, so_far, options), batch
    )
    asked = options.model_dump(
        mode="json", include={"format", "ranges", "tail_percent", "tensors", "head"}
    )
    resume = Resume(scratch, resume_key(model, samples_digest, [asked, samples, batch]), warn)
    statistics = calibrate(model, feeds, convergence=convergence, resume=resume)
    ranges = choose_for(source, statistics, options)
    evidence = _evidence(statistics, ranges, options)
    evidence["convergence"] = convergence.settling(ranges).to_json()
    return Measured(statistics, ranges, unsure(statistics, samples), evidence)


def unmeasured() -> Measured:
    """For formats whose activations stay float: no sample is looked at."""
    return Measured((), {}, (), {"method": "none", "tensors": 0, "calibration_samples": 0})


def rechosen(model: Path, known: Measured, options: Quantize) -> Measured:
    """Other ranges from the same statistics.

    Raises:
        StageError, RecipeError: as choosing does.
    """
    ranges = choose_for(read_model(model), known.statistics, options)
    evidence = _evidence(known.statistics, ranges, options)
    evidence["convergence"] = known.evidence["convergence"]
    return Measured(known.statistics, ranges, known.warnings, evidence)


def _evidence(
    statistics: Sequence[TensorStatistics], ranges: Mapping[str, Range], options: Quantize
) -> dict[str, Any]:
    evidence: dict[str, Any] = {
        "method": "minmax" if options.format == "int16x8" else options.ranges,
        "tensors": len(ranges),
        "max_clipped_fraction": round(max(r.clipped_fraction for r in ranges.values()), 6),
    }
    if head := class_evidence(statistics, ranges):
        evidence["head"] = head
    return evidence
