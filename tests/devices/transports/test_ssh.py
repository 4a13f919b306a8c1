from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.transports.boards import Proxy, Sshd, free_port, make_target
from devices.transports.contract import TransportContract
from edgefuse.devices.transport import ConnectionCut, Transport, open_transport, put
from edgefuse.errors import DeviceUnavailable, UsageError


@pytest.fixture(scope="module")
def connected(sshd: Sshd) -> Transport:
    return open_transport(sshd.target(Path("/nowhere")))


class TestSsh(TransportContract):
    @pytest.fixture
    def way(self, connected: Transport) -> Transport:
        return connected


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[Proxy]:
    one = Proxy(sshd.port)
    yield one
    one.close()


def test_a_wrong_host_key(sshd: Sshd, tmp_path: Path) -> None:
    known = sshd.known_hosts(sshd.port, "other_host")
    kept = known.read_text()
    way = open_transport(sshd.target(tmp_path, known_hosts=str(known)))
    with pytest.raises(DeviceUnavailable, match="its host key is not the one") as raised:
        way.run(["true"])
    assert "known_hosts" in raised.value.hint and known.read_text() == kept


def test_an_unknown_host_key_is_never_learnt(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.touch()
    way = open_transport(sshd.target(tmp_path, known_hosts=str(known)))
    with pytest.raises(DeviceUnavailable, match="host key"):
        way.run(["true"])
    assert known.read_text() == ""


def test_a_refused_key(sshd: Sshd, tmp_path: Path) -> None:
    way = open_transport(sshd.target(tmp_path, identity_file=str(sshd.keys / "stranger")))
    with pytest.raises(DeviceUnavailable, match="it refuses the key") as raised:
        way.run(["true"])
    assert "authorized_keys" in raised.value.hint


def test_a_private_key_that_others_may_read(sshd: Sshd, tmp_path: Path) -> None:
    key = Path(shutil.copy(sshd.keys / "user", tmp_path / "key"))
    key.chmod(0o644)
    way = open_transport(sshd.target(tmp_path, identity_file=str(key)))
    with pytest.raises(DeviceUnavailable, match="it refuses the key"):
        way.run(["true"])


def test_nobody_there(sshd: Sshd, tmp_path: Path) -> None:
    way = open_transport(sshd.target(tmp_path, port=free_port()))
    with pytest.raises(DeviceUnavailable, match="it cannot be reached"):
        way.run(["true"])


def test_no_such_name(sshd: Sshd, tmp_path: Path) -> None:
    way = open_transport(sshd.target(tmp_path, host="no-such-host.invalid"))
    with pytest.raises(DeviceUnavailable, match="its name cannot be resolved"):
        way.run(["true"])


@pytest.mark.parametrize(
    "ssh",
    [
        {"host": "-oProxyCommand=id"},
        {"host": "a b"},
        {"host": "a;id"},
        {"host": "$(id)"},
        {"host": "h", "user": "-x"},
        {"host": "h", "user": "a b"},
        {"host": "h", "identity_file": "/no/such/key"},
        {"host": "h", "known_hosts": "/no/such/file"},
    ],
)
def test_hostile_or_absent_settings(tmp_path: Path, ssh: dict[str, str]) -> None:
    way = open_transport(make_target(tmp_path, "ssh", ssh=ssh))
    with pytest.raises(UsageError, match=r"ssh\."):
        way.run(["true"])


def test_a_host_out_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOARD", "box.example")
    target = make_target(tmp_path, "ssh", ssh={"host": "${BOARD}", "user": "pi", "port": 2222})
    assert open_transport(target).where == "ssh://pi@box.example:2222"


def test_a_cut_while_a_command_runs(sshd: Sshd, proxy: Proxy, tmp_path: Path) -> None:
    way = open_transport(sshd.target(tmp_path, port=proxy.port))
    assert way.run(["true"]).code == 0
    proxy.cut_after(2000, stays_down=False)
    with pytest.raises(ConnectionCut, match="the connection was cut"):
        way.run(["sh", "-c", "head -c 100000 /dev/zero"])
    assert way.run(["true"]).code == 0, "the next command connects anew"


def test_a_transfer_survives_a_cut(sshd: Sshd, proxy: Proxy, tmp_path: Path) -> None:
    import hashlib
    import os

    data = os.urandom(8_000_000)
    (tmp_path / "source").write_bytes(data)
    way = open_transport(sshd.target(tmp_path, port=proxy.port))
    way.run(["true"])
    proxy.cut_after(7_000_000, stays_down=False)
    told: list[str] = []
    digest = hashlib.sha256(data).hexdigest()
    put(way, tmp_path / "source", str(tmp_path / "there"), digest, told.append)
    assert (tmp_path / "there").read_bytes() == data and proxy.cuts == 1
    assert any("going on at byte" in line for line in told), told
