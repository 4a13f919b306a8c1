from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from edgefuse.archive import pack
from edgefuse.artifact import digest_file
from edgefuse.devices import local
from edgefuse.devices.local import expand, install
from edgefuse.devices.transport import Transport
from edgefuse.errors import DeviceUnavailable, StageError, UsageError


def bundle(path: Path, weights: str | None = "sha256:1", **files: bytes) -> tuple[Path, str]:
    manifest = {} if weights is None else {"weights": weights}
    pack({"manifest.json": json.dumps(manifest).encode(), "m/a.tflite": b"model", **files}, path)
    return path, digest_file(path)


def test_module_is_a_transport() -> None:
    transport: Transport = local
    assert transport.install is install


def test_install_switches_and_keeps(tmp_path: Path) -> None:
    there = tmp_path / "board"
    one, two = bundle(tmp_path / "1.tar"), bundle(tmp_path / "2.tar", extra=b"x")
    first = install(*one, there)
    assert (first.changed, first.previous) == (True, "")
    assert (there / "current" / "m" / "a.tflite").read_bytes() == b"model"
    second = install(*two, there)
    assert (second.changed, second.previous) == (True, one[1])
    assert (there / "current").resolve() == there / "releases" / two[1]
    assert str((there / "current").readlink()) == f"releases/{two[1]}"
    assert first.release.is_dir()
    again = install(*two, there)
    assert (again.changed, again.previous) == (False, "")
    back = install(*one, there)
    assert back.changed and back.previous == two[1]
    assert {p.name for p in (there / "releases").iterdir()} == {one[1], two[1], ".lock"}


@pytest.mark.parametrize("damage", ["altered", "lost", "planted", "manifest"])
def test_a_release_that_is_not_the_bundle_is_unpacked_anew(tmp_path: Path, damage: str) -> None:
    one = bundle(tmp_path / "1.tar")
    release = install(*one, tmp_path / "board").release
    match damage:
        case "altered":
            (release / "m/a.tflite").write_bytes(b"other")
        case "lost":
            (release / "m/a.tflite").unlink()
        case "planted":
            (release / "extra").write_bytes(b"x")
        case _:
            (release / "manifest.json").write_bytes(b"{")
    again = install(*one, tmp_path / "board")
    assert again.changed and again.previous == ""
    assert {p.name for p in release.rglob("*")} == {"manifest.json", "m", "a.tflite"}
    assert (release / "m/a.tflite").read_bytes() == b"model"
    untouched(tmp_path / "board", one[1])
    assert not install(*one, tmp_path / "board").changed


def untouched(there: Path, sha256: str) -> None:
    assert str((there / "current").readlink()) == f"releases/{sha256}"
    assert {p.name for p in (there / "releases").iterdir()} == {sha256, ".lock"}
    assert {p.name for p in there.iterdir()} == {"current", "releases"}


@pytest.fixture
def there(tmp_path: Path) -> tuple[Path, str]:
    """A destination with one good release."""
    good = bundle(tmp_path / "good.tar")
    install(*good, tmp_path / "board")
    return tmp_path / "board", good[1]


def test_wrong_digest(tmp_path: Path, there: tuple[Path, str]) -> None:
    path, digest = bundle(tmp_path / "b.tar", extra=b"x" * 5000)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StageError, match=f"expected {digest}"):
        install(path, digest, there[0])
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(StageError, match=f"expected {digest}"):
        install(path, digest, there[0])
    with pytest.raises(StageError, match="no such bundle"):
        install(tmp_path / "absent.tar", digest, there[0])
    untouched(*there)


def test_truncated_archive_under_its_own_digest(tmp_path: Path, there: tuple[Path, str]) -> None:
    path, _ = bundle(tmp_path / "b.tar", extra=b"x" * 5000)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(StageError):
        install(path, digest_file(path), there[0])
    untouched(*there)


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "hard link"])
def test_escape(tmp_path: Path, there: tuple[Path, str], kind: str) -> None:
    path = tmp_path / "b.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo({"parent": "../../evil", "absolute": "/evil"}.get(kind, "evil"))
        if kind == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        if kind == "hard link":
            info.type, info.linkname = tarfile.LNKTYPE, "../../good.tar"
        info.size = 4 if info.isfile() else 0
        archive.addfile(info, io.BytesIO(b"evil"))
    with pytest.raises(StageError):
        install(path, digest_file(path), there[0])
    assert not (tmp_path / "evil").exists() and not (there[0] / "evil").exists()
    untouched(*there)


def test_random_weights_are_refused(tmp_path: Path, there: tuple[Path, str]) -> None:
    with pytest.raises(StageError, match="random weights"):
        install(*bundle(tmp_path / "r.tar", "random"), there[0])
    with pytest.raises(StageError, match="does not say"):
        install(*bundle(tmp_path / "n.tar", None), there[0])
    pack({"a": b"x"}, tmp_path / "m.tar")
    with pytest.raises(StageError, match=r"no readable manifest\.json"):
        install(tmp_path / "m.tar", digest_file(tmp_path / "m.tar"), there[0])
    untouched(*there)


KILLED = """
import os, signal, sys
from pathlib import Path
from edgefuse.devices import local
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[4] == "unpacking":
    local._check_manifest = die
else:
    local._switch = die
local.install(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
"""


@pytest.mark.parametrize("moment", ["unpacking", "switching"])
def test_killed_half_way(tmp_path: Path, there: tuple[Path, str], moment: str) -> None:
    path, digest = bundle(tmp_path / "b.tar", extra=b"x")
    code = [sys.executable, "-c", KILLED, str(path), digest, str(there[0]), moment]
    assert subprocess.run(code).returncode == -signal.SIGKILL
    assert str((there[0] / "current").readlink()) == f"releases/{there[1]}"
    assert install(path, digest, there[0]).changed
    assert str((there[0] / "current").readlink()) == f"releases/{digest}"
    names = {p.name for p in (there[0] / "releases").iterdir()}
    assert names == {there[1], digest, ".lock"}


def test_two_at_once(tmp_path: Path) -> None:
    one = bundle(tmp_path / "1.tar", extra=b"y" * 200_000)
    faults: list[Exception] = []

    def work() -> None:
        try:
            install(*one, tmp_path / "board")
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    untouched(tmp_path / "board", one[1])


def test_destination_that_cannot_be_used(tmp_path: Path) -> None:
    one = bundle(tmp_path / "1.tar")
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceUnavailable, match="cannot install"):
        install(*one, tmp_path / "file")
    (tmp_path / "board" / "current").mkdir(parents=True)
    with pytest.raises(StageError, match="in the way"):
        install(*one, tmp_path / "board")


def test_install_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    assert expand("${HOME}/a") == Path("/home/x/a") == expand("~/a")
    monkeypatch.delenv("BOARD", raising=False)
    with pytest.raises(UsageError, match="not set"):
        expand("${BOARD}/a")
    with pytest.raises(UsageError, match="not absolute"):
        expand("a/b")
