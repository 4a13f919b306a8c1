from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgefuse.devices.setup import debian, foreign
from edgefuse.devices.setup.debian import Packages, make_packages, versions
from edgefuse.errors import FetchError, ToolError

WANTED = Packages("board", ("qemu-user", "libc6:armhf"), foreign="armhf", unwanted=("usr/share",))


def apt(monkeypatch: pytest.MonkeyPatch, fails: str = "", said: str = "") -> list[list[str]]:
    """An apt that has two packages; its commands."""
    commands: list[list[str]] = []

    def run(command: Sequence[str], timeout_s: float, **_: Any) -> Any:
        commands.append(list(command))
        if fails in command and fails:
            return subprocess.CompletedProcess(command, 100, said)
        if "install" in command:
            (cache,) = [w.partition("=")[2] for w in command if w.startswith("Dir::Cache::arch")]
            for name in ("qemu-user_1%3a7.2_amd64.deb", "libc6_2.36_armhf.deb"):
                (Path(cache) / name).touch()
        if "--show" in command:
            name = Path(command[-1]).name.split("_")[0]
            return subprocess.CompletedProcess(command, 0, f"{name}:any 1:7.2")
        if "--extract" in command:
            for part in ("usr/bin", "usr/share"):
                (Path(command[-1]) / part).mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(debian, "run", run)
    monkeypatch.setattr(debian, "program", lambda name, remedy: f"/usr/bin/{name}")
    return commands


def test_they_are_unpacked_once_and_their_versions_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = apt(monkeypatch)
    lines = list(make_packages(WANTED, tmp_path))
    assert lines[-1] == "board: unpacked 2 packages"
    assert versions(WANTED, tmp_path) == {"qemu-user:any": "1:7.2", "libc6:any": "1:7.2"}
    folder = WANTED.folder(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".piece.json",
        "packages.json",
        "usr",
    ]
    assert [path.name for path in (folder / "usr").iterdir()] == ["bin"]
    count = len(commands)
    assert list(make_packages(WANTED, tmp_path)) == []
    assert len(commands) == count


def test_apt_works_on_a_state_of_its_own_and_takes_nothing_unsigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = apt(monkeypatch)
    list(make_packages(WANTED, tmp_path))
    for command in commands[:2]:
        options = dict(word.split("=", 1) for word in command if "::" in word)
        for key in ("Dir::State", "Dir::State::status", "Dir::Cache", "Dir::Cache::archives"):
            assert options[key].startswith(str(tmp_path))
        assert options["APT::Get::AllowUnauthenticated"] == "false"
        assert options["Acquire::AllowInsecureRepositories"] == "false"
        assert options["APT::Architectures::"] == "armhf"
    assert "--download-only" in commands[1]


def test_a_source_that_cannot_be_read_is_told_and_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt(monkeypatch, "update", "E: Failed to fetch http://host/x  Mirror sync in progress?\n")
    lines = list(make_packages(WANTED, tmp_path))
    assert "a source could not be read" in lines[1] and "Mirror sync" in lines[1]
    assert WANTED.folder(tmp_path).is_dir()


def test_offline_is_one_message_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt(monkeypatch, "-qq", "Ign:1\nE: Failed to fetch http://host/x  Could not connect\nE: more\n")
    with pytest.raises(FetchError, match="Failed to fetch") as caught:
        list(make_packages(WANTED, tmp_path))
    assert "armhf" in caught.value.hint
    assert not WANTED.folder(tmp_path).exists()


def test_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign.shutil, "which", lambda name: None)
    with pytest.raises(ToolError, match="apt-get is not installed") as caught:
        debian.check(WANTED, tmp_path)
    assert "Debian or Ubuntu" in caught.value.hint


def test_the_real_apt_verifies_signatures(tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("apt-get not found: a Debian or Ubuntu system has it")
    source = tmp_path / "unsigned"
    source.mkdir()
    (source / "Packages").write_text("")
    listing = tmp_path / "sources.list"
    listing.write_text(f"deb file:{source} ./\n")
    state = tmp_path / "state"
    options = debian._options(state, "")
    options += ["-o", f"Dir::Etc::sourcelist={listing}", "-o", "Dir::Etc::sourceparts=/dev/null"]
    done = foreign.run(["apt-get", *options, "-qq", "update"], 60)
    assert done.returncode != 0
    assert "not signed" in done.stdout or "Release" in done.stdout
