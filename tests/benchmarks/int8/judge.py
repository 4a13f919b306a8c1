"""An int8 .tflite against its float .tflite on the same samples: agreement, drop, SQNR.

One runtime for every producer's file: LiteRT with its default kernels. A sample is decoded once.
Nothing of edgefuse's own readers, runtimes or metrics is used here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Judgement:
    """One file on one set of samples.

    Attributes:
        samples: how many.
        float_top1: percent of labels that the float file hits; None without labels.
        drop: float top-1 less int8 top-1, in points, on the same samples.
        drop_error: standard error of the paired difference, in points.
        agreement: percent of samples whose first class is the float file's.
        sqnr_db: 10 log10 of the float outputs' energy over that of the difference.
    """

    samples: int
    float_top1: float | None
    drop: float | None
    drop_error: float | None
    agreement: float
    sqnr_db: float

    def to_json(self) -> dict[str, Any]:
        return {
            name: value if value is None else round(value, 3) for name, value in vars(self).items()
        }


def outputs(path: Path, samples: Array, threads: int = 2) -> Array:
    """float32 [N, classes] of a file with one input and one output.

    Args:
        samples: float32 [N, H, W, C], normalised; quantised with the input's own parameters.
    """
    runner = Interpreter(str(path), num_threads=threads)
    runner.allocate_tensors()
    (given,) = runner.get_input_details()
    (answered,) = runner.get_output_details()
    rows = []
    for sample in samples:
        runner.set_tensor(given["index"], _as_input(sample[None], given))
        runner.invoke()
        value = runner.get_tensor(answered["index"])[0].ravel().astype(np.float32)
        if answered["dtype"] != np.float32:
            scale, zero = answered["quantization"]
            value = (value - np.float32(zero)) * np.float32(scale)
        rows.append(value)
    return np.stack(rows)


def _as_input(value: Array, detail: dict[str, Any]) -> Array:
    if detail["dtype"] == np.float32:
        return value
    scale, zero = detail["quantization"]
    limits = np.iinfo(detail["dtype"])
    steps = np.round(value / np.float32(scale)) + zero
    held: Array = np.clip(steps, limits.min, limits.max).astype(detail["dtype"])
    return held


def boundary_types(path: Path) -> list[str]:
    """Element types of the input and the output."""
    runner = Interpreter(str(path))
    sides = (*runner.get_input_details(), *runner.get_output_details())
    return [np.dtype(side["dtype"]).name for side in sides]


def judge(reference: Array, candidate: Array, labels: Array | None) -> Judgement:
    """Compare outputs [N, classes] of the float and of the int8 file."""
    first, second = reference.argmax(1), candidate.argmax(1)
    wide = reference.astype(np.float64)
    noise = float(((wide - candidate) ** 2).sum())
    top1 = drop = error = None
    if labels is not None:
        lost = (first == labels).astype(float) - (second == labels)
        top1 = 100 * float((first == labels).mean())
        drop = 100 * float(lost.mean())
        error = 100 * float(lost.std()) / len(lost) ** 0.5
    return Judgement(
        samples=len(reference),
        float_top1=top1,
        drop=drop,
        drop_error=error,
        agreement=100 * float((first == second).mean()),
        sqnr_db=10 * float(np.log10(float((wide**2).sum()) / max(noise, 1e-30))),
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, extremes and standard deviation over the splits."""
    return {
        "mean": round(statistics.fmean(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
        "deviation": round(statistics.stdev(values), 3) if len(values) > 1 else 0.0,
    }
