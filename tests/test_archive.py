"""Archives: equal bytes from equal files, and nothing escapes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from edgefuse.archive import matches, pack, packed, read_members, unpack
from edgefuse.errors import StageError

MEMBERS = {"b/c.txt": b"c" * 1000, "a.txt": b"a", "empty": b""}


def test_order_and_moment_do_not_matter(tmp_path: Path) -> None:
    pack(MEMBERS, tmp_path / "1.tar")
    pack(dict(reversed(MEMBERS.items())), tmp_path / "2.tar")
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    with tarfile.open(tmp_path / "1.tar") as archive:
        infos = archive.getmembers()
    assert [i.name for i in infos] == sorted(MEMBERS)
    assert {(i.mtime, i.uid, i.gid, i.uname, i.mode) for i in infos} == {(0, 0, 0, "", 0o644)}


def test_round_trip_and_comparison(tmp_path: Path) -> None:
    source, folder = tmp_path / "a.tar", tmp_path / "out"
    pack(MEMBERS, source)
    folder.mkdir()
    assert not matches(source, folder)
    assert unpack(source, folder) == sorted(MEMBERS)
    assert {n: (folder / n).read_bytes() for n in MEMBERS} == MEMBERS
    assert matches(source, folder)
    (folder / "a.txt").write_bytes(b"b")
    assert not matches(source, folder)
    (folder / "a.txt").write_bytes(b"a")
    (folder / "more").touch()
    assert not matches(source, folder)
    assert not matches(tmp_path / "gone.tar", folder)
    assert not matches(source, tmp_path / "gone")


def test_a_folder_that_cannot_be_read_does_not_match(tmp_path: Path, monkeypatch) -> None:
    pack(MEMBERS, tmp_path / "a.tar")

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rglob", fail)
    assert not matches(tmp_path / "a.tar", tmp_path)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a\\x", ""])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StageError, match="leave the folder"):
        pack({name: b"x"}, tmp_path / "a.tar")
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    (tmp_path / "out").mkdir()
    with pytest.raises(StageError):
        unpack(tmp_path / "b.tar", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir()) and not (tmp_path / "x").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(StageError, match="'link' is not a plain file"):
        unpack(tmp_path / "a.tar", tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 600, 1200])
def test_a_part_of_an_archive_is_refused(tmp_path: Path, keep: int) -> None:
    pack(MEMBERS | {"z": b"z" * 2000}, tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:keep])
    (tmp_path / "out").mkdir()
    with pytest.raises(StageError):
        unpack(tmp_path / "b.tar", tmp_path / "out")


def archive_of(path: Path, *names: str, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.type = 1, kind
            archive.addfile(info, io.BytesIO(b"x"))
    return path


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "a"), "'a' occurs twice"),
        (("a/b", "a"), "'a' occurs twice"),
        (("a", "a/b"), "'a/b' lies in what is a file"),
        (("a", "a/b/c"), "'a/b/c' lies in what is a file"),
        (("a//b",), "not written plainly"),
        (("./a",), "not written plainly"),
        (("a\nb",), "not written plainly"),
    ],
)
def test_names_that_collide_or_hide(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(StageError, match=said):
        read_members(archive_of(tmp_path / "a.tar", *names))


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_only_plain_files(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(StageError, match="not a plain file"):
        read_members(archive_of(tmp_path / "a.tar", "a", kind=kind))


def test_members_in_memory_are_those_of_the_file(tmp_path: Path) -> None:
    pack(MEMBERS, tmp_path / "a.tar")
    assert read_members(tmp_path / "a.tar") == MEMBERS
    assert packed(MEMBERS) == (tmp_path / "a.tar").read_bytes()
