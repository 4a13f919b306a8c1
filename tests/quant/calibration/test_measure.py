"""One call from samples to ranges: every method, its evidence, one sample, constant memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import Builder, float_file, weights

from edgefuse.quant.calibration.measure import Measured, measure_ranges
from edgefuse.recipe.quantize import Quantize


def _measure(model: Path, feeds: list[dict[str, np.ndarray]], **options: object) -> Measured:
    return measure_ranges(
        model,
        feeds,
        Quantize.model_validate(options),
        samples=len(feeds),
        samples_digest="samples",
        batch=1,
        scratch=model.parent / "scratch",
        warn=pytest.fail,
    )


def _pictures(count: int) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(5).standard_normal((count, 1, 8, 8, 3))
    return [{"picture": value.astype(np.float32)} for value in draw]


@pytest.mark.parametrize("ranges", ["percentile", "minmax", "mse", "entropy"])
def test_ranges_and_evidence_of_every_method(tmp_path: Path, ranges: str) -> None:
    model = tmp_path / "m.tflite"
    model.write_bytes(float_file(weights()))
    found = _measure(model, _pictures(16), ranges=ranges, tail_percent=1, head="classes")
    assert found.ranges.keys() == {s.name for s in found.statistics}
    methods = {name: r.method for name, r in found.ranges.items()}
    assert methods.pop("out") == "classes" and methods.pop("image") == "whole"
    assert set(methods.values()) == {ranges}
    evidence = found.evidence
    assert evidence["method"] == ranges and evidence["tensors"] == len(found.ranges)
    assert evidence["head"]["tensor"] == "out"
    assert evidence["convergence"]["samples"] == 16
    assert len(json.dumps(evidence)) < 2000
    assert found.warnings == []


def test_ranges_for_int16_are_whole_and_symmetric(tmp_path: Path) -> None:
    model = tmp_path / "m.tflite"
    model.write_bytes(float_file(weights()))
    found = _measure(model, _pictures(8), format="int16x8")
    assert all(r.low == -r.high and r.clipped_fraction == 0 for r in found.ranges.values())
    assert found.evidence["method"] == "minmax"


def test_one_sample_works_and_is_told(tmp_path: Path) -> None:
    model = tmp_path / "m.tflite"
    model.write_bytes(float_file(weights()))
    found = _measure(model, _pictures(1))
    assert any("one calibration sample" in text for text in found.warnings)
    assert "one sample" in found.evidence["convergence"]["summary"]


def test_a_tensor_that_never_moves_is_told(tmp_path: Path) -> None:
    b = Builder()
    x, dead = b.tensor("x", (1, 4)), b.tensor("dead", (1, 4))
    b.op("SUB", (x, x), (dead,))
    model = tmp_path / "m.tflite"
    model.write_bytes(b.finish({"x": x}, {"y": dead}))
    feeds = [{"x": np.arange(4, dtype=np.float32)[None] * k} for k in range(1, 5)]
    found = _measure(model, feeds)
    assert [text for text in found.warnings if "'dead' held zero" in text]
    assert found.ranges["dead"].high == 1.0


_CHILD = r"""
import re, sys
from pathlib import Path
import numpy as np
from edgefuse.quant.calibration.measure import measure_ranges
from edgefuse.recipe.quantize import Quantize

model, count = Path(sys.argv[1]), int(sys.argv[2])
draw = np.random.default_rng(0)
feeds = (
    {"picture": draw.standard_normal((1, 8, 8, 3), np.float32)} for _ in range(count)
)
measure_ranges(
    model, feeds, Quantize(ranges="mse"), samples=count, samples_digest="", batch=1,
    scratch=model.parent / "scratch", warn=print,
)
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    model = tmp_path / "m.tflite"
    model.write_bytes(float_file(weights()))
    peaks_kb = []
    for count in (50, 1000):
        command = [sys.executable, "-c", _CHILD, str(model), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks_kb.append(int(done.stdout))
    assert abs(peaks_kb[1] - peaks_kb[0]) < 0.05 * peaks_kb[0], peaks_kb
