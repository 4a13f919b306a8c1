"""Faults while bundles are pushed, over the real clients: what becomes current is always whole.

Every push runs in a process of its own (a fork), as a user's does, so that a kill is a kill. After
each fault the installation is judged by code that shares nothing with the one under test: the
current version is one of the known bundles to the last byte, and its golden vectors are exact.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devices.transports.boards import Proxy
from devices.transports.parcels import whole_version
from edgefuse.devices.push import device_lock
from edgefuse.devices.push.deployment import Deployment, Parcel, opened_bundle
from edgefuse.devices.transport import Transport, open_transport
from edgefuse.errors import EdgefuseError
from edgefuse.target import Target

NEVER = "not an error of edgefuse"


@dataclass(frozen=True)
class Board:
    """What faults are done to.

    Attributes:
        root: the installation, which lies on this machine.
        target: the board behind ``proxy``.
        bundles: archive by SHA-256; the first is current before anything else.
        shells: kills what runs on the device now; how many.
        mounted: whether ``root`` is on a file system of its own, which may be filled and locked.
    """

    root: Path
    target: Target
    proxy: Proxy
    bundles: Mapping[str, Path]
    shells: Callable[[], int]
    mounted: bool


@dataclass(frozen=True)
class Outcome:
    """How one fault ended.

    Attributes:
        fault: its kind.
        detail: the byte, the moment, the place.
        ended: pushed, or the class of the error, or killed.
        message: the error's.
        current: old or new.
        trouble: why the current version is not whole, or the error is none of ours; else empty.
    """

    fault: str
    detail: str
    ended: str
    message: str
    current: str
    trouble: str = ""


@dataclass
class Clean:
    """What an undisturbed push takes: the range that faults are drawn from."""

    bytes: int = 0
    seconds: float = 0.0


@dataclass
class Running:
    """A push in a child process."""

    pid: int
    pipe: int
    code: int | None = field(default=None)

    def ended(self, wait: bool = True) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def answer(self) -> tuple[str, str]:
        """Its end in a word, and the message."""
        with os.fdopen(self.pipe, "rb") as stream:
            data = stream.read()
        self.ended()
        if self.code is not None and self.code < 0:
            return "killed", ""
        if not data:
            return NEVER, f"exit code {self.code}"
        ended: tuple[str, str] = pickle.loads(data)  # noqa: S301
        return ended


def start_push(
    board: Board, sha256: str, wrap: Callable[[Transport], Transport] = lambda one: one
) -> Running:
    """Push a bundle in a child process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Running(pid, reading)
    try:
        os.setsid()
        answer = _pushed(board, sha256, wrap)
        with os.fdopen(writing, "wb") as stream:
            stream.write(pickle.dumps(answer))
    finally:
        os._exit(0)


def _pushed(board: Board, sha256: str, wrap: Callable[[Transport], Transport]) -> tuple[str, str]:
    try:
        transport = wrap(open_transport(board.target))
        deployment = Deployment(board.target, transport=transport)
        with opened_bundle(board.bundles[sha256], sha256) as parcel:
            deployment.push(parcel, wait_s=10)
        return "pushed", ""
    except EdgefuseError as error:
        return type(error).__name__, error.message
    except BaseException as error:
        return NEVER, f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def quick_leases(lease_s: float = 2.0, beat_s: float = 0.4) -> Iterator[None]:
    """Locks of dead pushes are broken sooner, so that hundreds of them fit into minutes."""
    before = device_lock.LEASE_S, device_lock.BEAT_S
    device_lock.LEASE_S, device_lock.BEAT_S = lease_s, beat_s
    try:
        yield
    finally:
        device_lock.LEASE_S, device_lock.BEAT_S = before


class Faults:
    """Draws faults by a seed and does them, one after another, to one board."""

    def __init__(self, board: Board, seed: int) -> None:
        self.board = board
        self.random = random.Random(seed)
        self.clean = Clean()
        self._kinds: dict[str, Callable[[str], tuple[str, Running]]] = {
            "cut once": self._cut_once,
            "cut and gone": self._cut_and_gone,
            "client killed": self._client_killed,
            "remote shell killed": self._shell_killed,
            "rebooted": self._rebooted,
            "upload corrupted": self._upload_corrupted,
            "unpacked file corrupted": self._unpacked_corrupted,
            "kept version corrupted": self._kept_corrupted,
            "runner corrupted": self._runner_corrupted,
            "disk full": self._disk_full,
            "read-only": self._read_only,
            "two at once": self._two_at_once,
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        mounted = ("disk full", "read-only")
        return tuple(kind for kind in self._kinds if self.board.mounted or kind not in mounted)

    def prepare(self) -> None:
        """The first version, and what an undisturbed push takes."""
        for sha256 in list(self.board.bundles)[:2]:
            before, start = self.board.proxy.passed, time.monotonic()
            ended, message = start_push(self.board, sha256).answer()
            assert ended == "pushed", message
            self.clean = Clean(self.board.proxy.passed - before, time.monotonic() - start)

    def run(self, kind: str) -> Outcome:
        """One fault; everything is in order again on the device's side afterwards."""
        old = self._current()
        new = self.random.choice([sha for sha in self.board.bundles if sha != old])
        self._forget(new)
        try:
            detail, push = self._kinds[kind](new)
            ended, message = push.answer()
        finally:
            self._mend()
        trouble = message if ended == NEVER else ""
        try:
            found = whole_version(self.board.root, dict(self.board.bundles))
        except (AssertionError, OSError, ValueError) as error:
            return Outcome(kind, detail, ended, message, "damaged", str(error))
        if ended == "pushed" and found != new and kind != "two at once":
            trouble = "a push that went well is not current"
        which = "old" if found == old else "new" if found == new else "another"
        return Outcome(kind, detail, ended, message, which, trouble)

    def recover(self) -> str:
        """An undisturbed push after whatever lies there; empty when it goes well."""
        old = self._current()
        new = self.random.choice([sha for sha in self.board.bundles if sha != old])
        ended, message = start_push(self.board, new).answer()
        return "" if ended == "pushed" and self._current() == new else f"{ended}: {message}"

    def _current(self) -> str:
        return str((self.board.root / "current").readlink()).removeprefix("releases/")

    def _forget(self, sha256: str) -> None:
        """Half of the time the version's folder is taken away: then all of it must travel."""
        import shutil

        folder = self.board.root / "releases" / sha256
        if self.random.random() < 0.75 and folder.is_dir():
            shutil.rmtree(folder)

    def _mend(self) -> None:
        self.board.proxy.restore()
        (self.board.root / "filling").unlink(missing_ok=True) if self._writable() else None

    def _writable(self) -> bool:
        if self.board.mounted:
            subprocess.run(["mount", "-o", "remount,rw", str(self.board.root)], check=True)
        return True

    def _cut(self, new: str, stays_down: bool) -> tuple[str, Running]:
        place = self.random.randrange(max(self.clean.bytes, 1))
        self.board.proxy.cut_after(place, stays_down=stays_down)
        return f"at byte {place} of {self.clean.bytes}", start_push(self.board, new)

    def _cut_once(self, new: str) -> tuple[str, Running]:
        return self._cut(new, False)

    def _cut_and_gone(self, new: str) -> tuple[str, Running]:
        return self._cut(new, True)

    def _wait(self) -> float:
        after = self.random.random() * self.clean.seconds
        time.sleep(after)
        return after

    def _client_killed(self, new: str) -> tuple[str, Running]:
        push = start_push(self.board, new)
        after = self._wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(push.pid, signal.SIGKILL)
        return f"after {after:.2f} of {self.clean.seconds:.2f} s", push

    def _shell_killed(self, new: str) -> tuple[str, Running]:
        push = start_push(self.board, new)
        after = self._wait()
        killed = 0
        while not killed and not push.ended(wait=False):
            killed = self.board.shells()
            time.sleep(0.002)
        return f"after {after:.2f} s, {killed} processes", push

    def _rebooted(self, new: str) -> tuple[str, Running]:
        """All that ran is gone and the connection with it; the lock is of another boot."""
        self.board.proxy.cut_after(None, stays_down=True)
        push = start_push(self.board, new)
        after = self._wait()
        self.board.proxy.cut()
        self.board.shells()
        ended = push.answer()
        lock = self.board.root / ".lock"
        if lock.is_symlink():
            words = str(lock.readlink()).split("|")
            lock.unlink()
            lock.symlink_to("|".join([words[0], "another-boot", *words[2:]]))
        self.board.proxy.restore()
        again = start_push(self.board, new)
        detail = f"after {after:.2f} s ({ended[0]}), pushed again"
        return detail, again

    def _flip(self, path: Path) -> str:
        """Change one bit of a file; where."""
        data = bytearray(path.read_bytes())
        place = self.random.randrange(len(data))
        data[place] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)
        return f"{path.name} at byte {place}"

    def _between(
        self, new: str, word: str, chosen: Callable[[], Path | None]
    ) -> tuple[str, Running]:
        """Corrupt a file on the device just before the command that holds a word."""
        push = start_push(self.board, new, lambda one: _Hook(one, word, self, chosen))
        return f"before {word!r}", push

    def _upload_corrupted(self, new: str) -> tuple[str, Running]:
        part = self.board.root / f"releases/.tmp-{new}/bundle.tar"
        return self._between(new, '<"$1"', lambda: part)

    def _unpacked_corrupted(self, new: str) -> tuple[str, Running]:
        folder = self.board.root / f"releases/.tmp-{new}/files"
        return self._between(new, "odd", lambda: self._any_file(folder))

    def _kept_corrupted(self, new: str) -> tuple[str, Running]:
        """The version lies there already, and its disk has gone bad meanwhile."""
        folder = self.board.root / "releases" / new
        path = self._any_file(folder)
        detail = self._flip(path) if path else "it was not there"
        return detail, start_push(self.board, new)

    def _runner_corrupted(self, new: str) -> tuple[str, Running]:
        path = self._any_file(self.board.root / "runtime")
        detail = self._flip(path) if path else "it was not there"
        return detail, start_push(self.board, new)

    def _any_file(self, folder: Path) -> Path | None:
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
        return self.random.choice(files) if files else None

    def _disk_full(self, new: str) -> tuple[str, Running]:
        """Filled up before the push, or while it runs, to a few random kilobytes."""
        left = self.random.randrange(300_000)
        later = self.random.random() < 0.5
        push = start_push(self.board, new) if later else None
        if later:
            self._wait()
        found = os.statvfs(self.board.root)
        size = max(found.f_bavail * found.f_frsize - left, 0)
        with contextlib.suppress(OSError), (self.board.root / "filling").open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size or 1)
        when = "while it ran" if later else "before"
        return f"{left} bytes left, filled {when}", push or start_push(self.board, new)

    def _read_only(self, new: str) -> tuple[str, Running]:
        later = self.random.random() < 0.5
        push = start_push(self.board, new) if later else None
        if later:
            self._wait()
        words = ["mount", "-o", "remount,ro", str(self.board.root)]
        locked = False
        for _ in range(200):  # Busy while a file is open for writing.
            locked = subprocess.run(words, capture_output=True).returncode == 0
            if locked:
                break
            time.sleep(0.01)
        when = "while it ran" if later else "before"
        return f"{when}{'' if locked else ', not reached'}", push or start_push(self.board, new)

    def _two_at_once(self, new: str) -> tuple[str, Running]:
        others = [sha for sha in self.board.bundles if sha != new]
        other = self.random.choice(others)
        first = start_push(self.board, other)
        time.sleep(self.random.random() * 0.5)
        second = start_push(self.board, new)
        ended, message = first.answer()
        detail = f"the other {ended}"
        if ended == NEVER:
            raise AssertionError(message)
        return detail, second


class _Hook:
    """A transport that corrupts a file once, before the first command that holds a word."""

    def __init__(
        self, inner: Transport, word: str, faults: Faults, chosen: Callable[[], Path | None]
    ) -> None:
        self._inner, self._word, self._faults, self._chosen = inner, word, faults, chosen
        self._done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, argv: Any, **more: Any) -> Any:
        path = self._chosen()
        if not self._done and path and path.is_file() and any(self._word in a for a in argv):
            self._done = True
            self._faults._flip(path)
        return self._inner.run(argv, **more)


__all__ = ["Board", "Faults", "Outcome", "Parcel", "quick_leases", "start_push"]
