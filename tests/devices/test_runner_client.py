from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgefuse.devices.runner_client import SOURCES, Completed, Runner, last_line
from edgefuse.errors import DataError, DeviceUnavailable, EdgefuseError, StageError, ToolError
from edgefuse.tflite.read import read_model, signature_of
from edgefuse.tflite.runtime import open_model


class HostStart:
    """Plays the runner with this machine's interpreter, from the files alone."""

    def __init__(self, code: int = 0, stderr: bytes = b"", stdout: bytes | None = None) -> None:
        self.code, self.stderr, self.stdout = code, stderr, stdout
        self.arguments: list[str] = []

    def __call__(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        send: Sequence[str],
        fetch: Sequence[str],
        timeout_s: float,
    ) -> Completed:
        self.arguments = list(arguments)
        assert all((folder / name).is_file() for name in send)
        if self.code or self.stdout is not None:
            return Completed(self.code, self.stdout or b"", self.stderr)
        model = open_model(folder / "model0.tflite")
        (spec,) = model.signature.inputs
        raw = np.frombuffer((folder / "feeds0.raw").read_bytes(), spec.dtype)
        results = [model.run({spec.name: part}) for part in raw.reshape(-1, *spec.shape)]
        if fetch:
            data = b"".join(value.tobytes() for one in results for value in one.values())
            (folder / fetch[0]).write_bytes(data)
        sizes = [{"bytes": value.nbytes} for value in results[0].values()]
        told = {"runner": 1, "version": "9", "xnnpack": True, "times_ns": [5] * len(results)}
        told |= {"models": [{"outputs": sizes}], "peak_rss_bytes": 1}
        return Completed(0, json.dumps(told).encode(), b"")


def feeds_of(model: Path, count: int) -> list[dict[str, np.ndarray]]:
    (spec,) = signature_of(read_model(model)).inputs
    rng = np.random.default_rng(0)
    return [{spec.name: rng.integers(-128, 128, spec.shape, np.int8)} for _ in range(count)]


def test_feeds_go_and_outputs_come_back_in_order(files: tuple[Path, Path], tmp_path: Path) -> None:
    start = HostStart()
    feeds = feeds_of(files[1], 3)
    outputs = Runner(start, "board", "builtin", 2).outputs(files[1], feeds, tmp_path / "run")
    host = open_model(files[1])
    for feed, got in zip(feeds, outputs, strict=True):
        wanted = host.run(feed)
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            assert got[name].dtype == value.dtype
            np.testing.assert_array_equal(got[name], value)
    assert start.arguments[:4] == ["--kernels", "builtin", "--threads", "2"]
    assert start.arguments[4:] == ["model0.tflite", "feeds0.raw", "outputs0.raw"]


def test_several_models_in_one_process(files: tuple[Path, Path], tmp_path: Path) -> None:
    start = HostStart()
    (feed,) = feeds_of(files[1], 1)
    Runner(start, "board").invoke(
        [files[1], files[1]], [feed, feed], tmp_path, order=[0, 1, 0], warmup=2, flags=["--marks"]
    )
    text = " ".join(start.arguments)
    assert "--warmup 2 --seconds 0 --marks --order 0,1,0" in text
    assert text.endswith("model0.tflite feeds0.raw - model1.tflite feeds1.raw -")


def test_without_feeds_nothing_is_started(files: tuple[Path, Path], tmp_path: Path) -> None:
    start = HostStart(code=3)
    assert Runner(start, "board").outputs(files[1], [], tmp_path) == []
    assert start.arguments == []


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (2, ToolError, "code 2: unknown option"),
        (3, ToolError, "code 3: unknown option"),
        (4, DeviceUnavailable, "unknown option"),
        (5, StageError, "unknown option"),
        (6, StageError, "unknown option"),
        (7, ToolError, "code 7"),
        (139, StageError, "killed by signal 11 while it ran int8.tflite"),
    ],
)
def test_how_it_ended(
    files: tuple[Path, Path], tmp_path: Path, code: int, kind: type[EdgefuseError], text: str
) -> None:
    start = HostStart(code, b"INFO: chatter\nedgefuse-runner: unknown option\nINFO: more\n")
    with pytest.raises(kind, match="board: ") as caught:
        Runner(start, "board").outputs(files[1], feeds_of(files[1], 1), tmp_path)
    assert text in caught.value.message


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'{"runner": 2}', b"\xff\xfe"])
def test_an_answer_that_cannot_be_read(
    files: tuple[Path, Path], tmp_path: Path, answer: bytes
) -> None:
    with pytest.raises(ToolError, match="answer cannot be read"):
        Runner(HostStart(stdout=answer), "board").outputs(files[1], feeds_of(files[1], 1), tmp_path)


def test_a_feed_that_does_not_fit(files: tuple[Path, Path], tmp_path: Path) -> None:
    (feed,) = feeds_of(files[1], 1)
    ((name, value),) = feed.items()
    runner = Runner(HostStart(), "board")
    for wrong in ({name: value[:, :-1]}, {"other": value}, {}, {name: value.astype(np.int16)}):
        with pytest.raises(DataError):
            runner.outputs(files[1], [wrong], tmp_path)


def test_the_last_line_without_chatter() -> None:
    assert last_line(b"") == "it said nothing"
    assert last_line(b"INFO: a\nfault\nWARNING: b\n") == "fault"
    assert last_line(b"edgefuse-runner: why\nqemu: uncaught target signal 6\n") == "why"


@pytest.fixture(scope="module")
def runner(require_tool: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, built for this machine, whose libraries do not hold the C API."""
    output = tmp_path_factory.mktemp("runner") / "edgefuse-runner"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]
    source = str(SOURCES / "runner.c")
    subprocess.run(
        [require_tool("cc"), *flags, "-o", str(output), source, "-ldl"], check=True, timeout=60
    )
    return output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "--runtime LIBRARY is missing"),
        (["--runtime"], 2, "--runtime takes a value"),
        (["--runtime", "x"], 2, "give MODEL FEEDS OUTPUTS for each model"),
        (["--runtime", "x", "a", "b"], 2, "give MODEL FEEDS OUTPUTS for each model"),
        (["--what", "1"], 2, "unknown option --what"),
        (["--threads", "0"], 2, "--threads takes a number from 1 to 1024, not 0"),
        (["--threads", "2x"], 2, "--threads takes a number from 1 to 1024, not 2x"),
        (["--runtime", "x", "--kernels", "fast"], 2, "--kernels is default, builtin or reference"),
        (["--runtime", "/absent.so", "a", "b", "c"], 4, "the runtime cannot be loaded"),
        (["--runtime", "libm.so.6", "a", "b", "c"], 4, "libm.so.6 has no TfLiteVersion"),
    ],
)
def test_the_program_refuses_in_one_line(
    runner: Path, arguments: list[str], code: int, said: str
) -> None:
    done = subprocess.run([runner, *arguments], capture_output=True, text=True, timeout=10)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("edgefuse-runner: ") and done.stderr.count("\n") == 1
    assert said in done.stderr
