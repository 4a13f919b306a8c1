"""Transport ``local``: this machine itself, through the same commands as any board."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.devices.transport import COMMAND_S, Completed, refusal, transport
from edgefuse.errors import DeviceUnavailable, StageError, UsageError

if TYPE_CHECKING:
    from edgefuse.target import Target

_PIECE = 1 << 20


@transport
class Local:
    def __init__(self, target: Target) -> None:
        self._name = target.name

    @property
    def where(self) -> str:
        return self._name

    def run(self, argv: Sequence[str], *, timeout_s: float = COMMAND_S) -> Completed:
        if any("\0" in word for word in argv):
            raise UsageError("a word of a command holds the character NUL")
        try:
            done = subprocess.run(
                list(argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                start_new_session=True,
            )
        except FileNotFoundError:
            return Completed(127, b"", f"{argv[0]}: not found")
        except OSError as error:
            return Completed(126, b"", f"{argv[0]}: {error.strerror}")
        except subprocess.TimeoutExpired:
            raise DeviceUnavailable(
                f"{argv[0]} did not end within {timeout_s:g} s", where=self.where
            ) from None
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Completed(code, done.stdout, done.stderr.decode("utf-8", "replace"))

    def write(self, source: Path, destination: str, offset: int) -> None:
        path = Path(destination)
        try:
            with source.open("rb") as data, path.open("r+b" if path.exists() else "wb") as stream:
                data.seek(offset)
                stream.seek(offset)
                while piece := data.read(_PIECE):
                    stream.write(piece)
        except OSError as error:
            raise refusal(error.strerror or str(error), "cannot write", destination) from None

    def read(self, path: str, limit: int) -> bytes:
        try:
            with Path(path).open("rb") as stream:
                data = stream.read(limit + 1)
        except OSError as error:
            raise StageError(f"cannot be read: {error.strerror or error}", where=path) from None
        if len(data) > limit:
            raise StageError(f"is longer than {limit} bytes", where=path)
        return data
