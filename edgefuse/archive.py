"""Deterministic tar archives: equal files give equal bytes, and nothing escapes on unpacking.

POSIX ustar, uncompressed, entries sorted by name, owner 0, mode 0644, time stamp 0: no property
of the machine or the moment enters.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from edgefuse.errors import StageError

_AGAIN = "copy it again, or run the recipe that made it"


def pack(members: Mapping[str, bytes], destination: Path) -> None:
    """Write an archive of the members (name -> bytes)."""
    with tarfile.open(destination, "w", format=tarfile.USTAR_FORMAT) as archive:
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
    try:
        if not _ends(source):
            raise StageError(
                "not a whole archive: its end is missing", where=str(source), hint=_AGAIN
            )
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                if not member.isfile():
                    raise StageError(f"{member.name!r} is not a plain file", where=str(source))
                _checked(member.name, str(source))
                stream = archive.extractfile(member)
                data = stream.read() if stream is not None else b""
                if len(data) != member.size:
                    raise StageError(f"{member.name!r} is cut short", where=str(source))
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                names.append(member.name)
    except tarfile.TarError as error:
        raise StageError(f"not a whole archive: {error}", where=str(source), hint=_AGAIN) from None
    return names


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
