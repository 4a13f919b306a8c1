"""What every transport must do. A test module inherits :class:`TransportContract`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from edgefuse.devices import transport as transports
from edgefuse.devices.transport import BLOCK, Transport, digest_there, put, script
from edgefuse.errors import DeviceUnavailable, EdgefuseError, StageError, UsageError

WORDS = [
    "plain", "with space", "", "'single'", '"double"', "$HOME", "`id`", "$(id)", ";id", "a;b&c|d",
    "-n", "--", "\\n", "*", "~", "line\nbreak", "tab\tbed", "ümlaut 漢字", "!bang", "#hash",
]  # fmt: skip


class TransportContract:
    """Needs a fixture ``way``: a transport to this very machine."""

    def test_words_arrive_as_they_are(self, way: Transport) -> None:
        done = script(way, 'for word; do printf "%s\\037" "$word"; done', *WORDS)
        assert done.code == 0 and done.text.split("\x1f")[:-1] == WORDS

    def test_a_null_is_refused(self, way: Transport) -> None:
        with pytest.raises(UsageError, match="NUL"):
            way.run(["echo", "a\0b"])

    @pytest.mark.parametrize("code", [0, 1, 9, 126, 255])
    def test_exit_codes(self, way: Transport, code: int) -> None:
        assert way.run(["sh", "-c", f"exit {code}"]).code == code

    def test_no_such_program(self, way: Transport) -> None:
        done = way.run(["edgefuse-no-such-program"])
        assert done.code == 127 and "not found" in done.err + done.text

    def test_streams(self, way: Transport) -> None:
        done = way.run(["sh", "-c", "echo out; echo err >&2; printf last"])
        both = done.text + done.err
        assert done.text.startswith("out") and "last" in done.text and "err" in both

    def test_an_empty_answer_is_an_answer(self, way: Transport) -> None:
        assert way.run(["true"]).out == b""

    def test_what_takes_too_long_is_unavailable(self, way: Transport) -> None:
        with pytest.raises(DeviceUnavailable, match=r"within 0\.5 s"):
            way.run(["sleep", "5"], timeout_s=0.5)

    def test_files(self, way: Transport, tmp_path: Path) -> None:
        data = os.urandom(3 * BLOCK + 17) + b"\r\n\n\r"
        source, there = tmp_path / "source", tmp_path / "it's; a $file"
        source.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        assert put(way, source, str(there), digest) == len(data)
        assert there.read_bytes() == data == way.read(str(there), len(data))
        assert digest_there(way, str(there)) == digest
        with pytest.raises(StageError, match="longer than"):
            way.read(str(there), len(data) - 1)
        with pytest.raises(StageError):
            way.read(str(tmp_path / "absent"), 10)
        source.write_bytes(b"")
        put(way, source, str(tmp_path / "empty"), hashlib.sha256(b"").hexdigest())
        assert (tmp_path / "empty").read_bytes() == b""

    @pytest.mark.parametrize("arrived", [0, 5, BLOCK, 2 * BLOCK + 5, 3 * BLOCK])
    def test_a_transfer_goes_on(self, way: Transport, tmp_path: Path, arrived: int) -> None:
        data = os.urandom(3 * BLOCK + 17)
        (tmp_path / "source").write_bytes(data)
        (tmp_path / "there").write_bytes(data[:arrived])
        digest = hashlib.sha256(data).hexdigest()
        sent = put(way, tmp_path / "source", str(tmp_path / "there"), digest)
        assert sent == len(data) - arrived // BLOCK * BLOCK
        assert (tmp_path / "there").read_bytes() == data

    @pytest.mark.parametrize("there", ["other", "longer", "changed"])
    def test_another_file_is_in_the_way(self, way: Transport, tmp_path: Path, there: str) -> None:
        data = os.urandom(2 * BLOCK + 17)
        held = {"other": b"x" * BLOCK, "longer": data * 2, "changed": b"x" + data[1:]}[there]
        (tmp_path / "source").write_bytes(data)
        (tmp_path / "there").write_bytes(held)
        told: list[str] = []
        digest = hashlib.sha256(data).hexdigest()
        put(way, tmp_path / "source", str(tmp_path / "there"), digest, told.append)
        assert (tmp_path / "there").read_bytes() == data

    def test_a_place_that_cannot_be_written(self, way: Transport, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"data")
        with pytest.raises(EdgefuseError):
            way.write(tmp_path / "source", str(tmp_path / "absent" / "file"), 0)

    def test_a_full_disk(self, way: Transport, tmp_path: Path, full_disk: Path) -> None:
        (tmp_path / "source").write_bytes(os.urandom(1 << 20))
        with pytest.raises(DeviceUnavailable, match="no space left on the device"):
            way.write(tmp_path / "source", str(full_disk / "file"), 0)

    def test_it_can_be_opened_by_name(self) -> None:
        assert sorted(transports.TRANSPORTS.all()) == ["adb", "local", "ssh"]
