"""The output folder: whole files under conventional names, and only what this run stands for."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from edgefuse.archive import matches, unpack
from edgefuse.artifact import Artifact
from edgefuse.bundle import evidence
from edgefuse.stage import REPRODUCER, Stage
from edgefuse.store import copy_atomically, holds, raise_disk_error

_TRIES = 20


def put(out: Path, recipe: str, stage: Stage, artifact: Artifact) -> str | None:
    """Copy an artifact into the output folder; a bundle is unpacked beside its archive.

    Returns its file name, or None for a verdict, which only the report shows.

    Raises:
        StoreError: full disk, missing permission.
    """
    if artifact.kind == "verdict":
        return None
    path = out / stage.file_name.format(name=recipe)
    if not holds(path, artifact.sha256):
        copy_atomically(artifact.path, path)
    if artifact.kind == "bundle" and not matches(artifact.path, out / "bundle"):
        _unpack(artifact.path, out / "bundle")
    return path.name


def withdraw(out: Path, recipe: str, stages: Iterable[Stage], target: str) -> None:
    """Remove what an earlier run published for these stages: this run does not stand for it.

    Args:
        target: whose verdict goes with a bundle; those of others stay, bound to its digest.

    Raises:
        StoreError: it cannot be removed.
    """
    for stage in stages:
        _remove(out, stage.file_name.format(name=recipe), target)


def withdraw_bundle(out: Path, recipe: str) -> None:
    """Remove a recipe's bundle, its unpacked form, its evidence for all targets, its signature.

    Raises:
        StoreError: it cannot be removed.
    """
    _remove(out, f"{recipe}.bundle.tar", None)


def _remove(out: Path, name: str, target: str | None) -> None:
    path = out / name
    try:
        path.unlink(missing_ok=True)
        if name.endswith(".bundle.tar"):
            evidence.withdraw(out, target)
            _remove_folder(out / "bundle")
    except OSError as error:
        raise_disk_error(error, path)


def withdraw_report(out: Path) -> None:
    """Remove the report of an earlier run: until this one ends, nothing is known of it.

    Raises:
        StoreError: it cannot be removed.
    """
    for path in (out / "report.json", out / "report.html"):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise_disk_error(error, path)


def withdraw_reproducer(out: Path) -> None:
    """Remove what an earlier run left to repeat its failure with.

    Raises:
        StoreError: it cannot be removed.
    """
    folder = out / REPRODUCER
    try:
        _remove_folder(folder)
    except OSError as error:
        raise_disk_error(error, folder)


def _remove_folder(folder: Path) -> None:
    """Remove a folder if it is there; another run may be removing it too."""

    def told(_: object, __: str, failure: tuple[type, BaseException, object]) -> None:
        if not isinstance(failure[1], FileNotFoundError):
            raise failure[1]

    if folder.is_dir():
        shutil.rmtree(folder, onerror=told)


def _unpack(archive: Path, folder: Path) -> None:
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".tmp-bundle-", dir=folder.parent))
        try:
            unpack(archive, temporary)
            temporary.chmod(0o755)
            _replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise_disk_error(error, folder)


def _replace(made: Path, folder: Path) -> None:
    """Put a folder in the place of another; a run that puts its own there meanwhile is replaced."""
    for tries_left in reversed(range(_TRIES)):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            made.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not tries_left:
                raise
