"""Files for a device and the launcher that checks and runs them, on a driver that is not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cuda.kernels.single import Case, Kernel, case
from edgefuse.cuda.deploy import Golden, build_launcher, check, deploy
from edgefuse.errors import DataError, StageError

COPY = Kernel(
    "pointwise", {"x": (4, 64)}, (4, 64),
    attributes={"shape": (4, 64), "views": ((0, (64, 1)),)}, label="copy",
)  # fmt: skip
ARCHITECTURES = (80, 87)


@dataclass(frozen=True)
class Deployed:
    launcher: Path
    folder: Path
    built: Case

    def run(self, *words: str, folder: Path | None = None, **settings: str) -> tuple[int, str]:
        """The exit code, and what was said: the answer, or the refusal."""
        done = subprocess.run(
            [self.launcher, folder or self.folder, *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **settings},
        )
        return done.returncode, (done.stdout or done.stderr).strip()


@pytest.fixture(scope="module")
def deployed(
    tmp_path_factory: pytest.TempPathFactory, require_tool: Callable[..., str]
) -> Deployed:
    if find_spec("triton") is None:
        pytest.skip("triton not found: pip install -c constraints.txt .[cuda]")
    folder = tmp_path_factory.mktemp("deployed")
    build_launcher(folder / "launcher", require_tool("cc"))
    built = case(COPY, "fp16")
    golden = Golden(built.inputs, {"y": built.inputs["x"]})
    told = deploy(
        built.program,
        built.weights,
        folder / "files",
        architectures=ARCHITECTURES,
        golden=[golden, golden],
        tolerance=1e-3,
        cache=folder / "cache",
    )
    assert told["launches"] == told["kernels"] == 1
    assert told["faults"] == []
    assert told["code_bytes"] >= sum(told["code_bytes_by_architecture"].values())
    return Deployed(folder / "launcher", folder / "files", built)


@pytest.fixture(scope="module")
def driver(deployed: Deployed, require_tool: Callable[..., str]) -> str:
    """The folder of a libcuda.so.1 that is none."""
    folder = deployed.folder.parent / "driver"
    folder.mkdir()
    source = Path(__file__).with_name("fake_driver.c")
    command = [require_tool("cc"), "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source]
    subprocess.run(command, check=True, timeout=60)
    return str(folder)


def test_the_plan_is_checked_without_a_driver(deployed: Deployed) -> None:
    told = check(deployed.launcher, deployed.folder)
    assert told["architectures"] == ["sm_80", "sm_87"]
    assert told["arena_bytes"] == deployed.built.program.arena.arena_bytes
    assert (told["kernels"], told["launches"], told["vectors"]) == (1, 1, 2)


def test_equal_programs_give_equal_files(deployed: Deployed, tmp_path: Path) -> None:
    golden = Golden(deployed.built.inputs, {"y": deployed.built.inputs["x"]})
    again = {"architectures": ARCHITECTURES, "golden": [golden, golden], "tolerance": 1e-3}
    built = case(COPY, "fp16")
    cache = deployed.folder.parent / "cache"
    deploy(built.program, built.weights, tmp_path, cache=cache, **again)  # type: ignore[arg-type]
    for file in deployed.folder.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def _line(text: str, start: str, change: Callable[[list[str]], list[str]]) -> str:
    """The plan with the first record of a kind changed."""
    lines = text.splitlines()
    (place, *_) = (i for i, line in enumerate(lines) if line.startswith(start))
    lines[place] = " ".join(change(lines[place].split(" ")))
    return "\n".join(lines) + "\n"


DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "cut": (lambda t: t[: len(t) // 2], "cut off|ends early"),
    "no end": (lambda t: t[: t.rindex("end")], "cut off"),
    "a line less": (lambda t: t.replace(t.splitlines()[-3] + "\n", ""), "lost lines"),
    "more after the end": (lambda t: t + "end 1\n", "goes on after its end"),
    "another version": (lambda t: t.replace("plan 1", "plan 2"), "another version"),
    "argument": (
        lambda t: _line(t, "launch", lambda f: [*f[:-2], "1024", f[-1]]),
        "beyond the end of the arena",
    ),
    "overflow": (
        lambda t: _line(t, "launch", lambda f: [*f[:-2], "9" * 16 + "84", "9" * 18]),
        "beyond the end of the arena",
    ),
    "unaligned": (lambda t: _line(t, "launch", lambda f: [*f[:-2], "8", f[-1]]), "multiple of 16"),
    "kernel": (lambda t: _line(t, "launch", lambda f: [f[0], "7", *f[2:]]), "more than 0"),
    "negative": (lambda t: _line(t, "launch", lambda f: [f[0], f[1], "-1", *f[3:]]), "no number"),
    "count": (lambda t: _line(t, "launch", lambda f: [*f[:3], "3", *f[4:]]), "ends early"),
    "weights written": (
        lambda t: _line(t, "launch", lambda f: [*f[:-3], "w", "0", "0"]), "writes to the weights"
    ),
    "input": (lambda t: _line(t, "input", lambda f: [f[0], "999999", *f[2:]]), "end of the arena"),
    "dtype": (lambda t: _line(t, "input", lambda f: [*f[:3], "float64"]), "no dtype float64"),
    "symbol": (lambda t: _line(t, "kernel", lambda f: [f[0], "other"]), "does not hold kernel"),
    "code": (lambda t: _line(t, "code 0", lambda f: [*f[:3], "64", *f[4:]]), "beyond|not hold"),
    "architecture": (lambda t: _line(t, "code 0 87", lambda f: ["kernel", "q"]), "lacks code"),
    "threads": (lambda t: _line(t, "code 0", lambda f: [*f[:5], "33", f[6]]), "no whole warps"),
    "vectors": (lambda t: t.replace("vectors 2", "vectors 3"), "does not hold 3 vectors"),
    "record": (lambda t: _line(t, "input", lambda f: ["inputs", *f[1:]]), "no record inputs"),
    "arena": (lambda t: t.replace("arena ", "arena 99999999999999999999"), "no number"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused(name: str, deployed: Deployed, tmp_path: Path) -> None:
    damage, said = DAMAGES[name]
    for file in deployed.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    plan = tmp_path / "plan.txt"
    text = damage(plan.read_text("ascii"))
    assert text != plan.read_text("ascii")
    plan.write_text(text, "ascii")
    with pytest.raises(StageError, match=said):
        check(deployed.launcher, tmp_path)
    code, _ = deployed.run(folder=tmp_path)
    assert code == 3


@pytest.mark.parametrize("name", ["weights.bin", "code.bin", "golden.bin", "plan.txt"])
def test_a_missing_or_longer_file_is_refused(name: str, deployed: Deployed, tmp_path: Path) -> None:
    for file in deployed.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"\0")
    assert deployed.run("--check", folder=tmp_path)[0] == 3
    (tmp_path / name).unlink()
    assert deployed.run("--check", folder=tmp_path)[0] == 3


def test_random_damage_never_crashes(deployed: Deployed, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for file in deployed.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("plan.txt", "code.bin") * 40:
        whole = (deployed.folder / name).read_bytes()
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 4096), 3):
            damaged[place] = rng.integers(0, 256)
        (tmp_path / name).write_bytes(bytes(damaged))
        assert deployed.run("--check", folder=tmp_path)[0] in (0, 3)
        (tmp_path / name).write_bytes(whole)


def test_golden_vectors_run(deployed: Deployed, driver: str) -> None:
    fake = {"LD_LIBRARY_PATH": driver, "FAKE_ARCHITECTURE": "86", "FAKE_COPIES": "512"}
    code, said = deployed.run("--runs", "5", **fake)
    told = json.loads(said)
    assert (code, told["passed"], told["largest_difference"]) == (0, True, 0)
    assert (told["architecture"], told["device"]) == ("sm_80", "a ?fake? GPU")
    assert (told["launches"], told["vectors"], told["runs"]) == (1, 2, 5)
    code, said = deployed.run(**{**fake, "FAKE_COPIES": "256"})
    assert (code, json.loads(said)["passed"]) == (1, False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"FAKE_INIT": "1"}, "finds no GPU"),
        ({"FAKE_COUNT": "0"}, "finds no GPU"),
        ({"FAKE_VERSION": "11040"}, "too old: it is for CUDA 11.4, 12.0 is needed"),
        ({"FAKE_ARCHITECTURE": "75"}, r"no code for this GPU \(sm_75\)"),
        ({"FAKE_ARCHITECTURE": "90"}, r"no code for this GPU \(sm_90\)"),
        ({"FAKE_MEMORY": "1000"}, "out of memory on the GPU"),
    ],
    ids=["no device", "none", "old driver", "old", "other", "memory"],
)
def test_a_device_that_cannot(
    settings: dict[str, str], said: str, deployed: Deployed, driver: str
) -> None:
    ready = {"LD_LIBRARY_PATH": driver, "FAKE_ARCHITECTURE": "87"}
    code, told = deployed.run(**{**ready, **settings})
    assert code == 4
    assert len(told.splitlines()) == 1
    assert re.search(said, told)


def test_without_a_driver(deployed: Deployed, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    code, told = deployed.run(LD_LIBRARY_PATH=str(tmp_path))
    assert code == 4
    assert told == "launcher: there is no NVIDIA driver: libcuda.so.1 cannot be loaded"


def test_wrong_usage(deployed: Deployed) -> None:
    assert deployed.run("--runs", "-1")[0] == 2
    assert deployed.run("--fast")[0] == 2


def test_a_golden_vector_of_another_shape(deployed: Deployed, tmp_path: Path) -> None:
    golden = Golden(deployed.built.inputs, {"y": np.zeros((3, 3), np.float32)})
    with pytest.raises(DataError, match="a golden vector has no 'y'"):
        deploy(
            deployed.built.program,
            deployed.built.weights,
            tmp_path,
            architectures=(80,),
            golden=[golden],
            cache=deployed.folder.parent / "cache",
        )
