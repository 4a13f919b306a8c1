"""How a command ends: its result on stdout, one message on stderr, an exit code.

``cli.py`` alone calls :func:`guarded` and exits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgefuse.errors import EXIT_INTERRUPTED, EdgefuseError, StoreError, UsageError


def print_result(text: str) -> None:
    """A result on stdout. A reader that has gone does not change how the command ends.

    Raises:
        StoreError: it cannot be written, as on a full disk.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        if not isinstance(error, BrokenPipeError):
            raise StoreError(f"the result cannot be written: {error.strerror}") from error


def say(text: str) -> None:
    """A message on stderr. What it quotes, a key or a file's name, may not steer a terminal."""
    text = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)


def guarded(action: Callable[[], Any]) -> int:
    """Run and turn every ending into an exit code and at most one message."""
    try:
        action()
    except EdgefuseError as error:
        fields = {k: getattr(error, k) for k in ("message", "hint", "where")}
        return _ended(error.exit_code, f"edgefuse: {error}", kind=type(error).__name__, **fields)
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as ended:
        code = ended.code
        if code == EXIT_INTERRUPTED:  # Typer turns Ctrl-C into this, without a word.
            return _interrupted()
        return code if isinstance(code, int) else 0 if code is None else 2
    except OSError as error:
        return _unusable(error)
    except MemoryError as error:
        text, hint = f"out of memory: {error}", "take a smaller input or batch, or a larger machine"
        fields = {"message": text, "hint": hint}
        return _ended(3, f"edgefuse: {text}\n  hint: {hint}", kind="MemoryError", **fields)
    except Exception as error:
        return _internal(error)
    return 0


def _ended(code: int, text: str, **fields: str) -> int:
    if "--json" in sys.argv:
        with contextlib.suppress(StoreError):  # how the command ended matters more
            print_result(json.dumps({"error": fields, "exit_code": code}, indent=1))
    say(text)
    return code


def _unusable(error: OSError) -> int:
    """A path of the user's that the system refuses even to look at; else a defect of ours."""
    if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES) or not error.filename:
        return _internal(error)
    place, message = os.fsdecode(error.filename)[:300], f"cannot be used: {error.strerror}"
    hint = "choose another name or place, or check the permissions of its folders"
    fields = {"message": message, "hint": hint, "where": place}
    code = UsageError.exit_code
    return _ended(code, f"edgefuse: {place}: {message}\n  hint: {hint}", kind="OSError", **fields)


def _interrupted() -> int:
    text = "interrupted; finished stages are kept, run again to go on"
    return _ended(EXIT_INTERRUPTED, f"edgefuse: {text}", kind="Interrupted", message=text)


def _internal(error: Exception) -> int:
    """A defect of ours: one line, the traceback in a file if one can be written."""
    import tempfile
    import traceback

    text = f"internal error: {type(error).__name__}: {error}"
    try:
        descriptor, name = tempfile.mkstemp(prefix="edgefuse-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
            stream.write("".join(traceback.format_exception(error)))
        hint = f"this is a defect of edgefuse; please report it with {name}"
    except OSError as full:
        why = full.strerror or full
        hint = f"this is a defect of edgefuse; its traceback could not be written: {why}"
    return _ended(
        3, f"edgefuse: {text}\n  hint: {hint}", kind="InternalError", message=text, hint=hint
    )
