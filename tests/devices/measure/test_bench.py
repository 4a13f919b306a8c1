from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from edgefuse.artifact import Signature
from edgefuse.devices.measure import bench, bench_worker
from edgefuse.devices.measure.bench import Conditions, Latency, measure_latency, quantile
from edgefuse.errors import SourceError, ToolError
from edgefuse.tflite import runtime

CONDITIONS = Conditions("r 1", "default", 1, "cpu", 2, "unknown", None, 0.0, (0, 0))


def test_real_measurement(files: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    result = measure_latency(
        *files,
        log=tmp_path / "log",
        processes=2,
        rounds=12,
        kernels="builtin",
        progress=lambda done, total, what: seen.append((done, total)),
    )
    for times in (result.float_ms, result.int8_ms, result.again_ms):
        assert [len(row) for row in times] == [12, 12]
        assert all(t > 0 for row in times for t in row)
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert result.conditions.kernels == "builtin" and len(result.conditions.preempted) == 2
    summary = json.loads(json.dumps(result.summary()))
    assert summary["conditions"]["runtime"].startswith("ai-edge-litert")
    assert summary["int8"]["p50_ms"] <= summary["int8"]["p90_ms"]


def test_figures_from_known_times() -> None:
    result = Latency(
        float_ms=((10.0, 20.0, 10.0), (10.0, 10.0, 10.0)),
        int8_ms=((5.0, 10.0, 5.0), (6.0, 6.0, 60.0)),
        again_ms=((10.0, 20.0, 11.0), (9.0, 9.0, 9.0)),
        conditions=CONDITIONS,
    )
    assert result.process_ratios == (0.5, 0.6)
    assert result.ratio == pytest.approx(0.55)
    assert result.ratio_spread == pytest.approx(0.05)
    assert result.noise_band == pytest.approx(0.1)
    assert result.summary()["float"] == {"p50_ms": 10.0, "p90_ms": 15.0}


def test_a_slower_int8_file_shows(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """The measurement can tell: reference convolutions of a larger model against a tiny one."""
    big = _larger(tmp_path)
    result = measure_latency(
        files[0], big, log=tmp_path / "log", processes=2, rounds=12, kernels="reference"
    )
    assert result.ratio > 1 + result.noise_band and result.ratio > 3


def _larger(folder: Path) -> Path:
    import sys

    tiny = sys.modules["tiny_for_devices"]
    b = tiny.Builder()
    import numpy as np

    x, y = b.tensor("x", (1, 32, 32, 16)), b.tensor("y", (1, 32, 32, 16))
    weight = b.tensor("w", value=np.ones((16, 3, 3, 16), np.float32))
    b.op("CONV_2D", (x, weight, b.tensor("b", value=np.zeros(16, np.float32))), (y,))
    path = folder / "big.tflite"
    path.write_bytes(b.finish({"x": x}, {"y": y}))
    return path


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_quantile_is_numpys(fraction: float) -> None:
    import numpy as np

    values = [5.0, 1.0, 4.0, 2.5]
    assert quantile(values, fraction) == pytest.approx(float(np.quantile(values, fraction)))


def test_no_file_always_follows_the_same_one(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    class Recorder:
        signature = Signature()

        def __init__(self, path: Path, *_: object) -> None:
            self.name = path.name

        def feed(self, feeds: object) -> None:
            ran.append("")

        def invoke(self) -> None:
            ran.append(self.name)

    monkeypatch.setattr(runtime, "open_model", Recorder)
    job = {"files": ["a", "b", "c"], "runtime": "litert", "kernels": "default", "threads": 1}
    bench_worker.measure({**job, "rounds": 6, "warmup": 0, "seed": 0, "process": 2})
    turns = [tuple(ran[k : k + 3]) for k in range(3, 21, 3)]
    assert sorted(turns) == sorted(itertools.permutations("abc"))
    assert turns[0] == ("b", "a", "c")


def test_failures(files: tuple[Path, Path], tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "cut.tflite").write_bytes(files[0].read_bytes()[:400])
    with pytest.raises(SourceError, match="truncated"):
        measure_latency(files[0], tmp_path / "cut.tflite", log=log, processes=1, rounds=1)
    with pytest.raises(ToolError, match="ran longer than"):
        measure_latency(*files, log=log, processes=1, rounds=1, timeout_s=0.01)
    with pytest.raises(ValueError, match="at least one"):
        measure_latency(*files, log=log, processes=0)


def test_a_clock_that_stands_still_is_an_error(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"times_ms": [[1.0], [0.0], [1.0]], "preempted": 0}
    monkeypatch.setattr(bench, "call", lambda *_: answer)
    with pytest.raises(ToolError, match="clock"):
        measure_latency(*files, log=tmp_path / "log", processes=1, rounds=1)


def test_worker_in_process(files: tuple[Path, Path]) -> None:
    job = {"files": [str(f) for f in files], "runtime": "litert", "kernels": "default"}
    job |= {"threads": 1, "rounds": 3, "warmup": 1, "seed": 0, "process": 1}
    answer = bench_worker.measure(job)
    assert [len(row) for row in answer["times_ms"]] == [3, 3]
