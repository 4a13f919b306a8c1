"""Transport ``ssh``: the OpenSSH client, which never asks and never trusts a new host key.

What the target gives (port, user, identity_file, known_hosts) is used; what it does not give is the
client's own setting. With both identity_file and known_hosts given, no configuration file and no
agent of the user's is read, so that the push is the same from every account.

One connection is kept (OpenSSH's multiplexing) and commands are sessions in it, since a new one
costs several round trips and a key exchange. It is kept by a session that waits for the end of its
input, which is a pipe of ours: however this process ends, so does the connection. One that died is
made anew by the next command.

A file is written by ``dd`` at its offset, never by appending: a late writer of a connection that
was thought dead writes the same bytes to the same places.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from edgefuse.devices.transport import (
    BLOCK,
    COMMAND_S,
    Completed,
    ConnectionCut,
    refuse,
    transport,
    unwrapped,
    wrapped,
)
from edgefuse.errors import DeviceUnavailable, StageError, ToolError, UsageError
from edgefuse.fetch import local_path

if TYPE_CHECKING:
    from edgefuse.target import Ssh, Target

WRITE_S = 3600.0
_SETTINGS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "LogLevel=ERROR"),
    *("ConnectionAttempts=1", "ServerAliveInterval=5", "ServerAliveCountMax=3"),
    *("ControlPersist=no", "ClearAllForwardings=yes", "ForwardAgent=no"),
    *("PermitLocalCommand=no", "RequestTTY=no", "RemoteCommand=none", "EscapeChar=none"),
)
_TROUBLES = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed|host key is known",
     "its host key is not the one in known_hosts",
     "compare the key with the board's own (ssh-keygen -lf), then correct known_hosts by hand"),
    ("Permission denied|Too many authentication failures|Authentication failed|"
     "no mutual signature|not supported by any|UNPROTECTED PRIVATE KEY",
     "it refuses the key",
     "add the public key to the board's authorized_keys; the private key needs mode 600 and "
     "no passphrase, or an agent"),
    ("Could not resolve hostname|Name or service not known",
     "its name cannot be resolved", "check the target's ssh.host"),
    ("Connection refused|timed out|No route to host|Network is unreachable|Host is down|"
     "Connection timeout",
     "it cannot be reached", "is it on, on the network, and does sshd listen on that port?"),
    ("no matching .* found|Protocol major versions differ|incompatible",
     "it and the ssh client have no protocol in common", "update the board's sshd"),
    ("Bad configuration option|Can't open user config|Bad owner or permissions",
     "the ssh client's own configuration is wrong",
     "try: ssh -v HOST, or give identity_file and known_hosts in the target"),
)  # fmt: skip


@transport
class SshTransport:
    def __init__(self, target: Target) -> None:
        assert target.ssh is not None
        self._ssh: Ssh = target.ssh
        self._connecting = threading.Lock()
        self._kept: subprocess.Popen[bytes] | None = None
        self._socket = ""

    @property
    def _host(self) -> str:
        return _plain(str(local_path(self._ssh.host, Path())), "host", r"[A-Za-z0-9._:%\[\]-]+")

    @property
    def where(self) -> str:
        user = f"{self._ssh.user}@" if self._ssh.user else ""
        port = f":{self._ssh.port}" if self._ssh.port else ""
        return f"ssh://{user}{self._host}{port}"

    def run(self, argv: Sequence[str], *, timeout_s: float = COMMAND_S) -> Completed:
        return self._run(argv, timeout_s, None)

    def write(self, source: Path, destination: str, offset: int) -> None:
        argv = ["dd", f"of={destination}", f"bs={BLOCK}", f"seek={offset // BLOCK}", "conv=notrunc"]
        with source.open("rb", buffering=0) as stream:
            stream.seek(offset)
            done = self._run(argv, WRITE_S, stream)
        if done.code:
            refuse(done, "cannot write a file", f"{self.where}:{destination}")

    def read(self, path: str, limit: int) -> bytes:
        done = self.run(["sh", "-c", 'head -c "$1" <"$2"', "edgefuse", str(limit + 1), path])
        if done.code:
            refuse(done, "cannot read a file", f"{self.where}:{path}")
        if len(done.out) > limit:
            raise StageError(f"is longer than {limit} bytes", where=f"{self.where}:{path}")
        return done.out

    def _command(self, master: bool, command: str) -> list[str]:
        program = shutil.which("ssh")
        if program is None:
            raise ToolError("there is no ssh here", hint="apt install openssh-client")
        words = [program, "-T", "-x", "-a", "-S", self._socket]
        words += ["-o", f"ControlMaster={'yes' if master else 'no'}"]
        for setting in (*_SETTINGS, f"ConnectTimeout={self._ssh.connect_timeout_s}"):
            words += ["-o", setting]
        if self._ssh.identity_file is not None:
            words += ["-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"]
            words += ["-i", str(_existing(self._ssh.identity_file, "identity_file"))]
        if self._ssh.known_hosts is not None:
            known = str(_existing(self._ssh.known_hosts, "known_hosts"))
            if re.search(r'[\s"%]', known):
                raise UsageError(f"ssh.known_hosts {known!r}: no spaces, quotes or % in its path")
            words += ["-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=none"]
        if self._ssh.identity_file is not None and self._ssh.known_hosts is not None:
            words += ["-F", "none"]
        if self._ssh.port is not None:
            words += ["-p", str(self._ssh.port)]
        if self._ssh.user is not None:
            words += ["-l", _plain(self._ssh.user, "user", r"[A-Za-z0-9._@\\-]+")]
        return [*words, "--", self._host, command]

    def _connect(self) -> None:
        """Make the connection, unless it stands.

        Raises:
            DeviceUnavailable: it cannot be made; the message says why.
        """
        with self._connecting:
            if self._kept is not None and self._kept.poll() is None:
                return
            folder = tempfile.mkdtemp(prefix="edgefuse-ssh-")
            self._socket = f"{folder}/s"
            said = Path(folder) / "stderr"
            try:
                with said.open("wb") as stream:
                    kept = subprocess.Popen(
                        self._command(True, "cat >/dev/null"),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=stream,
                        start_new_session=True,
                        env={**os.environ, "LC_ALL": "C"},
                    )
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            weakref.finalize(self, _end, kept, folder)
            until = time.monotonic() + self._ssh.connect_timeout_s * 2 + 5
            while not Path(self._socket).exists():
                if kept.poll() is not None or time.monotonic() > until:
                    text = said.read_text("utf-8", "replace")
                    _end(kept, folder)
                    raise self._trouble(text or "Connection timed out")
                time.sleep(0.005)
            self._kept = kept

    def _run(self, argv: Sequence[str], timeout_s: float, stdin: IO[bytes] | None) -> Completed:
        self._connect()
        mark = f"edgefuse-{secrets.token_hex(8)}"
        try:
            done = subprocess.run(
                self._command(False, wrapped(argv, mark)),
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                capture_output=True,
                timeout=timeout_s,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            raise ConnectionCut(
                f"no answer within {timeout_s:g} s",
                hint="is the board overloaded, or the network gone?",
                where=self.where,
            ) from None
        said = done.stderr.decode("utf-8", "replace")
        ended = unwrapped(done.stdout, mark)
        if ended is not None:
            return Completed(*ended, said)
        raise self._trouble("" if mark.encode() in done.stdout else said)

    def _trouble(self, said: str) -> DeviceUnavailable:
        """What the client's last words mean."""
        for pattern, message, hint in _TROUBLES:
            if re.search(pattern, said):
                return DeviceUnavailable(message, hint=hint, where=self.where)
        return ConnectionCut(
            f"the connection was cut{_last(said)}",
            hint="what arrived is kept: the same command goes on from there",
            where=self.where,
        )


def _end(kept: subprocess.Popen[bytes], folder: str) -> None:
    """Close a connection that was kept."""
    if kept.stdin is not None:
        with contextlib.suppress(OSError):
            kept.stdin.close()
    if kept.poll() is None:
        kept.terminate()
        try:
            kept.wait(5)
        except subprocess.TimeoutExpired:
            kept.kill()
            kept.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f" ({lines[-1][:200]})" if lines else ""


def _plain(value: str, key: str, allowed: str) -> str:
    if value.startswith("-") or not re.fullmatch(allowed, value):
        raise UsageError(
            f"ssh.{key} {value!r} is no {key} name", hint="it may not begin with - or hold spaces"
        )
    return value


def _existing(text: str, key: str) -> Path:
    path = local_path(text, Path())
    if not path.is_file():
        raise UsageError(f"ssh.{key} does not exist", where=str(path))
    return path.absolute()
