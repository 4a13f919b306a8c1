"""The runner in C on a board, as it is for ARM: here each board starts it under emulation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from devices.transports.adbd import Adbd
from devices.transports.boards import Sshd, adb_target, make_target
from devices.transports.parcels import whole_version
from edgefuse.devices.program import Program, program_of
from edgefuse.devices.push import deployment as deployments
from edgefuse.devices.push.deployment import Deployment, opened_bundle
from edgefuse.devices.setup import board
from edgefuse.errors import DeviceUnavailable
from edgefuse.target import Target


@pytest.fixture(scope="module")
def arm(prepared: Path) -> Program:
    """What an ARM board gets over adb, under qemu; its libraries come with it, by their loader."""
    target = make_target(Path("/nowhere"), "adb", architecture="aarch64", python=None)
    try:
        program = program_of(target, prepared)
    except DeviceUnavailable as error:
        pytest.skip(f"{error.message}: edgefuse setup emu-cortex-a53")
    assert program.words[0] == "{}/ld-linux-aarch64.so.1"
    root = board.AARCH64.folder(prepared)
    libraries = f"{root}/lib/x86_64-linux-gnu:{root}/usr/lib/x86_64-linux-gnu"
    loader = [f"{root}/lib64/ld-linux-x86-64.so.2", "--library-path", libraries]
    return Program(program.files, (*loader, f"{root}/usr/bin/qemu-aarch64", *program.words))


@pytest.fixture
def ssh_target(sshd: Sshd, tmp_path: Path) -> Target:
    return sshd.target(tmp_path / "board")


@pytest.fixture
def over_adb(adb: None, adbds: dict[bool, Adbd], tmp_path: Path) -> Target:
    return adb_target(tmp_path / "board", adbds[True].port)


@pytest.mark.parametrize("way", ["ssh_target", "over_adb"])
def test_push_and_roll_back(
    way: str,
    arm: Program,
    bundles: dict[str, Path],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    starting: Callable[[Target, Path], Program] = lambda target, prepared: arm  # noqa: E731
    monkeypatch.setattr(deployments, "program_of", starting)
    told: list[str] = []
    board_ = Deployment(request.getfixturevalue(way), tell=told.append)
    first, second = list(bundles)[:2]
    for sha256 in (first, second):
        with opened_bundle(bundles[sha256], sha256) as parcel:
            assert board_.push(parcel).current == sha256
    assert board_.rollback().current == first == whole_version(tmp_path / "board", bundles)
    assert sum("bit-exact" in line for line in told) == 3
    assert sum("uploading libLiteRt.so" in line for line in told) == 1, "it goes over once"
    shutil.rmtree(tmp_path / "board")
