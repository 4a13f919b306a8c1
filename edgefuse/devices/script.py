"""Runs a program of a private environment once: bounded, quiet, its words kept.

:mod:`edgefuse.child` starts modules of ours under our own Python. What runs here has another
Python, or is no Python at all: nothing of edgefuse can be imported there, so a job goes in as a
JSON line on standard input and its results come out as files.

Scope: one job a process, killed with everything it started when it runs too long or the caller is
interrupted. Left alone: what the program's words mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefuse.errors import ToolError


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        code: its exit code; negative: the signal that ended it.
        output: standard output.
        words: standard error.
    """

    code: int
    output: str
    words: str

    @property
    def last_words(self) -> str:
        """The last line that it wrote; for people."""
        lines = (self.words.strip() or self.output.strip()).splitlines()
        return lines[-1].strip() if lines else "it said nothing"


def run_script(
    command: Sequence[str | Path],
    log: Path,
    *,
    timeout_s: float,
    job: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Finished:
    """Run a program to its end, whatever its exit code.

    Args:
        log: what it says is appended here.
        job: written to its standard input as a line of JSON.
        folder: its working folder.

    Raises:
        ToolError: it cannot be started, or runs longer than ``timeout_s``.
    """
    words = [str(word) for word in command]
    name = Path(words[0]).name
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=folder,
        )
    except OSError as error:
        raise ToolError(
            f"{name} cannot be started: {error.strerror or error}", where=words[0]
        ) from error
    line = json.dumps(job).encode() + b"\n" if job is not None else b""
    try:
        output, said = child.communicate(line, timeout_s)
    except subprocess.TimeoutExpired:
        raise ToolError(
            f"{name} ran longer than {timeout_s:g} s and was stopped", where=str(log)
        ) from None
    finally:
        _stop(child)
    finished = Finished(
        child.returncode, output.decode("utf-8", "replace"), said.decode("utf-8", "replace")
    )
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"$ {' '.join(words)}\n{finished.output}{finished.words}")
    return finished


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
