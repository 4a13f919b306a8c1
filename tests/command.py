"""The command line as a user meets it, in this process: words in; exit code and streams out."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from edgefuse import cli, keys


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """The errors told: each starts a line with the program's name."""
        return [line for line in self.err.splitlines() if line.startswith("edgefuse: ")]


def edgefuse(*words: str | Path) -> Ended:
    """Run one command line through the real entry."""
    out, err = io.StringIO(), io.StringIO()
    argv, loggers = sys.argv, list(logging.getLogger().handlers)
    modules, path = set(sys.modules), list(sys.path)
    sys.argv = ["edgefuse", *map(str, words)]
    keys.callable_digest.cache_clear()
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            code = cli.guarded(functools.partial(cli.app, prog_name="edgefuse"))
    finally:
        sys.argv, sys.path[:] = argv, path
        logging.getLogger().handlers = loggers
        for name in set(sys.modules) - modules:
            if name.startswith("users_"):
                del sys.modules[name]
    return Ended(code, out.getvalue(), err.getvalue())
