"""Transport ``adb``: the Android debug bridge's own client.

Its exit code tells of a command's end only where the device has shell protocol 2, and not whether
the connection broke: as everywhere, the wrapper's last line does. Without that protocol a terminal
stands between, which writes CR LF for each line end: binary files go by ``adb pull``, whose sync
service knows no terminal. ``adb push`` cannot go on within a file, so a file goes over in pieces,
each put in its place by ``dd`` on the device.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.devices.transport import (
    BLOCK,
    COMMAND_S,
    Completed,
    ConnectionCut,
    refusal,
    refuse,
    transport,
    unwrapped,
    wrapped,
)
from edgefuse.errors import DeviceUnavailable, StageError, ToolError, UsageError
from edgefuse.fetch import local_path

if TYPE_CHECKING:
    from edgefuse.target import Target

PIECE = 32 * BLOCK
_PIECE_S = 600.0
_TROUBLES = (
    ("unauthorized|still authorizing", "the device has not allowed this computer",
     "unlock its screen and accept the question about USB debugging"),
    ("more than one device", "several devices are connected",
     "give the target's adb.serial, as `adb devices` prints it"),
    ("no devices/emulators found|device '.*' not found|device not found",
     "no such device is connected", "see `adb devices`; is USB debugging on?"),
    ("device offline", "the device is offline", "reconnect it, or restart its adbd"),
    ("failed to connect|cannot connect to [0-9a-z]|unable to connect|Connection refused|"
     "Connection timed out|No route to host|failed to resolve",
     "it cannot be reached", "is it on, on the network, and does its adbd listen there?"),
    ("cannot connect to daemon|failed to start daemon|server version .* doesn't match",
     "the adb server of this computer does not start", "try: adb kill-server; adb start-server"),
)  # fmt: skip


@transport
class AdbTransport:
    def __init__(self, target: Target) -> None:
        self._serial = target.adb.serial if target.adb is not None else None
        self._connect_s = target.adb.connect_timeout_s if target.adb is not None else 10
        self._connected = False

    @property
    def where(self) -> str:
        return f"adb:{self._device() or 'the only device'}"

    def run(self, argv: Sequence[str], *, timeout_s: float = COMMAND_S) -> Completed:
        mark = f"edgefuse-{secrets.token_hex(8)}"
        done = self._reached(["shell", wrapped(argv, mark)], timeout_s)
        said = done.stderr.decode("utf-8", "replace")
        ended = unwrapped(done.stdout, mark)
        if ended is None:
            raise self._broken(said)
        return Completed(*ended, said)

    def write(self, source: Path, destination: str, offset: int) -> None:
        arriving = f"{destination}.piece"
        with tempfile.TemporaryDirectory(prefix="edgefuse-") as folder:
            piece = Path(folder) / "piece"
            with source.open("rb") as stream:
                stream.seek(offset)
                while data := stream.read(PIECE):
                    piece.write_bytes(data)
                    self._transfer(["push", str(piece), arriving], "cannot write a file")
                    self._place(arriving, destination, offset)
                    offset += len(data)
                if not source.stat().st_size:
                    self._place("/dev/null", destination, 0)

    def _place(self, arriving: str, destination: str, offset: int) -> None:
        text = 'dd if="$1" of="$2" bs="$3" seek="$4" conv=notrunc'
        if arriving.endswith(".piece"):
            text += ' && rm -f "$1"'
        words = [arriving, destination, str(BLOCK), str(offset // BLOCK)]
        done = self.run(["sh", "-c", text, "edgefuse", *words], timeout_s=_PIECE_S)
        if done.code:
            refuse(done, "cannot write a file", f"{self.where}:{destination}")

    def read(self, path: str, limit: int) -> bytes:
        done = self.run(["sh", "-c", 'wc -c <"$1"', "edgefuse", path])
        if done.code or not done.text.strip().isdigit():
            refuse(done, "cannot read a file", f"{self.where}:{path}")
        if int(done.text) > limit:
            raise StageError(f"is longer than {limit} bytes", where=f"{self.where}:{path}")
        with tempfile.TemporaryDirectory(prefix="edgefuse-") as folder:
            copy = Path(folder) / "copy"
            self._transfer(["pull", path, str(copy)], "cannot read a file")
            return copy.read_bytes()

    def _transfer(self, words: list[str], doing: str) -> None:
        done = self._reached(words, _PIECE_S)
        said = (done.stderr + done.stdout).decode("utf-8", "replace")
        if done.returncode:
            found = refusal(said, doing, self.where)
            if isinstance(found, DeviceUnavailable):
                raise found
            raise self._broken(said)

    def _reached(self, words: list[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        """Run one adb command on the device, connecting to it first where that is needed."""
        device = self._device()
        if device is not None and ":" in device and not self._connected:
            self._connect(device)
        done = self._adb(["-s", device, *words] if device else words, timeout_s)
        if done.returncode:
            self._connected = False
        return done

    def _connect(self, device: str) -> None:
        """A device on the network: ``adb connect`` ends with 0 whatever it finds."""
        said = self._adb(["connect", device], self._connect_s).stdout.decode("utf-8", "replace")
        if not re.match(r"(already )?connected to", said):
            raise self._broken(said)
        state = self._adb(["-s", device, "get-state"], self._connect_s)
        if state.stdout.strip() != b"device":
            # A dead connection is still listed: only a new one tells.
            self._adb(["disconnect", device], self._connect_s)
            again = self._adb(["connect", device], self._connect_s).stdout.decode()
            state = self._adb(["-s", device, "get-state"], self._connect_s)
            if state.stdout.strip() != b"device":
                raise self._broken(again + state.stderr.decode("utf-8", "replace"))
        self._connected = True

    def _adb(self, words: list[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        program = shutil.which("adb")
        if program is None:
            raise ToolError("there is no adb here", hint="apt install adb")
        try:
            return subprocess.run(
                [program, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            self._connected = False
            raise ConnectionCut(
                f"no answer within {timeout_s:g} s",
                hint="is the device asleep or overloaded?",
                where=self.where,
            ) from None

    def _broken(self, said: str) -> DeviceUnavailable:
        self._connected = False
        for pattern, message, hint in _TROUBLES:
            if re.search(pattern, said):
                return DeviceUnavailable(message, hint=hint, where=self.where)
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return ConnectionCut(
            f"the connection was cut{f' ({lines[-1][:200]})' if lines else ''}",
            hint="what arrived is kept: the same command goes on from there",
            where=self.where,
        )

    def _device(self) -> str | None:
        if self._serial is None:
            return None
        serial = str(local_path(self._serial, Path()))
        if serial.startswith("-") or not re.fullmatch(r"[A-Za-z0-9._:\[\]%-]+", serial):
            raise UsageError(
                f"adb.serial {serial!r} is no serial number",
                hint="give it as `adb devices` prints it",
            )
        return serial
