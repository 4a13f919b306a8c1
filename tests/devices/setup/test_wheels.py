from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgefuse.devices.setup import wheels
from edgefuse.devices.setup.wheels import Wheel, make_wheel
from edgefuse.errors import FetchError


def archive(path: Path, members: dict[str, str]) -> str:
    with zipfile.ZipFile(path, "w") as stream:
        for name, text in members.items():
            stream.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def index(monkeypatch: pytest.MonkeyPatch, file: Path | None, said: str = "") -> list[list[str]]:
    """An index with one file, or with none; the commands that it was asked with."""
    asked: list[list[str]] = []

    def run(command: Sequence[str], timeout_s: float, **_: Any) -> Any:
        asked.append(list(command))
        if file is not None:
            folder = Path(command[command.index("-d") + 1])
            folder.mkdir()
            (folder / file.name).write_bytes(file.read_bytes())
        return subprocess.CompletedProcess(command, 0 if file else 1, said)

    monkeypatch.setattr(wheels, "run", run)
    return asked


def test_it_is_downloaded_for_its_platform_checked_and_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = archive(tmp_path / "a-1-any.whl", {"a/lib.so": "library", "a/notes": "unwanted"})
    asked = index(monkeypatch, tmp_path / "a-1-any.whl")
    wheel = Wheel("a", "1", "manylinux_2_27_aarch64", sha256, "3.11")
    lines = list(make_wheel(wheel, tmp_path, keep=lambda name: not name.endswith("notes")))
    assert lines == ["a 1: downloading", "a 1: unpacked"]
    assert asked[0][-1] == "a==1"
    assert asked[0][asked[0].index("--platform") + 1] == "manylinux_2_27_aarch64"
    assert asked[0][asked[0].index("--python-version") + 1] == "3.11"
    found = sorted(p.name for p in wheel.folder(tmp_path).rglob("*") if p.is_file())
    assert found == [".piece.json", "lib.so"]
    assert list(make_wheel(wheel, tmp_path)) == []
    assert len(asked) == 1


def test_other_bytes_than_pinned_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "a-1-any.whl", {"a": "other"})
    index(monkeypatch, tmp_path / "a-1-any.whl")
    wheel = Wheel("a", "1", "any", "0" * 64)
    with pytest.raises(FetchError, match="expected 0000"):
        list(make_wheel(wheel, tmp_path))
    assert not wheel.folder(tmp_path).exists()


@pytest.mark.parametrize("member", ["../outside", "/outside", "a/../../outside", "a\\..\\b"])
def test_no_member_is_written_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str
) -> None:
    sha256 = archive(tmp_path / "a-1-any.whl", {member: "x"})
    index(monkeypatch, tmp_path / "a-1-any.whl")
    with pytest.raises(FetchError, match="would write outside"):
        list(make_wheel(Wheel("a", "1", "any", sha256), tmp_path / "prepared"))
    assert not list(tmp_path.rglob("outside"))


def test_offline_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Looking\nERROR: Could not find a version for a==1 from https://me:secret@host/x\n"
    index(monkeypatch, None, said)
    with pytest.raises(FetchError) as caught:
        list(make_wheel(Wheel("a", "1", "any", "0" * 64), tmp_path))
    assert "Could not find a version" in caught.value.message
    assert "secret" not in caught.value.message
