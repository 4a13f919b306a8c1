"""A look at some samples as the float .tflite takes them, for :mod:`edgefuse.quant.lint.lint`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """What one input took over the samples looked at; channels are the last axis.

    Attributes:
        name: of the input in the signature.
        means: [samples, channels].
        mean: of each channel.
        deviation: standard deviation of each channel over all values.
        minimum: least value.
        maximum: greatest value.
        integers: whether every value is a whole number.
    """

    name: str
    means: Float64
    mean: Float64
    deviation: Float64
    minimum: float
    maximum: float
    integers: bool

    @property
    def signed(self) -> bool:
        """Whether values well below zero occur: pixels have none."""
        return self.minimum < -0.02 * max(abs(self.minimum), abs(self.maximum))

    @property
    def raw_pixels(self) -> bool:
        """Whether these can be 8-bit pixels as they are: whole numbers up to 255."""
        return self.integers and self.minimum >= 0 and 16 < self.maximum <= 255


def look_at(feeds: Iterable[Mapping[str, npt.NDArray[np.float32]]]) -> dict[str, Look]:
    """Look at feeds in the .tflite's layout, by input name."""
    rows: dict[str, list[tuple[Float64, Float64, float, float, bool]]] = {}
    for feed in feeds:
        for name, value in feed.items():
            for sample in value:
                wide = np.atleast_1d(np.asarray(sample, np.float64))
                wide = wide.reshape(-1, wide.shape[-1])
                whole = bool((wide == np.rint(wide)).all())
                found = wide.mean(0), (wide * wide).mean(0), wide.min(), wide.max(), whole
                rows.setdefault(name, []).append(found)
    looks = {}
    for name, seen in rows.items():
        means = np.stack([row[0] for row in seen])
        mean = means.mean(axis=0)
        variance = np.stack([row[1] for row in seen]).mean(axis=0) - mean**2
        looks[name] = Look(
            name=name,
            means=means,
            mean=mean,
            deviation=np.sqrt(np.maximum(variance, 0.0)),
            minimum=float(min(row[2] for row in seen)),
            maximum=float(max(row[3] for row in seen)),
            integers=all(row[4] for row in seen),
        )
    return looks
