from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devices.transports.adbd import Adbd
from devices.transports.boards import Sshd, private_adb, running_sshd
from devices.transports.parcels import make_bundle, tiny_model


@pytest.fixture(scope="session")
def sshd(
    require_tool: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sshd]:
    """A real sshd on the loopback."""
    program = require_tool("sshd", "sshd", "/usr/sbin/sshd")
    with running_sshd(program, tmp_path_factory.mktemp("sshd")) as one:
        yield one


@pytest.fixture(scope="session")
def adb_server(
    require_tool: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The real adb client's server, private to these tests."""
    require_tool("adb")
    with private_adb(tmp_path_factory.mktemp("adb")) as environment:
        yield environment


@pytest.fixture
def adb(adb_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in adb_server.items():
        monkeypatch.setenv(key, value)


@pytest.fixture(scope="session")
def adbds() -> Iterator[dict[bool, Adbd]]:
    """Devices for adb by whether they have shell protocol 2."""
    made = {modern: Adbd(shell_v2=modern) for modern in (True, False)}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three small bundles by SHA-256."""
    folder = tmp_path_factory.mktemp("bundles")
    model = tiny_model(folder)
    made = [make_bundle(folder / f"{n}.bundle.tar", model, n, padding=200_000) for n in (1, 2, 3)]
    return {sha256: path for path, sha256 in made}


@pytest.fixture(scope="session")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 64 KiB in memory; only root may make one."""
    if os.geteuid() != 0:
        pytest.xfail("a small file system needs root")
    folder = tmp_path_factory.mktemp("disk")
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "edgefuse-test", str(folder)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.xfail("this container may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
