"""SIGKILL at random moments, two cold runs at once, a third apart: always the same bytes.

A tiny model by default. The same on a real recipe, as often as asked:
    EDGEFUSE_KILLS=20 EDGEFUSE_KILL_RECIPE=configs/mobilenet.yaml pytest tests/test_kill.py -s
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgefuse.store import default_root

KILLS = int(os.environ.get("EDGEFUSE_KILLS", "2"))
RECIPE = os.environ.get("EDGEFUSE_KILL_RECIPE")


def _tiny(folder: Path) -> Path:
    """Conv, BatchNorm, Clip, pool, Gemm on [1, 3, 16, 16]; enough groups for the gate."""
    draw = np.random.default_rng(0)
    weights = {
        "w": draw.normal(size=(8, 3, 3, 3)),
        "scale": draw.uniform(0.5, 1.5, 8),
        "shift": draw.normal(size=8),
        "mean": draw.normal(size=8),
        "var": draw.uniform(0.5, 1.5, 8),
        "dense": draw.normal(size=(8, 5)),
        "bias": draw.normal(size=5),
    }
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        tiny (float[1,3,16,16] x) => (float[1,5] y) {
            low = Constant<value_float = 0.0>()
            high = Constant<value_float = 6.0>()
            axes = Constant<value_ints = [2, 3]>()
            c = Conv<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(x, w)
            n = BatchNormalization(c, scale, shift, mean, var)
            a = Clip(n, low, high)
            p = ReduceMean<keepdims = 0>(a, axes)
            y = Gemm(p, dense, bias)
        }"""
    )
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()
    )
    onnx.save(model, folder / "tiny.onnx")
    np.savez(folder / "samples.npz", x=draw.normal(size=(16, 3, 16, 16)).astype(np.float32))
    recipe = folder / "tiny.yaml"
    recipe.write_text(
        """schema: 1
name: tiny
model:
  onnx: {path: tiny.onnx}
  inputs: [{name: x, shape: [1, 3, 16, 16]}]
data:
  calibration: {arrays: samples.npz}
  evaluation: {arrays: samples.npz}
gates:
  accuracy: {min_agreement_percent: 1}
  memory: {max_arena_bytes: 1000000}
"""
    )
    return recipe


def _start(recipe: Path, cache: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edgefuse.cli", "run", str(recipe), "--out", str(out)],
        env={**os.environ, "EDGEFUSE_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output


def _digests(out: Path) -> dict[str, str]:
    report = json.loads((out / "report.json").read_text())
    assert report["verdict"] == "pass"
    return {a["file"]: a["sha256"] for a in report["artifacts"]}


def _children_of(cache: Path) -> list[str]:
    """Commands still running with this store."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"EDGEFUSE_CACHE={cache}".encode() in environment and state != "Z":
            found.append((process / "cmdline").read_bytes().decode().replace("\0", " "))
    return found


def _new_cache(folder: Path, name: str) -> Path:
    """An empty store; for a real recipe with the downloads that are there already."""
    cache = folder / name
    cache.mkdir()
    if RECIPE and (default_root() / "downloads").is_dir():
        shutil.copytree(default_root() / "downloads", cache / "downloads")
    return cache


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]], float]:
    """A recipe, the digests of two cold runs of it at once, and their wall time in seconds."""
    folder = tmp_path_factory.mktemp("cold")
    recipe = Path(RECIPE) if RECIPE else _tiny(folder)
    cache, outs = _new_cache(folder, "cache"), [folder / name for name in ("first", "second")]
    start = time.monotonic()
    both = [_start(recipe, cache, out) for out in outs]
    for process in both:
        _finish(process)
    return recipe, [_digests(out) for out in outs], time.monotonic() - start


def test_two_runs_at_once(cold: tuple[Path, list[dict[str, str]], float]) -> None:
    first, second = cold[1]
    assert first == second


def test_killed_at_random_moments(
    cold: tuple[Path, list[dict[str, str]], float], tmp_path: Path
) -> None:
    """Each time twice: a run, and the one that goes on with what it left."""
    recipe, (expected, _), seconds = cold
    draw = random.Random(0)
    for index in range(0, KILLS, 2):
        cache, out = _new_cache(tmp_path, f"cache{index}"), tmp_path / f"out{index}"
        moments = [round(draw.uniform(0, seconds / 2), 1) for _ in range(min(2, KILLS - index))]
        for moment in moments:
            process = _start(recipe, cache, out)
            time.sleep(moment)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            time.sleep(1)
            assert _children_of(cache) == [], f"left behind after {moment:.1f} s"
        _finish(_start(recipe, cache, out))
        assert _digests(out) == expected, f"killed after {moments} s"
        assert list((cache / "work").iterdir()) == []
        print(f"killed after {moments} s, {index + len(moments)} of {KILLS}: same digests")
        shutil.rmtree(cache)
