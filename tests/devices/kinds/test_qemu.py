"""Boards under emulation: the board's own libraries, compared with this machine's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.devices.device import Place
from edgefuse.devices.kinds.qemu import Qemu, needs
from edgefuse.errors import DataError, DeviceUnavailable, RecipeError, StageError
from edgefuse.target import Target, load_target
from edgefuse.tflite.read import read_model, signature_of
from edgefuse.tflite.runtime import open_model

TARGETS = Path(__file__).parents[3] / "targets"
Open = Callable[..., Qemu]


def board(name: str, **changes: Any) -> Target:
    return load_target(str(TARGETS / f"{name}.yaml")).model_copy(update=changes)


@pytest.fixture
def play(tmp_path: Path, prepared: Path) -> Open:
    """``play(name, **changes)`` is the device of a target; skips when it is not set up."""

    def opened(name: str, **changes: Any) -> Qemu:
        target = board(name, **changes)
        if not all(needs(target, prepared).values()):
            pytest.skip(f"{name} is not set up: edgefuse setup {name}")
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return Qemu(target, Place(work, tmp_path / "log", prepared))

    return opened


def feeds_of(model: Path, count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    feeds = []
    for _ in range(count):
        feed = {}
        for spec in signature_of(read_model(model)).inputs:
            normal = rng.standard_normal(spec.shape).astype(np.float32)
            integers = rng.integers(-128, 128, spec.shape, np.int8)
            feed[spec.name] = normal if spec.dtype == "float32" else integers
        feeds.append(feed)
    return feeds


def assert_as_here(device: Qemu, model: Path, kernels: Any, runtime: Any = "litert") -> None:
    feeds = feeds_of(model, 5)
    host = open_model(model, runtime, 1, kernels)
    outputs = list(device.outputs(model, feeds))
    for feed, got in zip(feeds, outputs, strict=True):
        for name, value in host.run(feed).items():
            assert got[name].dtype == value.dtype
            np.testing.assert_array_equal(got[name], value)


@pytest.mark.parametrize("name", ["emu-cortex-a53", "emu-cortex-a76"])
def test_int8_is_bit_identical_to_xnnpack_here(
    play: Open, files: tuple[Path, Path], name: str
) -> None:
    device = play(name)
    assert device.provenance == "measured"
    assert_as_here(device, files[1], "default")


def test_reference_kernels_are_bit_identical(play: Open, files: tuple[Path, Path]) -> None:
    assert_as_here(play("emu-cortex-a53", kernels="reference"), files[1], "reference")


def test_armv7_reference_kernels_are_bit_identical(play: Open, files: tuple[Path, Path]) -> None:
    device = play("emu-armv7", kernels="reference")
    assert_as_here(device, files[1], "reference", "tflite_runtime")


def test_float_is_close(play: Open, files: tuple[Path, Path]) -> None:
    feeds = feeds_of(files[0], 2)
    host = open_model(files[0])
    for feed, got in zip(feeds, play("emu-cortex-a53").outputs(files[0], feeds)):
        for name, value in host.run(feed).items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)


def test_counts_are_the_same_in_five_of_five(play: Open, files: tuple[Path, Path]) -> None:
    device = play("emu-cortex-a53")
    feed = feeds_of(files[1], 1)
    costs = [device.cost(files[1:], feed, processes=3, rounds=9) for _ in range(5)]
    assert len({cost.rows for cost in costs}) == 1
    assert len({cost.operators for cost in costs}) == 1
    first = costs[0]
    assert (first.unit, first.provenance) == ("instructions", "emulated-count")
    assert first.conditions["exact"] is True
    (((count,),),) = first.rows
    assert 1_000 < sum(first.operators[0]) <= count
    assert len(first.conditions["operators"][0]) == len(first.operators[0])
    assert str(first.conditions["emulator"]).startswith("qemu-user ")


def test_another_cpu_takes_other_kernels_and_models_are_counted_apart(
    play: Open, files: tuple[Path, Path]
) -> None:
    feeds = [feeds_of(files[0], 1)[0], feeds_of(files[1], 1)[0]]
    a53 = play("emu-cortex-a53").cost(files, feeds, processes=1, rounds=1).rows
    a76 = play("emu-cortex-a76").cost(files, feeds, processes=1, rounds=1).rows
    assert a53[1] != a76[1]
    assert a53[0] != a53[1]
    alone = play("emu-cortex-a53").cost(files[1:], feeds[1:], processes=1, rounds=1).rows
    assert alone[0] == a53[1]


def test_without_xnnpack_the_operators_are_the_files(play: Open, files: tuple[Path, Path]) -> None:
    device = play("emu-cortex-a53", kernels="reference")
    cost = device.cost(files[1:], feeds_of(files[1], 1), processes=1, rounds=1)
    codes = [operator.code for operator in read_model(files[1]).operators]
    assert cost.conditions["operators"] == [codes]
    assert len(cost.operators[0]) == len(codes) and all(count > 0 for count in cost.operators[0])


def test_the_arena_is_the_boards(play: Open, files: tuple[Path, Path]) -> None:
    arena, provenance = play("emu-cortex-a53").arena(files[1])
    assert provenance == "measured"
    assert arena.lower_bound_bytes <= arena.measured_bytes < 4 * arena.lower_bound_bytes


def test_a_model_that_the_runtime_refuses(
    play: Open, files: tuple[Path, Path], tmp_path: Path
) -> None:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(files[1].read_bytes()))
    model.operatorCodes[0].version = 99
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    newer = tmp_path / "newer version.tflite"
    newer.write_bytes(bytes(builder.Output()))
    with pytest.raises(
        StageError, match=r"refuses newer version\.tflite: .*version '99'"
    ) as caught:
        list(play("emu-cortex-a53").outputs(newer, feeds_of(files[1], 1)))
    assert caught.value.message.startswith("emu-cortex-a53: ")


def test_a_feed_that_does_not_fit(play: Open, files: tuple[Path, Path]) -> None:
    with pytest.raises(DataError):
        list(play("emu-cortex-a53").outputs(files[1], [{"other": np.zeros(1)}]))


def test_a_target_that_is_not_set_up(files: tuple[Path, Path], tmp_path: Path) -> None:
    target = board("emu-cortex-a53")
    assert not any(needs(target, tmp_path).values())
    device = Qemu(target, Place(tmp_path, tmp_path / "log", tmp_path / "absent"))
    with pytest.raises(DeviceUnavailable) as caught:
        list(device.outputs(files[1], feeds_of(files[1], 1)))
    assert caught.value.hint == "edgefuse setup emu-cortex-a53"
    with pytest.raises(DeviceUnavailable):
        device.cost(files[1:], feeds_of(files[1], 1), processes=1, rounds=1)


@pytest.mark.parametrize("changes", [{"runtime_version": "2.3.0"}, {"runtime": "tflite_runtime"}])
def test_another_runtime_than_there_is(tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match=r"has ai-edge-litert 2\.1\.0 only"):
        needs(board("emu-cortex-a53", **changes), tmp_path)


def test_a_cpu_that_the_emulator_has_not(play: Open, files: tuple[Path, Path]) -> None:
    emulator = board("emu-cortex-a53").emulator
    assert emulator is not None
    device = play("emu-cortex-a53", emulator=emulator.model_copy(update={"cpu": "cortex-z1"}))
    with pytest.raises(RecipeError, match="no CPU called 'cortex-z1'") as caught:
        list(device.outputs(files[1], feeds_of(files[1], 1)))
    assert "cortex-a53" in caught.value.hint


def test_emulators_end_with_the_process_that_started_them(play: Open, tmp_path: Path) -> None:
    """Killed, it cannot stop them itself."""
    device = play("emu-cortex-a53")
    command = device._command(False)
    # The emulator is replaced by something that would go on: what comes before it is as it is.
    start = [*command[: command.index("-R") + 1], "sleep", "60"]
    script = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:])\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9) if sys.stdin.read() == '' else None\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *start],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        pid = int(parent.stdout.readline())
        until = time.monotonic() + 10
        while b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes()[:5]:
            assert time.monotonic() < until
            time.sleep(0.02)
        parent.stdin.close()
        parent.wait()
    while _runs(pid):
        assert time.monotonic() < until
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
