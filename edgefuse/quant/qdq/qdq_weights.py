"""Find the integers of a QDQ model's constants in a float .tflite.

    |w'_c| / max |w'_c|  =  |w_c| / max |w_c|  as sorted numbers, for each output channel c
    scale'_c = scale_c * max |w'_c| / max |w_c|,  q = round(w' / scale')

The left side is the file's weight, its axes in the file's order; the right side the model's. Their
ratio is 1 unless a normalisation or a factor was folded into the channel; the integers stay, but
for their sign (a factor of 0 leaves zeros, which any scale holds). Scope: scales for output
channels, in the order of the model; constants that keep their numbers. Left alone: weights that
match nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.artifact import Quantization
from edgefuse.errors import StageError

if TYPE_CHECKING:
    from edgefuse.graph.quantization import Annotations
    from edgefuse.tflite.read import TfliteModel

Array = np.ndarray[Any, Any]
CHANNEL_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
_CLOSE = 1e-4
_FOLDED = 1e-6
_OFF_THE_GRID = 0.02


@dataclass(frozen=True)
class Integers:
    """A weight as int8: real = scales * integers, one scale a channel, the file's axis order."""

    integers: Array
    scales: Array


@dataclass(frozen=True)
class _Candidate:
    """One weight of the model, one of its axes taken for the output channels."""

    name: str
    peaks: Array
    profile: Array
    scales: Array

    @staticmethod
    def of(name: str, weight: Array, axis: int, scales: tuple[float, ...]) -> _Candidate:
        peaks, profile = _profile(weight, axis)
        return _Candidate(
            name, peaks, profile, np.broadcast_to(np.asarray(scales, np.float32), peaks.shape)
        )

    def integers(self, weight: Array, axis: int) -> Integers | None:
        """The file's weight in this one's integers; None when it is another weight."""
        peaks, profile = _profile(weight, axis)
        if profile.shape != self.profile.shape:
            return None
        alive = peaks > 0
        if alive.any() and np.abs(profile - self.profile)[alive].max() > _CLOSE:
            return None
        if not alive.any() and self.peaks.any():
            return None
        ratio = np.divide(peaks, self.peaks, out=np.ones_like(peaks), where=alive)
        ratio[np.abs(ratio - 1) < _FOLDED] = 1
        scales = (self.scales.astype(np.float64) * ratio).astype(np.float32)
        shape = [1] * weight.ndim
        shape[axis] = -1
        steps = weight.astype(np.float64) / scales.astype(np.float64).reshape(shape)
        rounded = np.rint(steps)
        if np.abs(steps - rounded).max() > _OFF_THE_GRID or not _fits_int8(rounded):
            return None
        return Integers(rounded.astype(np.int8), scales)


def find_weights(
    annotations: Annotations, arrays: Mapping[str, Array], model: TfliteModel
) -> tuple[dict[int, Integers], tuple[int, ...], set[str]]:
    """The weights of the layers in ``CHANNEL_AXES``.

    Args:
        arrays: the model's float constants by name.

    Returns:
        The integers by tensor index; the weights that match nothing; the names that were found.

    Raises:
        StageError: scales along another axis than the output channels'.
    """
    found: dict[int, Integers] = {}
    plain: list[int] = []
    used: set[str] = set()
    by_size: dict[int, list[_Candidate]] = {}
    for name, given in annotations.weights.items():
        weight = arrays[name]
        axes = range(weight.ndim) if given.axis is None else (given.axis,)
        by_size.setdefault(weight.size, []).extend(
            _Candidate.of(name, weight, axis, given.scales) for axis in axes
        )
    for op in model.operators:
        axis = CHANNEL_AXES.get(op.code)
        if axis is None:
            continue
        tensor = model.tensors[op.inputs[1]]
        if not (tensor.is_constant and tensor.is_float) or tensor.index in found:
            continue
        weight = model.constant(tensor)
        candidates = by_size.get(weight.size, ())
        fits = [(c.name, held) for c in candidates if (held := c.integers(weight, axis))]
        if fits:
            found[tensor.index] = fits[0][1]
            used |= {name for name, _ in fits}
        else:
            plain.append(tensor.index)
    return found, tuple(plain), used


def find_constants(
    annotations: Annotations, arrays: Mapping[str, Array], model: TfliteModel
) -> tuple[dict[int, Quantization], set[str]]:
    """The operands that are no layer's weight, by tensor index; and the names that were found."""
    given = dict(annotations.constants)
    for name, weight in annotations.weights.items():
        if weight.axis is None:
            given[name] = Quantization(weight.scales[0], 0)
    numbers = {name: np.sort(arrays[name], axis=None) for name in given}
    found: dict[int, Quantization] = {}
    used: set[str] = set()
    for op in model.operators:
        for index in op.inputs:
            tensor = model.tensors[index]
            if index < 0 or not (tensor.is_constant and tensor.dtype == "float32"):
                continue
            if op.code in CHANNEL_AXES or index in found:
                continue
            value = np.sort(model.constant(tensor), axis=None)
            for name, wanted in numbers.items():
                if wanted.size == value.size and np.allclose(wanted, value, 1e-6, 0):
                    found.setdefault(index, given[name])
                    used.add(name)
    return found, used


def require_all(annotations: Annotations, used: set[str]) -> None:
    """Demand that every weight of the model was found.

    Raises:
        StageError: names the first that was not.
    """
    lost = [name for name in annotations.weights if name not in used]
    if lost:
        raise StageError(
            f"no weight of the float file has the integers of {lost[0]!r} "
            f"({len(lost)} of {len(annotations.weights)} weights were not found)",
            hint="fold normalisations before quantising; TFLite's scales go along output channels",
        )


def _profile(weight: Array, axis: int) -> tuple[Array, Array]:
    """The peak of each channel, and its sorted magnitudes relative to that."""
    rows = np.abs(np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).astype(np.float64))
    peaks = rows.max(axis=1)
    divisors = np.where(peaks > 0, peaks, 1.0)[:, None]
    return peaks, np.sort(rows / divisors, axis=1)


def _fits_int8(steps: Array) -> bool:
    return bool(steps.min() >= -128 and steps.max() <= 127)
