"""A histogram of one tensor's values that needs no second pass: constant memory, exact merging.

Bins cover [-limit, limit) evenly, limit a power of two. When a value falls outside, the limit
doubles and neighbouring bins are merged. The bin of a value x is floor(x * 4096 / limit): scaling
by a power of two and floor are exact in float32, and floor(floor(y) / 2) = floor(y / 2), so the
counts do not depend on the order or the grouping of the samples. Minimum and maximum are kept
exactly, over every value seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError

if TYPE_CHECKING:
    import numpy as np

BINS = 8192
_FIRST_LIMIT = 2.0**-20
_OVERFLOW = 3.4e38


class Histogram:
    """Minimum, maximum and quantiles of a stream of values."""

    def __init__(self) -> None:
        import numpy as np

        self.limit = _FIRST_LIMIT
        self.counts = np.zeros(BINS, np.int64)
        self.minimum = float("inf")
        self.maximum = float("-inf")

    def clear(self) -> None:
        """Forget the values; the limit stays, which spares doubling it again."""
        self.counts[:] = 0
        self.minimum, self.maximum = float("inf"), float("-inf")

    def add(self, values: np.ndarray[Any, Any], sampled: np.ndarray[Any, Any]) -> None:
        """Take in ``values`` for the extremes and ``sampled``, a part of them, for the counts.

        Raises:
            DataError: a value is NaN or infinite, or the limit of float32, to which kernels
                with a fused activation clamp infinity.
        """
        import numpy as np

        # Adding 0.0 makes -0.0 the 0.0 that it equals, whichever comes first.
        low, high = float(values.min()) + 0.0, float(values.max()) + 0.0
        if not (low > -_OVERFLOW and high < _OVERFLOW):
            raise DataError("NaN or infinity among the values")
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        while max(-self.minimum, self.maximum) >= self.limit:
            self._double()
        scaled = sampled * np.float32(BINS / 2 / self.limit)
        places = np.floor(scaled, out=scaled).astype(np.intp)
        places += BINS // 2
        # A minimum of exactly -limit lies in the first bin, a maximum below limit in the last.
        self.counts += np.bincount(places, minlength=BINS)

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

    @property
    def bin_width(self) -> float:
        return self.limit / (BINS // 2)

    def quantile(self, fraction: float) -> float:
        """The value below which ``fraction`` (0..1) of the counted values lie, linear in a bin."""
        import numpy as np

        cumulative = np.cumsum(self.counts)
        wanted = fraction * int(cumulative[-1])
        place = int(np.searchsorted(cumulative, wanted))
        before = int(cumulative[place - 1]) if place else 0
        inside = (wanted - before) / max(1, int(self.counts[place]))
        value = ((place + inside) / (BINS / 2) - 1) * self.limit
        return float(min(max(value, self.minimum), self.maximum))

    def fraction_outside(self, low: float, high: float) -> float:
        """The share of the counted values below ``low`` or above ``high``, to a bin."""
        first = int((low / self.limit + 1) * (BINS // 2))
        last = int((high / self.limit + 1) * (BINS // 2))
        inside = int(self.counts[max(first, 0) : last + 1].sum())
        return 1 - inside / int(self.counts.sum())


def _doubled(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same counts over twice the range: neighbouring bins merged, in the middle."""
    import numpy as np

    wider = np.zeros(BINS, np.int64)
    wider[BINS // 4 : BINS // 4 + BINS // 2] = counts.reshape(-1, 2).sum(1)
    return wider
