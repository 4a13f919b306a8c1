"""The narrow door to a machine that a bundle is put on: run a command, write a file, read one.

Problem: the ways to a board (ssh, adb, none at all) differ in quoting, exit codes and what a cut
connection looks like. A :class:`Transport` hides that: a command is a list of words, its end is
known by a line that the wrapper prints after it (so a connection that dies is never taken for a
result), and a file is written from any whole block on, so that a transfer goes on where it was
cut. :func:`put` does that, and proves the whole by its SHA-256.

Nothing but what POSIX, busybox and toybox have is needed over there: sh, dd, wc, cat, sha256sum.
Each file of ``edgefuse/devices/transports/`` registers one way by ``@transport``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn, Protocol

from edgefuse.errors import DeviceUnavailable, EdgefuseError, StageError, UsageError
from edgefuse.registry import Registry

if TYPE_CHECKING:
    from edgefuse.target import Target

BLOCK = 1 << 16
"""Bytes; a transfer goes on at a whole one."""
COMMAND_S = 120.0
"""What an ordinary command may take."""
_TRIES = 3
_PAUSE_S = 0.5

_HASH = """
if command -v sha256sum >/dev/null; then H=sha256sum; else H='shasum -a 256'; fi
"""
_PREFIX_SCRIPT = (
    "LC_ALL=C; export LC_ALL"
    + _HASH
    + """
[ -f "$1" ] || { echo 0 -; exit 0; }
blocks=$(( $(wc -c <"$1") / $2 ))
echo "$blocks $(dd if="$1" bs="$2" count="$blocks" 2>/dev/null | $H)"
"""
)
_DIGEST_SCRIPT = "LC_ALL=C; export LC_ALL" + _HASH + '$H <"$1"'


class ConnectionCut(DeviceUnavailable):
    """The way to the device broke: whether the last command was done is not known."""


@dataclass(frozen=True)
class Completed:
    """How a command on the device ended.

    Attributes:
        code: its exit code; 127 when there is no such program.
        out: what it wrote to standard output.
        err: what it wrote to standard error; empty where the way mixes both into ``out``.
    """

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")


class Transport(Protocol):
    """One machine. Every method raises DeviceUnavailable when it is not reached, and
    :class:`ConnectionCut`, one of these, when the connection broke on the way."""

    @property
    def where(self) -> str:
        """The machine as messages name it."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float = COMMAND_S) -> Completed:
        """Run a command: each word arrives there as it is, whatever it holds but NUL."""
        ...

    def write(self, source: Path, destination: str, offset: int) -> None:
        """Write a file of ours from byte ``offset`` (a whole BLOCK) on, keeping what lies before.

        Raises:
            DeviceUnavailable: full disk, read-only folder, missing permission.
        """
        ...

    def read(self, path: str, limit: int) -> bytes:
        """A file's bytes.

        Raises:
            StageError: it cannot be read, or is longer than ``limit`` bytes.
        """
        ...


@dataclass(frozen=True)
class Way:
    """One entry of ``edgefuse/devices/transports/``; ``open`` reaches nothing yet."""

    name: str
    open: Callable[[Target], Transport]


TRANSPORTS: Registry[Way] = Registry("edgefuse.devices.transports")


def transport(made: Callable[[Target], Transport]) -> Callable[[Target], Transport]:
    """Register a transport's class under the name of its file."""
    TRANSPORTS.add(Way(made.__module__.rsplit(".", 1)[-1], made), made.__module__)
    return made


def open_transport(target: Target) -> Transport:
    """The way to a target; reaches nothing yet."""
    return TRANSPORTS.all()[target.transport].open(target)


def script(transport: Transport, text: str, *words: str, timeout_s: float = COMMAND_S) -> Completed:
    """Run a POSIX shell script with its positional parameters, messages in English."""
    argv = ["sh", "-c", f"LC_ALL=C; export LC_ALL\n{text}", "edgefuse", *words]
    return transport.run(argv, timeout_s=timeout_s)


def wrapped(argv: Sequence[str], mark: str) -> str:
    """One string for a remote shell: prints ``mark`` before, and with the exit code after."""
    if any("\0" in word for word in argv):
        raise UsageError("a word of a command holds the character NUL")
    body = 'printf "%s\\n" "$0"; "$@"; code=$?; printf "\\n%s %s\\n" "$0" "$code"'
    return " ".join(["sh", "-c", shlex.quote(body), mark, *(shlex.quote(w) for w in argv)])


def unwrapped(data: bytes, mark: str) -> tuple[int, bytes] | None:
    """Exit code and output of a :func:`wrapped` command; None when its end never came."""
    start, end = f"{mark}\n".encode(), rb"\n" + mark.encode() + rb" ([0-9]+)\r?\n\Z"
    found = re.search(end, data.replace(b"\r\n", b"\n") if b"\r\n" in data[-8:] else data)
    if found is None:
        return None
    text = found.string[: found.start()]
    _, began, rest = text.partition(start)
    return (int(found[1]), rest) if began else None


def digest_there(transport: Transport, path: str) -> str:
    """SHA-256 of a file on the device.

    Raises:
        StageError: it cannot be read, or the device has no sha256sum.
    """
    done = transport.run(["sh", "-c", _DIGEST_SCRIPT, "edgefuse", path], timeout_s=600)
    word = done.text.split(" ")[0].strip()
    if done.code or not re.fullmatch(r"[0-9a-f]{64}", word):
        refuse(done, "cannot hash a file", f"{transport.where}:{path}")
    return word


def put(
    transport: Transport,
    source: Path,
    destination: str,
    sha256: str,
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Bring a file of ours over, going on where an earlier transfer was cut; bytes sent.

    Args:
        sha256: of ``source``, which the file over there must have in the end.
        tell: told of every resumption and repetition.

    Raises:
        ConnectionCut: more than twice; what arrived is kept for the next call.
        StageError: other bytes arrive, twice.
    """
    size, sent, damaged = source.stat().st_size, 0, 0
    cuts = 0
    while True:
        try:
            offset = _whole_prefix(transport, source, destination)
            if offset:
                tell(f"{source.name}: going on at byte {offset} of {size}")
            transport.write(source, destination, offset)
            sent += size - offset
            found = digest_there(transport, destination)
        except ConnectionCut:
            cuts += 1
            if cuts == _TRIES:
                raise
            tell(f"{source.name}: the connection was cut; trying again")
            time.sleep(_PAUSE_S * cuts)
            continue
        if found == sha256:
            return sent
        transport.run(["rm", "-f", destination])
        damaged += 1
        if damaged == 2:
            raise StageError(
                f"what arrives is not what was sent: SHA-256 {found}, expected {sha256}",
                hint="the device's disk, memory or the way to it is damaged: check these",
                where=f"{transport.where}:{destination}",
            )
        tell(f"{source.name}: arrived damaged; sending it again")


def _whole_prefix(transport: Transport, source: Path, destination: str) -> int:
    """Bytes over there that are those of ``source``, in whole blocks; 0 when any differs."""
    argv = ["sh", "-c", _PREFIX_SCRIPT, "edgefuse", destination, str(BLOCK)]
    done = transport.run(argv, timeout_s=600)
    words = done.text.split()
    if done.code or len(words) < 2 or not words[0].isdigit():
        refuse(done, "cannot tell how much of a file has arrived", transport.where)
    count = int(words[0]) * BLOCK
    if not 0 < count <= source.stat().st_size:
        if count:
            transport.run(["rm", "-f", destination])
        return 0
    digest = hashlib.sha256()
    with source.open("rb") as stream:
        for _ in range(int(words[0])):
            digest.update(stream.read(BLOCK))
    if digest.hexdigest() == words[1]:
        return count
    transport.run(["rm", "-f", destination])
    return 0


_TROUBLES = (
    ("No space left on device|Disk quota exceeded|No space left", "no space left on the device",
     "free some there; `edgefuse prune --target NAME` removes old versions"),
    ("Read-only file system", "the place is read-only",
     "mount it writable, or choose another install_path"),
    ("Permission denied|Operation not permitted", "the device denies permission",
     "make install_path writable for that user, and let programs run from there"),
    ("File name too long", "a name is longer than the device allows",
     "choose a shorter install_path"),
)  # fmt: skip


def refusal(said: str, doing: str, where: str) -> EdgefuseError:
    """The error for what a command of the device said about its failure."""
    for pattern, message, hint in _TROUBLES:
        if re.search(pattern, said):
            return DeviceUnavailable(f"{doing}: {message}", hint=hint, where=where)
    missing = re.search(r"([A-Za-z0-9_.-]+): (?:inaccessible or )?not found", said)
    if missing:
        return DeviceUnavailable(
            f"{doing}: the device has no program {missing[1]!r}",
            hint="install it there: busybox, toybox or the system's own",
            where=where,
        )
    last = [line.strip() for line in said.splitlines() if line.strip()]
    return StageError(f"{doing}: {last[-1][:300] if last else 'it said nothing'}", where=where)


def refuse(done: Completed, doing: str, where: str) -> NoReturn:
    """Raise :func:`refusal` for a command that failed."""
    raise refusal(done.err.strip() or done.text, doing, where) from None


def place_of(target: Target) -> str:
    """A target's ``install_path`` with this machine's ``${VARIABLES}`` filled in.

    ``~`` is this machine's home, so only transport local knows it.

    Raises:
        UsageError: there is none, a variable is not set, or the path is not absolute or not plain.
    """
    text = target.install_path
    if text is None:
        raise UsageError(
            f"target {target.name} has no install_path", hint="add one to its file in targets/"
        )
    if target.transport == "local":
        text = str(Path(text).expanduser())
    text = os.path.expandvars(text)
    if "$" in text:
        raise UsageError(f"install_path {target.install_path!r} names a variable that is not set")
    path = PurePosixPath(text)
    if not path.is_absolute():
        raise UsageError(f"install_path {target.install_path!r} is not absolute")
    if ".." in path.parts or len(path.parts) < 2 or not text.isprintable():
        raise UsageError(
            f"install_path {target.install_path!r} is no plain folder",
            hint="give it a folder of its own, without .. and control characters",
        )
    return f"/{text.strip('/')}"
