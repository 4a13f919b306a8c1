"""An interrupted calibration goes on and ends with the same bits; a wrong state is not used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import float_file, weights

from edgefuse.errors import DataError, StoreError
from edgefuse.quant.calibration import calibrate as calibrating
from edgefuse.quant.calibration.calibrate import TensorStatistics, calibrate
from edgefuse.quant.calibration.convergence import Convergence
from edgefuse.quant.calibration.ranges import choose
from edgefuse.quant.calibration.resume import Resume, resume_key

Feed = dict[str, np.ndarray]
COUNT = 29


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(calibrating, "_SAMPLES_PER_BLOCK", 4)
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(weights()))
    return path


def _feeds() -> Iterator[Feed]:
    draw = np.random.default_rng(5)
    for k in range(COUNT):
        yield {"picture": (draw.standard_normal((1, 8, 8, 3)) * 1.3**k).astype(np.float32)}


def _broken(after: int) -> Iterator[Feed]:
    yield from islice(_feeds(), after)
    raise KeyboardInterrupt


def _watched() -> Convergence:
    return Convergence(COUNT, lambda s: choose(s, "mse", 0.0))


def _resume(folder: Path, warnings: list[str], key: str = "key") -> Resume:
    return Resume(folder, key, warnings.append, every_s=0.0)


def _same(one: list[TensorStatistics], other: list[TensorStatistics]) -> bool:
    for a, b in zip(one, other, strict=True):
        ours, theirs = a.histogram, b.histogram
        if (a.ranks is None) != (b.ranks is None):
            return False
        if a.ranks and b.ranks and not (a.ranks.least == b.ranks.least).all():
            return False
        figures = [(h.limit, h.minimum, h.maximum) for h in (ours, theirs)]
        if figures[0] != figures[1] or not (ours.counts == theirs.counts).all():
            return False
    return [s.name for s in one] == [s.name for s in other]


@pytest.mark.parametrize(("after", "threads"), [(3, 1), (4, 2), (9, 3), (15, 1), (28, 3)])
def test_it_goes_on_with_the_same_bits(
    model: Path, tmp_path: Path, after: int, threads: int
) -> None:
    whole = _watched()
    expected = calibrate(model, _feeds(), convergence=whole)
    warnings: list[str] = []
    resume = _resume(tmp_path / "scratch", warnings)
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, _broken(after), threads, convergence=_watched(), resume=resume)
    assert resume.path.is_file() == (after >= 4)
    seen = _watched()
    found = calibrate(model, _feeds(), threads, convergence=seen, resume=resume)
    assert _same(found, expected) and seen.to_json() == whole.to_json()
    assert warnings == []
    assert [p.name for p in (tmp_path / "scratch").iterdir()] == [resume.path.name]


def test_what_was_done_is_not_run_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = _resume(tmp_path / "scratch", [])
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, _broken(22), resume=resume)
    numbers = []
    observe = calibrating._Watcher.observe

    def counted(self: calibrating._Watcher, number: int, feed: Feed) -> None:
        numbers.append(number)
        observe(self, number, feed)

    monkeypatch.setattr(calibrating._Watcher, "observe", counted)
    calibrate(model, _feeds(), resume=resume)
    assert sorted(numbers) == list(range(21, COUNT + 1))


@pytest.mark.parametrize("how", ["cut", "flipped", "text", "empty", "edited", "foreign", "folder"])
def test_a_damaged_or_foreign_state_is_dropped_with_a_warning(
    model: Path, tmp_path: Path, how: str
) -> None:
    warnings: list[str] = []
    resume = _resume(tmp_path / "scratch", warnings)
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, _broken(22), resume=resume)
    data = bytearray(resume.path.read_bytes())
    if how == "cut":
        resume.path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        data[-40] ^= 1
        resume.path.write_bytes(data)
    elif how == "edited":
        head, _, rest = bytes(data).partition(b"\n")
        record = json.loads(head)
        record["record"]["done"] = 24
        resume.path.write_bytes(json.dumps(record).encode() + b"\n" + rest)
    elif how == "foreign":
        shutil.copy(resume.path, tmp_path / "scratch" / "other.calibration")
        resume = _resume(tmp_path / "scratch", warnings, "other")
    elif how == "folder":
        resume.path.unlink()
        resume.path.mkdir()
    else:
        resume.path.write_text("no state" if how == "text" else "")
    if how == "folder":
        with pytest.raises(StoreError):
            calibrate(model, _feeds(), resume=resume)
    else:
        assert _same(calibrate(model, _feeds(), resume=resume), calibrate(model, _feeds()))
    assert len(warnings) == 1 and "is not used" in warnings[0]


def test_a_state_without_estimates_does_not_serve_a_report(model: Path, tmp_path: Path) -> None:
    warnings: list[str] = []
    resume = _resume(tmp_path, warnings)
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, _broken(22), resume=resume)
    seen = _watched()
    calibrate(model, _feeds(), convergence=seen, resume=resume)
    assert len(seen.to_json()) == 3 and len(warnings) == 1


def test_the_key_is_of_model_samples_and_ranges(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tflite"
    other.write_bytes(float_file(weights(1)))
    keys = {
        resume_key(model, "samples", {"ranges": "mse"}),
        resume_key(other, "samples", {"ranges": "mse"}),
        resume_key(model, "others", {"ranges": "mse"}),
        resume_key(model, "samples", {"ranges": "entropy"}),
    }
    assert len(keys) == 4 and resume_key(model, "samples", {"ranges": "mse"}) in keys


def test_samples_that_became_fewer_are_no_result(model: Path, tmp_path: Path) -> None:
    resume = _resume(tmp_path, [])
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, _broken(6), resume=resume)
    with pytest.raises(DataError, match="changed"):
        calibrate(model, islice(_feeds(), 3), resume=resume)
