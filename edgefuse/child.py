"""Child processes for foreign libraries and measurements: bounded, quiet, dead with their parent.

The parent writes one JSON line to the child's standard input and keeps the pipe open; the child
answers with one JSON line on standard output. The end of that pipe means that the parent is gone,
however it ended, and the child leaves; on Linux the kernel is asked for the same (PDEATHSIG). The
child leads a process group of its own, so Ctrl-C reaches the parent alone, which then stops it.

``started`` and ``serve`` are for one job. A measurement that interleaves several children asks each
of them many times: ``conversing`` and ``serve_all`` keep the child, one line a job and an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from edgefuse import errors
from edgefuse.errors import EdgefuseError, ToolError

_GRACE_S = 2.0


class Ask(Protocol):
    """Hands a started child its one job and waits for the answer.

    Args of a call: the job; the limit in seconds; ``tick``, called twice a second with the
    seconds gone.

    Raises:
        ToolError: when the child fails, answers nothing, or runs out of time.
        EdgefuseError: the child's own, as it was raised there.
    """

    def __call__(
        self,
        job: Mapping[str, Any],
        timeout_s: float,
        tick: Callable[[float], None] = lambda _: None,
    ) -> dict[str, Any]: ...


def call(module: str, job: Mapping[str, Any], log: Path, timeout_s: float) -> dict[str, Any]:
    """Run ``python -m module`` with ``job`` and return its answer; see :class:`Ask`."""
    with started(module, log) as ask:
        return ask(job, timeout_s)


@contextlib.contextmanager
def started(
    module: str,
    log: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Ask]:
    """Start ``python -m module``: it loads its libraries while the caller prepares the job.

    Args:
        log: the child's standard error is appended here.
        folder: the child's working folder.
        environment: added to this process's.
    """
    child = _spawn(module, log, folder, environment)

    def ask(
        job: Mapping[str, Any],
        timeout_s: float,
        tick: Callable[[float], None] = lambda _: None,
    ) -> dict[str, Any]:
        try:
            answer = _converse(child, json.dumps(job), timeout_s, tick)
        except subprocess.TimeoutExpired:
            raise ToolError(
                f"{module} ran longer than {timeout_s:g} s and was stopped", where=str(log)
            ) from None
        finally:
            _stop(child)
        if child.returncode != 0 and not answer.endswith(b"\n"):
            raise ToolError(
                f"{module} ended with code {child.returncode}: {_last_line(log)}", where=str(log)
            )
        return _result(module, answer, log)

    try:
        yield ask
    finally:
        _stop(child)


def _spawn(
    module: str, log: Path, folder: Path | None, environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            start_new_session=True,
            env={**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})},
            cwd=folder,
        )


class Conversation:
    """A child that answers one job after another; made by :func:`conversing`."""

    def __init__(self, module: str, child: subprocess.Popen[bytes], log: Path) -> None:
        self._module, self._child, self._log = module, child, log
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Every line the child answers; an empty one when its output ends."""
        output = self._child.stdout
        assert output is not None
        with contextlib.suppress(ValueError, OSError):  # The pipe is closed when the child ends.
            for line in output:
                self._answers.put(line)
        self._answers.put(b"")

    def tell(self, job: Mapping[str, Any]) -> None:
        """Hand over a job without waiting; its answer is to be heard before the next one."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # It has ended, or was stopped.
            self._child.stdin.write(json.dumps(job).encode() + b"\n")
            self._child.stdin.flush()

    def hear(self, wait_s: float) -> dict[str, Any] | None:
        """The answer to the last job; None when there is none within ``wait_s`` seconds.

        Raises:
            ToolError: when the child has ended without it.
            EdgefuseError: the child's own, as it was raised there.
        """
        try:
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            return None
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_GRACE_S)
            code = self._child.returncode
            raise ToolError(
                f"{self._module} ended with code {code}: {_last_line(self._log)}",
                where=str(self._log),
            )
        return _result(self._module, line, self._log)

    def ask(self, job: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Hand over a job and wait for its answer.

        Raises:
            ToolError: as :meth:`hear`, and when the child runs out of time: it is stopped.
        """
        self.tell(job)
        answer = self.hear(timeout_s)
        if answer is None:
            self.stop()
            raise ToolError(
                f"{self._module} ran longer than {timeout_s:g} s and was stopped",
                where=str(self._log),
            )
        return answer

    def stop(self) -> None:
        """End the child, whatever it does."""
        _stop(self._child)


@contextlib.contextmanager
def conversing(
    module: str,
    log: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Conversation]:
    """Start ``python -m module``, which serves any number of jobs; arguments as :func:`started`."""
    conversation = Conversation(module, _spawn(module, log, folder, environment), log)
    try:
        yield conversation
    finally:
        conversation.stop()


def _result(module: str, answer: bytes, log: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(answer)
    except ValueError:
        raise ToolError(f"{module} gave no answer", where=str(log)) from None
    if "error" in result:
        kind = getattr(errors, result["error"].pop("kind"))
        raise kind(result["error"].pop("message"), **result["error"])
    return result


def _converse(
    child: subprocess.Popen[bytes], line: str, timeout_s: float, tick: Callable[[float], None]
) -> bytes:
    """Send the job, keep the pipe open, read the answer until the child closes its output."""
    if child.stdin is None or child.stdout is None:
        raise ToolError("the child has no pipes")
    try:
        child.stdin.write(line.encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        pass
    pieces: list[bytes] = []
    output = child.stdout
    reader = threading.Thread(target=lambda: pieces.append(output.read()), daemon=True)
    reader.start()
    start = time.monotonic()
    while reader.is_alive():
        reader.join(0.5)
        if (gone := time.monotonic() - start) < timeout_s:
            tick(gone)
            continue
        raise subprocess.TimeoutExpired(child.args, timeout_s)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
    return b"".join(pieces)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def serve(
    work: Callable[[dict[str, Any]], Mapping[str, Any]], load: Callable[[], None] = lambda: None
) -> None:
    """The child's side: read one job, answer it, die with the parent.

    Args:
        load: imports what ``work`` needs, before there is a job.
    """
    answer = _private_output()
    load()
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(1)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with os.fdopen(answer, "w") as stream:
        stream.write(_answered(work, line))
    # The result is out: no need to wait for a large library to take itself apart.
    os._exit(0)


def serve_all(work: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """The child's side of :func:`conversing`: answer every job until the parent is gone."""
    answer = _private_output()
    jobs: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            jobs.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    with os.fdopen(answer, "w") as stream:
        while True:
            stream.write(_answered(work, jobs.get()))
            stream.flush()


def _private_output() -> int:
    """The descriptor of the answers. Native code may print to 1: it goes to the log."""
    _die_with_parent()
    answer = os.dup(1)
    os.dup2(2, 1)
    return answer


def _answered(work: Callable[[dict[str, Any]], Mapping[str, Any]], line: bytes) -> str:
    """The answer to one job, as a line."""
    try:
        result = json.dumps(work(json.loads(line)))
    except EdgefuseError as error:
        told = {"message": error.message, "hint": error.hint, "where": error.where}
        result = json.dumps({"error": {"kind": type(error).__name__, **told}})
    sys.stdout.flush()
    sys.stderr.flush()
    return result + "\n"


def _die_with_parent() -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
