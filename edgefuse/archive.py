"""Deterministic tar archives: equal files give equal bytes, and nothing escapes on unpacking.

POSIX ustar, uncompressed, entries sorted by name, owner 0, mode 0644, time stamp 0: no property
of the machine or the moment enters.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from edgefuse.errors import StageError

_AGAIN = "copy it again, or run the recipe that made it"


def pack(members: Mapping[str, bytes], destination: Path) -> None:
    """Write an archive of the members (name -> bytes)."""
    with destination.open("wb") as stream:
        _pack(members, stream)


def packed(members: Mapping[str, bytes]) -> bytes:
    """The bytes that :func:`pack` writes."""
    stream = io.BytesIO()
    _pack(members, stream)
    return stream.getvalue()


def _pack(members: Mapping[str, bytes], stream: IO[bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(members):
            _checked(name)
            info = tarfile.TarInfo(name)
            info.size = len(members[name])
            info.mode = 0o644
            archive.addfile(info, io.BytesIO(members[name]))


def unpack(source: Path, folder: Path) -> list[str]:
    """Unpack plain files into an existing folder; returns their names.

    Raises:
        StageError: not a whole archive, or a member that is no plain file inside the folder.
    """
    names = []
    for name, data in _members(source):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        names.append(name)
    return names


def read_members(source: Path) -> dict[str, bytes]:
    """Every member's bytes by name, in the archive's order.

    Raises:
        StageError: as :func:`unpack`.
    """
    return dict(_members(source))


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    where = str(source)
    files: set[str] = set()
    folders: set[str] = set()
    try:
        if not _ends(source):
            raise StageError("not a whole archive: its end is missing", where=where, hint=_AGAIN)
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                if not member.isreg() or member.issparse():
                    raise StageError(f"{member.name!r} is not a plain file", where=where)
                _checked(member.name, where)
                _alone(member.name, files, folders, where)
                stream = archive.extractfile(member)
                data = stream.read() if stream is not None else b""
                if len(data) != member.size:
                    raise StageError(f"{member.name!r} is cut short", where=where)
                yield member.name, data
    except tarfile.TarError as error:
        raise StageError(f"not a whole archive: {error}", where=where, hint=_AGAIN) from None


def _alone(name: str, files: set[str], folders: set[str], where: str) -> None:
    """Refuse a second member of a name, and a file where another member needs a folder."""
    parents = {parent.as_posix() for parent in PurePosixPath(name).parents}
    if name in files or name in folders:
        raise StageError(f"{name!r} occurs twice", where=where)
    if parents & files:
        raise StageError(f"{name!r} lies in what is a file", where=where)
    files.add(name)
    folders |= parents


def _ends(source: Path) -> bool:
    """Whether the two empty blocks are there: tarfile takes a cut header for the end."""
    with source.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - 1024, 0))
        return size % 512 == 0 and stream.read() == bytes(1024)


def matches(source: Path, folder: Path) -> bool:
    """Whether a folder holds exactly the files of an archive, byte for byte.

    What cannot be read does not match.
    """
    try:
        found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
        with tarfile.open(source, "r:") as archive:
            members = {member.name: member for member in archive}
            return found == members.keys() and all(
                (stream := archive.extractfile(member)) is not None
                and stream.read() == (folder / name).read_bytes()
                for name, member in members.items()
            )
    except (tarfile.TarError, OSError):
        return False


def _checked(name: str, where: str = "") -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
        raise StageError(f"member {name!r} would leave the folder", where=where)
    if path.as_posix() != name or not name.isprintable():
        raise StageError(f"member {name!r} is not written plainly", where=where)
