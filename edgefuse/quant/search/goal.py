"""How far a quantised file is from the float file, and from the goal of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.recipe.quantize import Goal

    Array = np.ndarray[Any, Any]

_EXACT_DB = 999.0


@dataclass(frozen=True)
class Score:
    """A file against the float file.

    Attributes:
        agreement: fraction of samples whose first class is the float file's; None when the first
            output is no row of classes.
        drop_points: top-1 of the float file less its own; None without labels.
        sqnr_db: the least of any output.
        samples: how many it was judged on.
    """

    agreement: float | None
    drop_points: float | None
    sqnr_db: float
    samples: int

    def told(self) -> str:
        parts = []
        if self.agreement is not None:
            parts.append(f"agreement {100 * self.agreement:.2f}%")
        if self.drop_points is not None:
            parts.append(f"drop {self.drop_points:.2f} points")
        return ", ".join([*parts, f"SQNR {self.sqnr_db:.2f} dB"])


def shortfall(score: Score, goal: Goal) -> float:
    """How far the score is from the goal, each threshold in its own spread; 0 or less reaches it.

    A point of drop and of agreement count alike, and so does a decibel. Below 0 the score has that
    much to spare.
    """
    parts = []
    if goal.min_agreement is not None and score.agreement is not None:
        parts.append(100 * (goal.min_agreement - score.agreement))
    if goal.max_drop_points is not None and score.drop_points is not None:
        parts.append(score.drop_points - goal.max_drop_points)
    if goal.min_sqnr_db is not None:
        parts.append(goal.min_sqnr_db - score.sqnr_db)
    missed = [part for part in parts if part > 0]
    return sum(missed) if missed else max(parts)


class Judge:
    """Scores files on one set of samples.

    Args:
        float_file: the reference.
        feeds: the samples: float32 by signature name, in the files' layout.
        counts: how many true samples each feed holds; the rest of it fills the batch.
        labels: class indices, one a sample; None when there are none.
        work: a folder for the samples.
        runtime, kernels: the target's.

    Raises:
        DataError: no sample, or a goal that asks for classes of an output that has none.
    """

    def __init__(
        self,
        float_file: Path,
        feeds: Iterable[Mapping[str, Array]],
        counts: Sequence[int],
        labels: Sequence[int] | None,
        goal: Goal,
        work: Path,
        *,
        runtime: Any = "litert",
        kernels: Any = "default",
    ) -> None:
        from edgefuse.labels import classes_of
        from edgefuse.quant.recording import record
        from edgefuse.tflite.read import read_model, signature_of

        self._recorded = record(feeds, work)
        if not self._recorded:
            raise DataError("no samples to judge quantize.goal on", where="data.validation")
        self._counts, self._labels = counts, labels
        self._runtime, self._kernels = runtime, kernels
        self._signature = signature_of(read_model(float_file))
        self._reference = self._outputs(float_file)
        first = self._reference[0]
        self._classes = classes_of(self._signature.outputs[0]) is not None
        if not self._classes and (goal.min_agreement, goal.max_drop_points) != (None, None):
            raise DataError(
                "the goal asks for classes, and the model's first output is no row of scores: "
                f"{list(first.shape[1:])} a sample",
                hint="give min_sqnr_db instead",
                where="quantize.goal",
            )
        if goal.max_drop_points is not None and labels is None:
            raise DataError(
                "quantize.goal.max_drop_points needs labels, and data.validation has none",
                hint="give labels, or min_agreement instead",
                where="quantize.goal.max_drop_points",
            )

    def score(self, path: Path) -> Score:
        """Run a file on every sample."""
        from edgefuse import metrics

        found = self._outputs(path)
        sqnr = []
        for exact, held in zip(self._reference, found):
            signal, noise = metrics.energies(exact, held)
            sqnr.append(_EXACT_DB if not noise.sum() else 10 * _log10(signal.sum() / noise.sum()))
        exact, held = (
            outputs[0].reshape(len(outputs[0]), -1) for outputs in (self._reference, found)
        )
        agreement = drop = None
        if self._classes:
            agreement = float(metrics.agreements(exact, held).mean())
            if self._labels is not None:
                drop = metrics.drop_points(exact, held, self._labels)
        return Score(
            agreement, None if drop is None else round(drop, 4), round(min(sqnr), 3), len(exact)
        )

    def _outputs(self, path: Path) -> list[Array]:
        """Per output [samples, ...], float32, in the float file's order."""
        import numpy as np

        from edgefuse.tflite.runtime import open_model

        model = open_model(path, runtime=self._runtime, kernels=self._kernels, threads=2)
        names = [spec.name for spec in self._signature.outputs]
        rows: list[list[Array]] = [[] for _ in names]
        for place, count in enumerate(self._counts):
            outputs = model.run_float({n: v[place] for n, v in self._recorded.items()})
            for name, held in zip(names, rows):
                held.append(outputs[name][:count])
        return [np.concatenate(held) for held in rows]


def _log10(value: float) -> float:
    import math

    return math.log10(value) if value > 0 else -_EXACT_DB
