"""Converters forked from one that holds its libraries: loading them takes longer than converting.

TensorFlow and onnx2tf take five seconds of processor time to import, and the tests convert some
hundred tiny networks. Here each process of the tests starts this file once, as a program that
loads those libraries and no model, and every conversion is a fork of it.

As ever: a conversion has a process, a session and a working folder of its own, the environment
that was asked for, the same three pipes, and the worker's own code from its first line on. The
fork's parent is another, so that it dies with the tests by its pipe alone. A worker that is asked
for with another environment than the first is started as a user's is, and so are those of
``edgefuse`` as a program: tests/test_kill.py, tests/test_recipes.py, tests/cases.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

WORKER = "edgefuse.tflite.convert_worker"
_LONGEST = 1 << 17  # Bytes of a request: more than any environment has.


class Forked:
    """What ``subprocess.Popen`` offers of a running child, as far as edgefuse.child asks."""

    def __init__(self, words: str, stdin: int, stdout: int, status: int) -> None:
        self.args = words
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._status = os.fdopen(status, "rb", buffering=0)
        self.pid = int(self._status.read(8))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.read(8))
            self._status.close()
        return self.returncode


class Server:
    """The program that holds the libraries; ``environment`` is what it was started with."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._program = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )

    def fork(self, folder: Path | None, environment: Mapping[str, str], log: Path) -> Forked:
        pipes = [os.pipe() for _ in range(3)]
        (given, stdin), (stdout, answers), (status, told) = pipes
        request = {"folder": str(folder or Path.cwd()), "environment": dict(environment)}
        with log.open("ab") as stream:
            theirs = [given, answers, stream.fileno(), told]
            socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for descriptor in (given, answers, told):
            os.close(descriptor)
        return Forked(WORKER, stdin, stdout, status)

    def close(self) -> None:
        self._socket.close()
        self._program.wait(10)


@contextlib.contextmanager
def forked_converters() -> Iterator[None]:
    """From now on edgefuse.child forks converters; nothing is loaded before the first."""
    from edgefuse import child

    start: Callable[..., Any] = child._spawn
    servers: list[Server] = []

    def spawn(
        module: str, log: Path, folder: Path | None, environment: Mapping[str, str] | None
    ) -> Any:
        wanted = {**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})}
        if module != WORKER:
            return start(module, log, folder, environment)
        if not servers:
            servers.append(Server(wanted))
        decides = {"PYTHONPATH", *(environment or {})}
        if any(servers[0].environment.get(name) != wanted.get(name) for name in decides):
            return start(module, log, folder, environment)
        log.parent.mkdir(parents=True, exist_ok=True)
        return servers[0].fork(folder, wanted, log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "_spawn", spawn)
        yield
    for server in servers:
        server.close()


def _serve(requests: socket.socket) -> None:
    import gc

    from edgefuse.child import _die_with_parent

    _die_with_parent()
    import onnx2tf  # noqa: F401

    import edgefuse.tflite.signature
    import edgefuse.tflite.spelling  # noqa: F401

    gc.freeze()
    keepers: set[int] = set()
    while True:
        line, (stdin, stdout, stderr, status), _, _ = socket.recv_fds(requests, _LONGEST, 4)
        keepers -= {one for one in keepers if os.waitpid(one, os.WNOHANG)[0]}
        keeper = os.fork()
        if keeper == 0:
            requests.close()
            worker = os.fork()
            if worker == 0:
                _work(json.loads(line), (stdin, stdout, stderr), status)
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
            _, ended = os.waitpid(worker, 0)
            os.write(status, b"%8d" % os.waitstatus_to_exitcode(ended))
            os._exit(0)
        keepers.add(keeper)
        for descriptor in (stdin, stdout, stderr, status):
            os.close(descriptor)


def _work(request: dict[str, Any], pipes: tuple[int, ...], status: int) -> None:
    """The child, up to where ``python -m edgefuse.tflite.convert_worker`` would begin."""
    os.setsid()
    os.write(status, b"%8d" % os.getpid())
    for place, descriptor in enumerate(pipes):
        os.dup2(descriptor, place)
    for descriptor in (*pipes, status):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    code = 1
    try:
        runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    with contextlib.suppress(ValueError):  # No four descriptors: the tests are over.
        _serve(socket.socket(fileno=int(sys.argv[1])))
