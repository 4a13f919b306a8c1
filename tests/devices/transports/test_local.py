from __future__ import annotations

from pathlib import Path

import pytest

from devices.transports.boards import make_target
from devices.transports.contract import TransportContract
from edgefuse.devices.transport import Transport, open_transport, place_of
from edgefuse.errors import UsageError


class TestLocal(TransportContract):
    @pytest.fixture
    def way(self, tmp_path: Path) -> Transport:
        return open_transport(make_target(tmp_path, "local"))


def test_install_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def place(path: str | None, transport: str = "local") -> str:
        more = {"ssh": {"host": "board"}} if transport == "ssh" else {}
        return place_of(make_target(tmp_path, transport, install_path=path, **more))

    monkeypatch.setenv("HOME", "/home/x")
    assert place("${HOME}/a") == place("~/a") == place("/home//x/a/") == "/home/x/a"
    monkeypatch.delenv("BOARD", raising=False)
    for path, why in (
        ("${BOARD}/a", "not set"),
        ("a/b", "not absolute"),
        ("/a/../b", "no plain folder"),
        ("/", "no plain folder"),
        ("/a\nb", "no plain folder"),
        (None, "has no install_path"),
    ):
        with pytest.raises(UsageError, match=why):
            place(path)
    with pytest.raises(UsageError, match="not absolute"):
        place("~/a", "ssh")
