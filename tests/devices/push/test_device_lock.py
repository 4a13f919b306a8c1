"""The lock on a device: dead holders are told from slow ones, without clocks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.transports.boards import make_target
from devices.transports.faults import quick_leases
from edgefuse.devices.push.device_lock import GUARD, LOST, Owner, locked, this_owner
from edgefuse.devices.transport import Transport, open_transport, script
from edgefuse.errors import DeviceUnavailable


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick_leases(0.6, 0.1):
        yield


@pytest.fixture
def way(tmp_path: Path) -> Transport:
    return open_transport(make_target(tmp_path, "local"))


def hold(root: Path, text: str) -> None:
    (root / ".lock").symlink_to(text)


def test_it_is_there_and_goes(way: Transport, tmp_path: Path) -> None:
    with locked(way, str(tmp_path), "boot", wait_s=0) as lock:
        assert str((tmp_path / ".lock").readlink()) == lock.owner
        time.sleep(0.4)
        assert int(str((tmp_path / ".beat").readlink())) >= 1, "it is renewed"
        assert script(way, GUARD, str(tmp_path), lock.owner).code == 0
        assert script(way, GUARD, str(tmp_path), "somebody else").code == LOST
    assert not list(tmp_path.iterdir())


def test_one_that_is_alive_is_waited_for(way: Transport, tmp_path: Path) -> None:
    held, done = threading.Event(), threading.Event()

    def other() -> None:
        with locked(way, str(tmp_path), "boot", wait_s=0):
            held.set()
            done.wait(5)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(5)
    with (
        pytest.raises(DeviceUnavailable, match="another push holds the lock"),
        locked(way, str(tmp_path), "boot", wait_s=1.5),
    ):
        pass
    threading.Timer(0.3, done.set).start()
    told: list[str] = []
    with locked(way, str(tmp_path), "boot", wait_s=10, tell=told.append):
        assert told and "waiting" in told[0] and not any("breaking" in line for line in told)
    thread.join()


def test_one_of_another_boot_is_broken_at_once(way: Transport, tmp_path: Path) -> None:
    hold(tmp_path, this_owner("yesterday").text)
    start = time.monotonic()
    with locked(way, str(tmp_path), "today", wait_s=0):
        assert time.monotonic() - start < 0.5
    assert not list(tmp_path.iterdir())


def test_one_whose_process_ended_is_broken_at_once(way: Transport, tmp_path: Path) -> None:
    code = (
        "from edgefuse.devices.push.device_lock import this_owner; print(this_owner('boot').text)"
    )
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Owner(text).is_dead_here() and not this_owner("boot").is_dead_here()
    hold(tmp_path, text)
    start = time.monotonic()
    with locked(way, str(tmp_path), "boot", wait_s=0):
        assert time.monotonic() - start < 0.5


def test_one_that_is_silent_is_broken_after_its_lease(way: Transport, tmp_path: Path) -> None:
    hold(tmp_path, "1|boot|elsewhere|77-88|a@b")
    start = time.monotonic()
    with locked(way, str(tmp_path), "boot", wait_s=0):
        assert 0.6 < time.monotonic() - start < 5


@pytest.mark.parametrize("text", ["", "|||", "1|boot|x|y", "; rm -rf /", "a" * 200, "../../etc"])
def test_odd_owners(way: Transport, tmp_path: Path, text: str) -> None:
    if text:
        hold(tmp_path, text)
    assert Owner(text).who and "|" not in Owner(text).who
    with locked(way, str(tmp_path), "boot", wait_s=0):
        pass


@pytest.mark.parametrize("stamp", [1, 4_000_000_000])
def test_clocks_do_not_matter(way: Transport, tmp_path: Path, stamp: int) -> None:
    hold(tmp_path, this_owner("boot").text)
    (tmp_path / ".beat").symlink_to(str(stamp))
    for link in (".lock", ".beat"):
        os.utime(tmp_path / link, (stamp, stamp), follow_symlinks=False)
    start = time.monotonic()
    with locked(way, str(tmp_path), "boot", wait_s=0):
        assert 0.6 < time.monotonic() - start < 5, "neither old enough nor from the future"


def test_a_folder_that_cannot_hold_it(way: Transport, tmp_path: Path) -> None:
    with (
        pytest.raises(Exception, match="cannot lock"),
        locked(way, str(tmp_path / "absent"), "boot", wait_s=0),
    ):
        pass
