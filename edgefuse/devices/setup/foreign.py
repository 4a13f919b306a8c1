"""Programs that setup calls: apt, dpkg, pip, compilers. Bounded in time, and never a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgefuse.errors import ToolError
from edgefuse.fetch import without_secrets


def program(name: str, remedy: str) -> str:
    """The path of a program.

    Raises:
        ToolError: it is not there; ``remedy`` says what to do.
    """
    path = shutil.which(name)
    if path is None:
        raise ToolError(f"{name} is not installed", hint=remedy)
    return path


def run(
    command: Sequence[str],
    timeout_s: float,
    *,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; both streams are in ``stdout``.

    Raises:
        ToolError: it cannot be started, or takes too long.
    """
    name = Path(command[0]).name
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **(settings or {})},
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} took longer than {timeout_s:g} s and was stopped") from None
    except OSError as error:
        raise ToolError(f"{name} cannot be started: {error.strerror or error}") from error


def said(output: str, *marks: str) -> str:
    """The first line of an output that begins with one of ``marks``, else its last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if marks and line.startswith(marks)]
    line = (errors or lines[-1:] or ["it said nothing"])[0]
    for mark in marks:
        line = line.removeprefix(mark).strip()
    return without_secrets(line)[:300]
