"""Comparing a stage's output with what it was made from, on real samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefuse.errors import ParityError

if TYPE_CHECKING:
    import numpy as np

    Outputs = Mapping[str, np.ndarray[Any, Any]]


def require_parity(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], *, limit: float, what: str
) -> dict[str, Any]:
    """Demand equal outputs, by name, shape and value.

    The figure is the largest |difference| over the largest |reference| of the same output: a sum
    of differences would grow with the tensor, and a relative error per element with its zeros.

    Args:
        limit: largest relative error allowed.
        what: the comparison in words, for the message.

    Returns:
        Evidence: ``max_relative_error``, ``limit``, ``samples``, ``sqnr_db``.

    Raises:
        ParityError: a differing shape or value, a NaN or an infinity, no sample.
    """
    import numpy as np

    if not reference:
        raise ParityError(f"{what}: no sample to compare on")
    worst, place, signal, noise = 0.0, "", 0.0, 0.0
    for index, (expected, actual) in enumerate(zip(reference, candidate, strict=True)):
        if set(expected) != set(actual):
            raise ParityError(f"{what}: outputs {sorted(actual)}, expected {sorted(expected)}")
        for name in sorted(expected):
            a, b = expected[name].astype(np.float64), actual[name].astype(np.float64)
            where = f"output {name!r}, sample {index}"
            if a.shape != b.shape:
                raise ParityError(f"{what}: shape {b.shape}, expected {a.shape}", where=where)
            for side, values in (("before", a), ("after", b)):
                if not np.isfinite(values).all():
                    raise ParityError(
                        f"{what}: NaN or infinity {side} it",
                        where=where,
                        hint="check the weights, the preprocessing and the samples",
                    )
            error = np.abs(a - b).max(initial=0.0) / max(np.abs(a).max(initial=0.0), 1e-12)
            if error >= worst:
                worst, place = float(error), where
            signal += float((a**2).sum())
            noise += float(((a - b) ** 2).sum())
    if worst > limit:
        raise ParityError(
            f"{what}: the outputs differ by {worst:.3g} of the largest value, "
            f"the limit is {limit:g}",
            where=place,
            hint="this stage changed the numbers: do not raise the limit before knowing why",
        )
    return {
        "max_relative_error": worst,
        "limit": limit,
        "samples": len(reference),
        "sqnr_db": round(10 * float(np.log10(signal / noise)), 2) if noise else None,
    }
