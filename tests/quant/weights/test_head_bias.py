"""The head's bias correction, on a file built by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import float_file, weights

from edgefuse.errors import StageError
from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import choose
from edgefuse.quant.weights.head_bias import correct_head
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.runtime import open_model

FEEDS = [
    {"picture": value.astype(np.float32)}
    for value in np.random.default_rng(3).standard_normal((12, 1, 8, 8, 3))
]


def _files(folder: Path) -> tuple[Path, Path]:
    float_path, int8_path = folder / "float.tflite", folder / "int8.tflite"
    float_path.write_bytes(float_file(weights()))
    ranges = choose(calibrate(float_path, FEEDS), "percentile", 2.0, {"out"})
    quantize_file(float_path, int8_path, ranges)
    return float_path, int8_path


def _mean_error(float_path: Path, int8_path: Path) -> np.ndarray:
    pair = [open_model(path) for path in (float_path, int8_path)]
    rows = [[m.run_float(feed)["logits"] for m in pair] for feed in FEEDS]
    return np.mean([a - b for a, b in rows], axis=0)


def test_mean_errors_vanish_to_the_step(tmp_path: Path) -> None:
    float_path, int8_path = _files(tmp_path)
    before = np.abs(_mean_error(float_path, int8_path))
    length = int8_path.stat().st_size
    found = correct_head(float_path, int8_path, FEEDS)
    after = np.abs(_mean_error(float_path, int8_path))
    assert found["max_shift"] > 0
    assert after.mean() < before.mean() / 2
    assert int8_path.stat().st_size == length


def test_a_second_correction_finds_little_to_do(tmp_path: Path) -> None:
    files = _files(tmp_path)
    first, second = (correct_head(*files, FEEDS)["mean_shift"] for _ in range(2))
    assert second < first / 2


def test_no_samples(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no samples"):
        correct_head(*_files(tmp_path), [])


def test_a_model_without_such_a_head_is_refused(tmp_path: Path) -> None:
    from cases.tflite_file import conv_file

    path = tmp_path / "conv.tflite"
    path.write_bytes(conv_file(8))
    with pytest.raises(StageError, match="needs one output from a FULLY_CONNECTED"):
        correct_head(path, path, FEEDS)
