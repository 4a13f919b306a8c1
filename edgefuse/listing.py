"""Lists of pictures: the manifest format, folders with or without labels.csv, remembered digests.

A list is made without decoding and without network; :mod:`edgefuse.data` turns it into samples.
"""

from __future__ import annotations

import contextlib
import csv
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from edgefuse import pictures
from edgefuse.artifact import digest_file
from edgefuse.errors import DataError, StoreError
from edgefuse.recipe import Blob, Split
from edgefuse.section import SHA256, Section
from edgefuse.store import write_atomically
from edgefuse.yaml_file import load

_SETTLED_NS = 2_000_000_000


class ManifestPicture(Section):
    """One picture of a manifest."""

    file: str = Field(min_length=1, description="File name; stands for {file} in the mirrors.")
    sha256: SHA256
    label: int | None = Field(None, ge=0, strict=True, description="Class index.")
    group: str | None = Field(None, description="Source picture; pictures of one scene share it.")


class ManifestSource(Section):
    """Pictures that come from one place."""

    licence: str = Field("", description="Where the terms are stated.")
    mirrors: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, description="As the mirrors of a Blob; {file} stands for the file name."
    )
    pictures: tuple[ManifestPicture, ...] = Field(min_length=1)

    @field_validator("mirrors")
    @classmethod
    def _known_schemes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return Blob._known_schemes(value)

    @model_validator(mode="after")
    def _one_mirror_a_file(self) -> ManifestSource:
        fixed = [mirror for mirror in self.mirrors if "{file}" not in mirror]
        if fixed and len(self.pictures) > 1:
            raise ValueError(f"a mirror of several pictures needs {{file}}: {fixed[0]}")
        return self


class Manifest(Section):
    """A list of pictures by content (``data.*.manifest``)."""

    schema_version: Literal[1] = Field(alias="schema", description="Always 1.")
    description: str = Field("", description="For people: what the pictures are good for.")
    sources: tuple[ManifestSource, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        every = [picture for source in self.sources for picture in source.pictures]
        for what in ("file", "sha256"):
            counted = Counter(getattr(picture, what) for picture in every)
            if twice := [value for value, count in counted.items() if count > 1]:
                raise ValueError(f"{what} listed twice: {', '.join(twice)}")
        unlabelled = [picture.file for picture in every if picture.label is None]
        if 0 < len(unlabelled) < len(every):
            raise ValueError(f"label every picture or none; without: {', '.join(unlabelled)}")
        return self


@dataclass(frozen=True)
class Picture:
    """One picture: its name, source scene, label, content, and where to get it."""

    name: str
    group: str
    label: int | None
    sha256: str
    source: Blob | Path


def manifest_pictures(path: Path) -> list[Picture]:
    """The pictures of a manifest, in its order.

    Raises:
        RecipeError: the manifest is not valid (file:line, key path).
    """
    return [
        Picture(
            name=picture.file,
            group=picture.group or picture.file,
            label=picture.label,
            sha256=picture.sha256,
            source=Blob(file=picture.file, sha256=picture.sha256, mirrors=source.mirrors),
        )
        for source in load(path, Manifest).sources
        for picture in source.pictures
    ]


def folder_pictures(folder: Path, split: Split | None, memo: Memo) -> list[Picture]:
    """The pictures of a folder: rows of labels.csv in file order, or every picture file by name.

    A split is ``random.Random(seed).shuffle`` of them, then the part that ``after`` and ``first``
    cut out.

    Raises:
        DataError: with the place and the remedy.
    """
    table = folder / "labels.csv"
    rows = _labelled_rows(folder, table) if table.is_file() else _unlabelled_rows(folder)
    if split is not None:
        random.Random(split.seed).shuffle(rows)
        begin = split.after or 0
        end = len(rows) if split.first is None else begin + split.first
        whole = split.after is None and end == len(rows)
        if begin >= len(rows) or end > len(rows) or whole:
            raise DataError(
                f"split wants pictures {begin + 1} to {max(end, begin + 1)}, and the folder has "
                f"{len(rows)} pictures: "
                + ("the other part would be empty" if whole else "there are not so many"),
                hint="split below the number of pictures",
                where=str(folder),
            )
        rows = rows[begin:end]
    first_name: dict[str, str] = {}
    found = []
    for name, label in rows:
        try:
            sha256 = memo.digest(folder / name)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=str(folder / name)) from None
        group = first_name.setdefault(sha256, name)
        found.append(Picture(name, group, label, sha256, folder / name))
    memo.save()
    return found


def _unlabelled_rows(folder: Path) -> list[tuple[str, int | None]]:
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in pictures.SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )
    if not names:
        raise DataError(
            "the folder holds no pictures",
            hint=f"known suffixes: {' '.join(sorted(pictures.SUFFIXES))}",
            where=str(folder),
        )
    return [(name, None) for name in names]


def _labelled_rows(folder: Path, table: Path) -> list[tuple[str, int | None]]:
    rows: dict[str, int | None] = {}
    try:
        with table.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            columns = reader.fieldnames or []
            if missing := [c for c in ("file", "class_index") if c not in columns]:
                raise DataError(
                    f"no column {' or '.join(missing)} (found: {', '.join(columns) or 'nothing'})",
                    hint="the first line must be: file,class_index",
                    where=str(table),
                )
            for row in reader:
                name, index = row["file"] or "", row["class_index"] or ""
                place = f"{table}:{reader.line_num}"
                _check_row(folder, name, index, place)
                if name in rows:
                    raise DataError(f"{name} is listed twice", where=place)
                rows[name] = int(index)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot be read: {error}", where=str(table)) from None
    if not rows:
        raise DataError("labels.csv lists no pictures", where=str(table))
    return list(rows.items())


def _check_row(folder: Path, name: str, index: str, place: str) -> None:
    parts = PurePosixPath(name)
    if not name or parts.is_absolute() or ".." in parts.parts:
        raise DataError(
            f"{name!r} is no path inside the folder",
            hint="list files relative to the folder, without ..",
            where=place,
        )
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", index):
        raise DataError(
            f"class_index of {name} must be an integer from 0, not {index!r}", where=place
        )
    if not (folder / name).is_file():
        raise DataError(
            f"{name} is listed and does not exist",
            hint="restore the file or remove the row",
            where=place,
        )


class Memo:
    """Digests of files, remembered by path, size, times and inode.

    An entry is trusted only when the file was at rest for two seconds before it was read: a file
    that changes again within a clock tick would look the same.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, Any] = {}
        self._changed = False
        with contextlib.suppress(OSError, ValueError):
            if path is not None and isinstance(data := json.loads(path.read_text()), dict):
                self._entries = data

    def digest(self, path: Path) -> str:
        state = path.stat()
        key = str(path.absolute())
        seen = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
        match self._entries.get(key):
            case {"seen": known, "at": int(at), "sha256": str(sha256)} if known == seen:
                if max(state.st_mtime_ns, state.st_ctime_ns) + _SETTLED_NS < at:
                    return sha256
        now = time.time_ns()
        found = digest_file(path)
        self._entries[key] = {"seen": seen, "at": now, "sha256": found}
        self._changed = True
        return found

    def save(self) -> None:
        if self._path is None or not self._changed:
            return
        with contextlib.suppress(StoreError):
            write_atomically(self._path, json.dumps(self._entries).encode())
