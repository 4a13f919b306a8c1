"""Transport ``local``: install a bundle on this machine.

Layout under the destination::

    releases/<sha256>/   one unpacked bundle each, replaced only when its files are not the bundle's
    current              symbolic link to one of them, switched by an atomic rename

A bundle is unpacked beside its place under a temporary name, synced, renamed, and only then does
``current`` move: a kill at any moment leaves the old release current and at worst a temporary
folder or link, which the next install removes. A release whose files are no longer those of the
bundle (damaged, edited) is moved aside and unpacked anew: only then, and only for the moment of
two renames, is it absent. Earlier releases stay, so that going back is one
link. Two installs at once wait for each other (a lock that dies with its holder).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from edgefuse.archive import matches, unpack
from edgefuse.artifact import digest_file
from edgefuse.devices.transport import Installed
from edgefuse.errors import DeviceUnavailable, StageError, UsageError

_TEMPORARY = ".tmp-"


def install(bundle: Path, sha256: str, destination: Path) -> Installed:
    """Install the archive ``bundle`` under ``destination``, which is made when missing.

    Raises:
        StageError: the archive is missing, is not the one with this SHA-256, is damaged, would
            write outside its folder, or holds a model with random weights.
        DeviceUnavailable: the destination cannot be written.
    """
    if not bundle.is_file():
        raise StageError("no such bundle", where=str(bundle))
    found = digest_file(bundle)
    if found != sha256:
        raise StageError(
            f"the bundle's SHA-256 is {found}, expected {sha256}",
            hint="it was changed or cut on its way here: build or copy it again",
            where=str(bundle),
        )
    releases = destination / "releases"
    try:
        releases.mkdir(parents=True, exist_ok=True)
        with (releases / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _install(bundle, sha256, destination)
    except OSError as error:
        raise DeviceUnavailable(
            f"cannot install: {error.strerror or error}", where=str(destination)
        ) from error


def _install(bundle: Path, sha256: str, destination: Path) -> Installed:
    current = destination / "current"
    release = destination / "releases" / sha256
    previous = current.resolve().name if current.is_symlink() else ""
    fresh = not (release.is_dir() and matches(bundle, release))
    if fresh:
        _unpack(bundle, release)
    else:
        _check_manifest(release)
    if current.exists() and not current.is_symlink():
        raise StageError("is in the way: not a link made by edgefuse", where=str(current))
    moved = previous != sha256 or not current.exists()
    if moved:
        _switch(current, Path("releases") / sha256)
    return Installed(release, current, "" if previous == sha256 else previous, fresh or moved)


def _unpack(bundle: Path, release: Path) -> None:
    """Unpack under a temporary name and rename: ``release`` is whole or absent."""
    for left in release.parent.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=release.parent))
    try:
        unpack(bundle, folder)
        _check_manifest(folder)
        folder.chmod(0o755)
        for path in sorted(folder.rglob("*")):
            _sync(path)
        _sync(folder)
        if release.exists():
            release.rename(release.with_name(f"{_TEMPORARY}old-{release.name}"))
        folder.rename(release)
        _sync(release.parent)
    finally:
        for left in release.parent.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)


def _check_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    try:
        manifest: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StageError(f"the bundle has no readable manifest.json: {error}") from error
    weights = manifest.get("weights") if isinstance(manifest, dict) else None
    if weights is None:
        raise StageError("the bundle's manifest does not say where its weights come from")
    if weights == "random":
        raise StageError(
            "the bundle holds random weights: it is never installed",
            hint="build it from trained weights",
        )


def _switch(link: Path, to: Path) -> None:
    """Point ``link`` at ``to`` in one atomic step."""
    temporary = link.with_name(f"{_TEMPORARY}{link.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(to)
    temporary.replace(link)
    _sync(link.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expand(install_path: str) -> Path:
    """A target's ``install_path`` with ``${VARIABLES}`` and ``~`` filled in.

    Raises:
        UsageError: when a variable is not set, or the path is not absolute.
    """
    text = os.path.expandvars(str(Path(install_path).expanduser()))
    if "$" in text:
        raise UsageError(f"install_path {install_path!r} names a variable that is not set")
    if not Path(text).is_absolute():
        raise UsageError(f"install_path {install_path!r} is not absolute")
    return Path(text)
