"""Boards to push to: this machine over a real sshd, or over a real adb client and our own adbd."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefuse.target import Target

KEYS = ("host", "other_host", "user", "stranger")


def make_target(root: Path, transport: str, **fields: Any) -> Target:
    """A board that is this machine, with Python in place of the runner."""
    given: dict[str, Any] = {
        "name": f"board-{transport}",
        "summary": "this machine",
        "transport": transport,
        "runtime": "litert",
        "install_path": str(root),
    }
    if transport != "local":
        given |= {"architecture": "x86_64", "python": sys.executable}
    return Target.model_validate({**given, **fields})


@dataclass(frozen=True)
class Sshd:
    """A running server and its keys' folder."""

    port: int
    keys: Path
    process: subprocess.Popen[bytes]

    def target(self, root: Path, port: int | None = None, **ssh: Any) -> Target:
        """A board behind it, or behind another port that leads to it."""
        section = {
            "host": "127.0.0.1",
            "port": port or self.port,
            "identity_file": str(self.keys / "user"),
            "known_hosts": str(self.known_hosts(port or self.port)),
            "connect_timeout_s": 5,
        }
        return make_target(root, "ssh", ssh={**section, **ssh})

    def known_hosts(self, port: int, key: str = "host") -> Path:
        path = self.keys / f"known_{key}_{port}"
        public = " ".join((self.keys / f"{key}.pub").read_text().split()[:2])
        path.write_text(f"[127.0.0.1]:{port} {public}\n")
        return path

    def kill_shells(self) -> int:
        """Kill every session that is open now; how many processes."""
        tree = _children()
        wanted, killed = list(tree.get(self.process.pid, [])), 0
        while wanted:
            one = wanted.pop()
            wanted += tree.get(one, [])
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, 9)
                killed += 1
        return killed


def _children() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            tree.setdefault(parent, []).append(int(stat.parent.name))
    return tree


@contextlib.contextmanager
def running_sshd(program: str, folder: Path) -> Iterator[Sshd]:
    """sshd on a free port of the loopback, with keys of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for key in KEYS:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "Port": port, "ListenAddress": "127.0.0.1", "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized_keys", "PidFile": "none", "UsePAM": "no",
        "StrictModes": "no", "PasswordAuthentication": "no", "MaxStartups": "200", "UseDNS": "no",
        "KbdInteractiveAuthentication": "no", "PermitRootLogin": "prohibit-password",
        "PrintMotd": "no", "LogLevel": "ERROR",
        # bash reads ~/.bashrc for every command that comes over ssh: not the developer's own.
        "SetEnv": f"HOME={folder}",
    }  # fmt: skip
    lines = [f"{key} {value}\n" for key, value in settings.items()]
    (folder / "sshd_config").write_text("".join(lines))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: _listens(port), 10)
        yield Sshd(port, folder, process)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def private_adb(folder: Path) -> Iterator[dict[str, str]]:
    """Environment of an adb server of our own, which ends with it."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"ANDROID_ADB_SERVER_PORT": str(free_port()), "HOME": str(folder)}
    try:
        yield environment
    finally:
        subprocess.run(
            ["adb", "kill-server"], env={**os.environ, **environment}, capture_output=True
        )


def adb_target(root: Path, port: int, **fields: Any) -> Target:
    adb = {"serial": f"127.0.0.1:{port}", "connect_timeout_s": 5}
    return make_target(root, "adb", adb=adb, **fields)


class Proxy:
    """Passes TCP on to a port, until a number of bytes has gone through: then it cuts.

    Args:
        stays_down: whether it then refuses every connection, or only cuts those that are open.
        corrupts: whether it changes one bit in place of cutting.
    """

    def __init__(self, to: int) -> None:
        self._to = to
        self._left: int | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.down = False
        self.cuts = 0
        self.passed = 0
        self._stays_down = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, count: int | None, *, stays_down: bool = True) -> None:
        with self._lock:
            self._left, self._stays_down = count, stays_down

    def restore(self) -> None:
        self.cut_after(None)
        self.down = False

    def cut(self) -> None:
        """Close what is open, at once and without a farewell."""
        self.cuts += 1
        self.down = self.down or self._stays_down
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 14):
                with self._lock:
                    self.passed += len(piece)
                    cutting = self._left is not None and len(piece) > self._left
                    if self._left is not None:
                        piece = piece[: self._left] if cutting else piece
                        self._left = None if cutting else self._left - len(piece)
                sink.sendall(piece)
                if cutting:
                    self.cut()
        for one in (source, sink):
            self._open.discard(one)
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait_for(holds: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)
