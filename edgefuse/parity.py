"""How far two models' outputs are apart: the one comparison of every stage.

The error is the largest absolute difference relative to the largest |reference| of the same
output: a sum of differences would grow with the tensor, and a relative error per element with its
zeros. NaN or infinity on either side is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError, ParityError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Outputs = Mapping[str, Array]

_LEAST_PEAK = 1e-30


@dataclass(frozen=True)
class Difference:
    """How far a candidate is from its reference, over all samples.

    Attributes:
        max_abs: largest absolute difference.
        max_rel_to_peak: largest of (largest difference of an output / its largest |reference|).
        sqnr_db: least signal-to-error ratio of an output, in dB; None when nothing differs.
        worst_output: the output that max_rel_to_peak belongs to.
        worst_sample: its sample, from 0.
        samples: how many samples were compared.
    """

    max_abs: float
    max_rel_to_peak: float
    sqnr_db: float | None
    worst_output: str
    worst_sample: int
    samples: int

    def evidence(self, limit: float | None) -> dict[str, Any]:
        """As reports show it."""
        return {
            "max_relative_error": self.max_rel_to_peak,
            "limit": limit,
            "samples": self.samples,
            "sqnr_db": None if self.sqnr_db is None else round(self.sqnr_db, 2),
            "max_abs": self.max_abs,
            "worst_output": self.worst_output,
        }


def difference(
    pairs: Iterable[tuple[Outputs, Outputs]],
    *,
    max_relative_error: float | None = None,
    what: str = "",
    hint: str = "this stage changed the numbers: do not raise the limit before knowing why",
) -> Difference:
    """Compare outputs by name, shape, type and value.

    Args:
        pairs: reference and candidate, sample by sample.
        max_relative_error: limit of ``max_rel_to_peak``; None only measures.
        what: the comparison in words, for messages.
        hint: the remedy when the limit is exceeded.

    Raises:
        ParityError: beyond the limit, NaN or infinity, other outputs, shapes or types.
        DataError: nothing to compare.
    """
    said = f"{what}: " if what else ""
    worst = Difference(0.0, 0.0, None, "", 0, 0)
    for sample, (expected, actual) in enumerate(pairs):
        if set(expected) != set(actual):
            raise ParityError(
                f"{said}the outputs are {list(actual)}, the reference has {list(expected)}"
            )
        for name in expected:
            found = _one(name, expected[name], actual[name], sample, said)
            worst = _join(worst, found)
    if worst.samples == 0:
        raise DataError(f"{said}nothing was compared: the sample set is empty")
    if max_relative_error is not None and worst.max_rel_to_peak > max_relative_error:
        raise ParityError(
            f"{said}the largest relative error is {worst.max_rel_to_peak:.3g}, "
            f"allowed is {max_relative_error:.3g}",
            hint=hint,
            where=_place(worst.worst_output, worst.worst_sample),
        )
    return worst


def require_parity(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], *, limit: float, what: str
) -> dict[str, Any]:
    """Demand that ``candidate`` is within ``limit`` of ``reference``; returns the evidence.

    Raises:
        ParityError, DataError: as :func:`difference`.
    """
    pairs = zip(reference, candidate, strict=True)
    return difference(pairs, max_relative_error=limit, what=what).evidence(limit)


def _place(output: str, sample: int) -> str:
    return f"output {output!r}, sample {sample}"


def _one(name: str, expected: Array, actual: Array, sample: int, said: str) -> Difference:
    import numpy as np

    where = _place(name, sample)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        raise ParityError(
            f"{said}shape and type are {actual.shape} {actual.dtype}, "
            f"the reference has {expected.shape} {expected.dtype}",
            where=where,
        )
    if expected.dtype.kind == "O":  # strings
        if not np.array_equal(expected, actual):
            raise ParityError(f"{said}the strings differ", where=where)
        return Difference(0.0, 0.0, None, name, sample, sample + 1)
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    for side, values in (("reference", a), ("candidate", b)):
        if not np.isfinite(values).all():
            raise ParityError(
                f"{said}the {side} has NaN or infinity",
                where=where,
                hint="check the weights, the preprocessing and the samples",
            )
    error = np.abs(a - b)
    max_abs = float(error.max(initial=0.0))
    if max_abs == 0.0:
        return Difference(0.0, 0.0, None, name, sample, sample + 1)
    peak = max(float(np.abs(a).max(initial=0.0)), _LEAST_PEAK)
    ratio = float(np.square(a).sum()) / float(np.square(error).sum())
    sqnr_db = 10 * math.log10(max(ratio, _LEAST_PEAK))
    return Difference(max_abs, max_abs / peak, sqnr_db, name, sample, sample + 1)


def _join(left: Difference, right: Difference) -> Difference:
    known = [d.sqnr_db for d in (left, right) if d.sqnr_db is not None]
    worse = right if right.max_rel_to_peak > left.max_rel_to_peak else left
    return Difference(
        max_abs=max(left.max_abs, right.max_abs),
        max_rel_to_peak=worse.max_rel_to_peak,
        sqnr_db=min(known) if known else None,
        worst_output=worse.worst_output or right.worst_output,
        worst_sample=worse.worst_sample if worse.worst_output else right.worst_sample,
        samples=max(left.samples, right.samples),
    )
