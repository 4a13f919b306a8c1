from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.transports.adbd import Adbd
from devices.transports.boards import Proxy, adb_target, free_port, make_target
from devices.transports.contract import TransportContract
from edgefuse.devices.transport import ConnectionCut, Transport, open_transport
from edgefuse.errors import DeviceUnavailable, UsageError


class TestAdb(TransportContract):
    @pytest.fixture
    def way(self, adb: None, adbds: dict[bool, Adbd]) -> Transport:
        return open_transport(adb_target(Path("/nowhere"), adbds[True].port))


class TestAdbWithATerminal(TransportContract):
    """A device without shell protocol 2: no exit codes, CR LF, one stream."""

    @pytest.fixture
    def way(self, adb: None, adbds: dict[bool, Adbd]) -> Transport:
        return open_transport(adb_target(Path("/nowhere"), adbds[False].port))


@pytest.fixture
def proxy(adbds: dict[bool, Adbd]) -> Iterator[Proxy]:
    one = Proxy(adbds[True].port)
    yield one
    one.close()


def test_nobody_there(adb: None, tmp_path: Path) -> None:
    way = open_transport(adb_target(tmp_path, free_port()))
    with pytest.raises(DeviceUnavailable, match="it cannot be reached"):
        way.run(["true"])


def test_no_such_serial(adb: None, tmp_path: Path) -> None:
    way = open_transport(make_target(tmp_path, "adb", adb={"serial": "0123456789"}))
    with pytest.raises(DeviceUnavailable, match="no such device is connected"):
        way.run(["true"])


@pytest.mark.parametrize("serial", ["-s", "a b", "a;id", "$(id)"])
def test_hostile_serials(tmp_path: Path, serial: str) -> None:
    way = open_transport(make_target(tmp_path, "adb", adb={"serial": serial}))
    with pytest.raises(UsageError, match=r"adb\.serial"):
        way.run(["true"])


def test_a_cut_while_a_command_runs(adb: None, proxy: Proxy, tmp_path: Path) -> None:
    way = open_transport(adb_target(tmp_path, proxy.port))
    assert way.run(["true"]).code == 0
    proxy.cut_after(2000, stays_down=False)
    with pytest.raises(ConnectionCut):
        way.run(["sh", "-c", "head -c 100000 /dev/zero"])
    assert way.run(["true"]).code == 0, "the next command connects anew"
    proxy.cut_after(0, stays_down=True)
    for _ in range(2):
        with pytest.raises(DeviceUnavailable):
            way.run(["true"])
    proxy.restore()
    assert way.run(["true"]).code == 0
