"""A histogram of one tensor's values that needs no second pass: constant memory, exact merging.

Bins cover [-limit, limit) evenly, limit a power of two. When a value falls outside, the limit
doubles and neighbouring bins are merged, so the counts stay exact and do not depend on the order
of the samples. Minimum and maximum are kept exactly, over every value seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError

if TYPE_CHECKING:
    import numpy as np

_BINS = 8192


class Histogram:
    """Minimum, maximum and quantiles of a stream of values."""

    def __init__(self) -> None:
        import numpy as np

        self.limit = 2.0**-20
        self.counts = np.zeros(_BINS, np.int64)
        self.minimum = float("inf")
        self.maximum = float("-inf")

    def add(self, values: np.ndarray[Any, Any], sampled: np.ndarray[Any, Any]) -> None:
        """Take in ``values`` for the extremes and ``sampled``, a part of them, for the counts.

        Raises:
            DataError: a value is NaN or infinite.
        """
        import numpy as np

        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise DataError("NaN or infinity among the values")
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        while max(-self.minimum, self.maximum) >= self.limit:
            self._double()
        places = ((sampled * np.float32(1 / self.limit) + 1) * (_BINS / 2)).astype(np.int64)
        np.minimum(places, _BINS - 1, out=places)
        self.counts += np.bincount(places, minlength=_BINS)

    def merge(self, other: Histogram) -> None:
        """Take in another histogram's values; neither order nor grouping matters."""
        import numpy as np

        counts, limit = other.counts, other.limit
        while self.limit < limit:
            self._double()
        while limit < self.limit:
            counts, limit = _doubled(counts), limit * 2
        self.counts = np.add(self.counts, counts)
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def _double(self) -> None:
        self.counts = _doubled(self.counts)
        self.limit *= 2

    def quantile(self, fraction: float) -> float:
        """The value below which ``fraction`` (0..1) of the counted values lie, linear in a bin."""
        import numpy as np

        cumulative = np.cumsum(self.counts)
        wanted = fraction * int(cumulative[-1])
        place = int(np.searchsorted(cumulative, wanted))
        before = int(cumulative[place - 1]) if place else 0
        inside = (wanted - before) / max(1, int(self.counts[place]))
        value = ((place + inside) / (_BINS / 2) - 1) * self.limit
        return float(min(max(value, self.minimum), self.maximum))


def _doubled(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same counts over twice the range: neighbouring bins merged, in the middle."""
    import numpy as np

    wider = np.zeros(_BINS, np.int64)
    wider[_BINS // 4 : _BINS // 4 + _BINS // 2] = counts.reshape(-1, 2).sum(1)
    return wider
