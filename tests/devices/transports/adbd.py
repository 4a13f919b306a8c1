"""A device as the adb client sees one over TCP: CNXN, OPEN, WRTE, OKAY, CLSE, two services.

``shell:`` (with protocol 2, or with a terminal in between as on old devices) runs commands on this
machine; ``sync:`` has STAT, SEND, RECV and QUIT. No authentication.
"""

from __future__ import annotations

import contextlib
import os
import pty
import queue
import socket
import struct
import subprocess
import termios
import threading
from pathlib import Path

_VERSION, _MOST = 0x01000001, 1 << 16
_HEAD = struct.Struct("<4s5I")


class Adbd:
    """Listens on a port of its own until it is closed."""

    def __init__(self, *, shell_v2: bool = True) -> None:
        features = "shell_v2,cmd" if shell_v2 else "cmd"
        self._banner = f"device::ro.product.name=loop;features={features}".encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.children: set[subprocess.Popen[bytes]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self.kill_shells()

    def kill_shells(self) -> int:
        """Kill what runs on the device now; how many."""
        running = [child for child in list(self.children) if child.poll() is None]
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
        return len(running)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_Link(self, connection).serve, daemon=True).start()


class _Link:
    """One connection of an adb server."""

    def __init__(self, device: Adbd, connection: socket.socket) -> None:
        self.device = device
        self._connection = connection
        self._sending = threading.Lock()
        self._streams: dict[int, _Stream] = {}

    def serve(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                command, one, two, size, _, _ = _HEAD.unpack(self._exactly(_HEAD.size))
                self._take(command, one, two, self._exactly(size))
        for stream in list(self._streams.values()):
            stream.end()
        self._connection.close()

    def _take(self, command: bytes, one: int, two: int, data: bytes) -> None:
        if command == b"CNXN":
            self.send(b"CNXN", _VERSION, _MOST, self.device._banner)
        elif command == b"OPEN":
            stream = self._streams[one] = _Stream(self, one)
            self.send(b"OKAY", one, one)
            service = data.rstrip(b"\0").decode()
            threading.Thread(target=stream.run, args=(service,), daemon=True).start()
        elif command == b"WRTE" and two in self._streams:
            self._streams[two].arrived.put(data)
            self.send(b"OKAY", two, one)
        elif command == b"OKAY" and two in self._streams:
            self._streams[two].ready.release()
        elif command == b"CLSE" and two in self._streams:
            self._streams.pop(two).end()

    def send(self, command: bytes, one: int, two: int, data: bytes = b"") -> None:
        magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
        head = _HEAD.pack(command, one, two, len(data), sum(data) & 0xFFFFFFFF, magic)
        with self._sending:
            self._connection.sendall(head + data)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


class _Stream:
    """One service that the host has opened; its number is the same on both sides."""

    def __init__(self, link: _Link, number: int) -> None:
        self._link, self._number = link, number
        self.arrived: queue.Queue[bytes] = queue.Queue()
        self.ready = threading.Semaphore(1)
        self._held = b""
        self._over = False

    def run(self, service: str) -> None:
        with contextlib.suppress(OSError, EOFError):
            if service.startswith("sync:"):
                self._sync()
            elif service.startswith("shell,v2"):
                self._shell(service.partition(":")[2])
            elif service.startswith("shell:"):
                self._terminal(service.partition(":")[2])
            self._link.send(b"CLSE", self._number, self._number)
        self._link._streams.pop(self._number, None)

    def end(self) -> None:
        self._over = True
        self.arrived.put(b"")
        self.ready.release()

    def _write(self, data: bytes) -> None:
        for place in range(0, len(data), _MOST):
            self.ready.acquire()
            if self._over:
                raise EOFError
            self._link.send(b"WRTE", self._number, self._number, data[place : place + _MOST])

    def _read(self, size: int) -> bytes:
        while len(self._held) < size:
            piece = self.arrived.get()
            if not piece:
                raise EOFError
            self._held += piece
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _start(self, command: str, **streams: object) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sh", "-c", command], start_new_session=True, **streams)  # type: ignore[call-overload]
        self._link.device.children.add(child)
        return child

    def _shell(self, command: str) -> None:
        pipe = subprocess.PIPE
        child = self._start(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        lock = threading.Lock()

        def copy(number: int, source: object) -> None:
            with contextlib.suppress(OSError, EOFError):
                while piece := os.read(source.fileno(), 1 << 15):  # type: ignore[attr-defined]
                    with lock:
                        self._write(struct.pack("<BI", number, len(piece)) + piece)

        copiers = [
            threading.Thread(target=copy, args=(number, stream), daemon=True)
            for number, stream in ((1, child.stdout), (2, child.stderr))
        ]
        for copier in copiers:
            copier.start()
        for copier in copiers:
            copier.join()
        code = child.wait()
        for stream in (child.stdout, child.stderr):
            stream.close()  # type: ignore[union-attr]
        self._write(struct.pack("<BIB", 3, 1, code & 0xFF))

    def _terminal(self, command: str) -> None:
        """As devices without protocol 2: one stream, LF as CR LF, no exit code."""
        ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        child = self._start(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        try:
            with contextlib.suppress(OSError):  # EIO: the last process has closed it.
                while piece := os.read(ours, 1 << 15):
                    self._write(piece)
        finally:
            os.close(ours)
            child.wait()

    def _sync(self) -> None:
        while True:
            command, size = struct.unpack("<4sI", self._read(8))
            text = b"" if command == b"QUIT" else self._read(size)
            if command == b"STAT":
                self._write(struct.pack("<4s3I", b"STAT", *_stat(text.decode())))
            elif command == b"RECV":
                self._receive(Path(text.decode()))
            elif command == b"SEND":
                self._take_file(Path(text.decode().rpartition(",")[0]))
            elif command == b"QUIT":
                return

    def _receive(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            return self._fail(error)
        for place in range(0, len(data), 1 << 15):
            piece = data[place : place + (1 << 15)]
            self._write(struct.pack("<4sI", b"DATA", len(piece)) + piece)
        self._write(struct.pack("<4sI", b"DONE", 0))

    def _take_file(self, path: Path) -> None:
        trouble: OSError | None = None
        try:
            stream = path.open("wb", buffering=0)
        except OSError as error:
            trouble = error
            stream = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115
        try:
            with stream:
                while True:
                    command, size = struct.unpack("<4sI", self._read(8))
                    if command == b"DONE":
                        break
                    piece = self._read(size)
                    try:
                        stream.write(piece)
                    except OSError as error:
                        trouble = trouble or error
        except EOFError:
            path.unlink(missing_ok=True)
            raise
        if trouble is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            return self._fail(trouble)
        self._write(struct.pack("<4sI", b"OKAY", 0))

    def _fail(self, error: OSError) -> None:
        text = (error.strerror or str(error)).encode()
        self._write(struct.pack("<4sI", b"FAIL", len(text)) + text)


def _stat(path: str) -> tuple[int, int, int]:
    try:
        found = Path(path).lstat()
    except OSError:
        return 0, 0, 0
    return found.st_mode, found.st_size & 0xFFFFFFFF, int(found.st_mtime)
