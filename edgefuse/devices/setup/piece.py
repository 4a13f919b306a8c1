"""One folder of what `edgefuse setup` prepares: whole, or not there.

A piece is filled under a temporary name beside its place and renamed, so that a killed setup leaves
nothing that could be mistaken for a whole one; its name tells its content (versions, hashes). It
holds a list of its files with their sizes: where one is missing or cut, the piece counts as absent,
and the next setup makes it anew. A file changed at equal size is not noticed. A lock that dies with
its holder lets a second setup wait for the first and then find its work done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edgefuse.errors import DeviceUnavailable, ToolError
from edgefuse.store import disk_error, is_disk_error

Fill = Callable[[Path], Iterator[str]]
_LIST = ".piece.json"


def make_piece(folder: Path, fill: Fill) -> Iterator[str]:
    """Fill a folder where it is not there; yields a line for each thing done.

    Args:
        folder: the piece's place.
        fill: fills an empty folder that it is given.

    Raises:
        StoreError: the disk is full or does not take the folder.
        EdgefuseError: as ``fill`` raises it; then nothing is left.
    """
    if is_whole(folder):
        return
    try:
        with _locked(folder):
            if is_whole(folder):
                return
            part = Path(tempfile.mkdtemp(prefix=f".part-{folder.name}-", dir=folder.parent))
            part.chmod(0o755)
            try:
                yield from fill(part)
                listed = json.dumps(_files(part), sort_keys=True)
                (part / _LIST).write_text(listed, "utf-8", "surrogateescape")
                if folder.exists():
                    folder.rename(part.with_name(f"{part.name}-old"))
                part.rename(folder)
            finally:
                _sweep(folder)
    except OSError as error:
        if is_disk_error(error):
            raise disk_error(error, folder) from error
        raise ToolError(f"cannot be made: {error.strerror or error}", where=str(folder)) from error


def require_piece(folder: Path, what: str, target: str) -> Path:
    """The folder of a piece that is there.

    Raises:
        DeviceUnavailable: with the command that makes it.
    """
    if not is_whole(folder):
        lacking = "damaged" if folder.is_dir() else "missing"
        raise DeviceUnavailable(
            f"{target} is not set up: {what} {lacking}", hint=f"edgefuse setup {target}"
        )
    return folder


def is_whole(folder: Path) -> bool:
    """Whether every file that a piece was made with is still there, in its size."""
    try:
        listed = json.loads((folder / _LIST).read_text("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return False
    found = _files(folder)
    found.pop(_LIST, None)
    return isinstance(listed, dict) and listed.items() <= found.items()


def _files(folder: Path) -> dict[str, int]:
    """Size in bytes of every file and link below a folder, by its path there."""
    found = {}
    pending = [""]
    while pending:
        below = pending.pop()
        with os.scandir(folder / below) as entries:
            for entry in entries:
                name = f"{below}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")
                else:
                    found[name] = entry.stat(follow_symlinks=False).st_size
    return found


def together(works: Sequence[Iterator[str]]) -> Iterator[str]:
    """Run several generators at once, each in a thread; yields their lines as they come.

    All are run to their end, then the first error, in the order given, is raised.
    """
    lines: queue.Queue[str | None] = queue.Queue()
    errors: dict[int, BaseException] = {}

    def run(place: int, work: Iterator[str]) -> None:
        try:
            for line in work:
                lines.put(line)
        except BaseException as error:
            errors[place] = error
        finally:
            lines.put(None)

    threads = [
        threading.Thread(target=run, args=(place, work), daemon=True)
        for place, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    while running:
        line = lines.get()
        if line is None:
            running -= 1
        else:
            yield line
    if errors:
        raise errors[min(errors)]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep(folder)
        yield


def _sweep(folder: Path) -> None:
    """Remove what this or a killed setup left; the caller holds the lock."""
    for left in folder.parent.glob(f".part-{folder.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
