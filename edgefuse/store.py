"""The content-addressed store: bytes by digest, and which key made them.

::

    objects/ab/<sha256>          bytes, immutable
    entries/<stage>/<key>.json   what a stage made under a cache key, with the key's parts
    entries/<stage>/<recipe>.latest   the key it last made for a recipe
    locks/<key>                  held while a key is being made, so that two runs share the work
    work/xxxx/                   private folders of running stages
    scratch/<key>/               what lets an interrupted stage go on; dropped after a month

A name appears only when its content is whole: data go to a temporary name on the same file
system, are flushed to disk, then renamed. What is read is verified against its digest; a damaged
entry is dropped and made anew.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from edgefuse.artifact import Artifact, Product, Signature, digest_file, digest_json
from edgefuse.errors import StoreError


class Damaged(Exception):
    """An entry of the store that cannot be trusted; the message says why."""


def default_root() -> Path:
    """``EDGEFUSE_CACHE``, else ``$XDG_CACHE_HOME/edgefuse``, else ``~/.cache/edgefuse``."""
    if place := os.environ.get("EDGEFUSE_CACHE"):
        return Path(place).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "edgefuse"


_FORGOTTEN_S = 30 * 24 * 3600
_CUT_SHORT = re.compile(r"problem writing element|requested and \d+ written")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)


def is_disk_error(error: OSError) -> bool:
    """Whether the disk, and not our code, is to blame."""
    return error.errno in (*_FULL, *_REFUSED) or _cut_short(error)


def _cut_short(error: OSError) -> bool:
    """Whether NumPy could not write all of an array: its error has no number, and a full disk is
    what causes it."""
    return error.errno is None and bool(_CUT_SHORT.search(str(error)))


def disk_error(error: OSError, place: Path) -> StoreError:
    """An OSError in the user's words."""
    if error.errno in _FULL or _cut_short(error):
        return StoreError(
            "no space left on the disk",
            where=str(place),
            hint="free some space, or choose another place with EDGEFUSE_CACHE or --out; "
            "`edgefuse doctor` shows what the store holds",
        )
    return StoreError(
        f"cannot be written: {error.strerror or error}",
        where=str(error.filename or place),
        hint="check the permissions, or choose another place with EDGEFUSE_CACHE or --out",
    )


def raise_disk_error(error: OSError, place: Path) -> NoReturn:
    raise disk_error(error, place) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or nothing.

    Raises:
        StoreError: full disk, missing permission.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise_disk_error(error, path)
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise


def write_changed(path: Path, data: bytes) -> None:
    """As :func:`write_atomically`, but a file that holds these bytes already is left alone."""
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    write_atomically(path, data)


def holds(path: Path, sha256: str) -> bool:
    """Whether a file is there, can be read, and has this SHA-256."""
    try:
        return path.is_file() and digest_file(path) == sha256
    except OSError:
        return False


def copy_atomically(source: Path, path: Path) -> None:
    """Copy a file so that ``path`` is the whole new content or untouched.

    Raises:
        StoreError: the source cannot be read; full disk, missing permission.
    """
    try:
        data = source.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", where=str(source)) from error
    write_atomically(path, data)


class Store:
    """Artifacts under one root folder; safe for several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def object_path(self, sha256: str) -> Path:
        return self.root / "objects" / sha256[:2] / sha256

    def _entry_path(self, stage: str, key: str) -> Path:
        return self.root / "entries" / stage / f"{key}.json"

    def _latest_path(self, stage: str, recipe: str) -> Path:
        return self.root / "entries" / stage / f"{recipe}.latest"

    def has(self, stage: str, key: str) -> bool:
        return self._entry_path(stage, key).is_file()

    def entry(self, stage: str, key: str) -> dict[str, Any]:
        """The record of an entry, without touching its bytes.

        Raises:
            Damaged: missing, not JSON, or altered since it was written.
        """
        path = self._entry_path(stage, key)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            body = record["record"]
            if digest_json(body) != record["digest"] or body["key"] != key:
                raise Damaged(f"{path}: does not match its own digest")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{path}: {error}") from None
        return dict(body)

    def get(self, stage: str, key: str) -> Artifact:
        """The artifact stored under a key, its bytes verified.

        Raises:
            Damaged: anything missing or altered.
        """
        record = self.entry(stage, key)
        path = self.object_path(record["sha256"])
        try:
            found = digest_file(path)
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from None
        if found != record["sha256"]:
            raise Damaged(f"{path}: its bytes have SHA-256 {found}")
        return Artifact(
            kind=record["kind"],
            path=path,
            sha256=record["sha256"],
            stage=stage,
            key=key,
            signature=Signature.from_json(record["signature"]),
            parents=record["parents"],
            evidence=record["evidence"],
            seconds=record["seconds"],
            reused=True,
        )

    def drop(self, stage: str, key: str) -> None:
        """Forget an entry, and its bytes if they are damaged: others may share them.

        Raises:
            StoreError: it cannot be removed.
        """
        try:
            sha256 = self.entry(stage, key)["sha256"]
            path = self.object_path(sha256)
            if path.is_file() and digest_file(path) != sha256:
                path.unlink(missing_ok=True)
        except (Damaged, OSError):
            pass
        entry = self._entry_path(stage, key)
        try:
            entry.unlink(missing_ok=True)
        except OSError as error:
            raise_disk_error(error, entry)

    def put(
        self,
        product: Product,
        *,
        stage: str,
        key: str,
        parts: Mapping[str, Any],
        parents: Mapping[str, str],
        recipe: str,
        seconds: float,
    ) -> Artifact:
        """Store a product under its key and hand it back as an artifact.

        Raises:
            StoreError: full disk, missing permission; nothing half-written remains.
        """
        sha256 = digest_file(product.path)
        path = self.object_path(sha256)
        if not holds(path, sha256):
            copy_atomically(product.path, path)
        body = {
            "key": key,
            "parts": dict(parts),
            "recipe": recipe,
            "kind": product.kind,
            "sha256": sha256,
            "signature": product.signature.to_json(),
            "parents": dict(parents),
            "evidence": dict(product.evidence),
            "seconds": seconds,
        }
        body = json.loads(json.dumps(body))
        text = json.dumps({"digest": digest_json(body), "record": body}, sort_keys=True)
        write_atomically(self._entry_path(stage, key), text.encode())
        write_atomically(self._latest_path(stage, recipe), key.encode())
        return Artifact(
            kind=product.kind,
            path=path,
            sha256=sha256,
            stage=stage,
            key=key,
            signature=product.signature,
            parents=dict(parents),
            evidence=body["evidence"],
            seconds=seconds,
        )

    def latest(self, stage: str, recipe: str) -> dict[str, Any] | None:
        """The entry that a recipe of this name made last, for `why` and estimates."""
        try:
            key = self._latest_path(stage, recipe).read_text(encoding="ascii")
            return self.entry(stage, key)
        except (OSError, ValueError, Damaged):
            return None

    @contextmanager
    def lock(self, key: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold a key. A second run waits here and then finds the first one's result.

        Args:
            waiting: called once when another process holds the key.
        """
        path = self.root / "locks" / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("w")
        except OSError as error:
            raise_disk_error(error, path)
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """A private folder, removed afterwards; leftovers of dead processes are swept."""
        parent = self.root / "work"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with self.lock("work"):
                _sweep(parent)
                folder = Path(tempfile.mkdtemp(dir=parent))
                alive = (folder / ".alive").open("w")
                fcntl.flock(alive, fcntl.LOCK_EX)
        except OSError as error:
            raise_disk_error(error, parent)
        with alive:
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def scratch_folder(self, key: str) -> Path:
        """Where a stage may keep its way under a key, which the caller holds; not made here.

        Folders that nobody went on with for a month are removed.
        """
        parent = self.root / "scratch"
        with suppress(OSError):
            for folder in parent.iterdir():
                if folder.stat().st_mtime < time.time() - _FORGOTTEN_S:
                    shutil.rmtree(folder, ignore_errors=True)
        return parent / key

    def size_bytes(self) -> int:
        total = 0
        for path in self.root.rglob("*"):
            with suppress(FileNotFoundError):
                total += path.lstat().st_size if path.is_file() else 0
        return total


def _sweep(parent: Path) -> None:
    """Remove the folders whose owner holds no lock any more: it was killed."""
    for folder in parent.iterdir():
        try:
            with (folder / ".alive").open("w") as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
