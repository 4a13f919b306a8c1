"""What every test may use: external tools, and a count of what was skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def require_tool() -> Callable[..., str]:
    """``require_tool(name, *candidates)`` is the path of a program.

    ``EDGEFUSE_<NAME>`` in the environment wins, else the first candidate on PATH (without
    candidates: ``name`` itself). Without the program the test is skipped, or fails when
    ``EDGEFUSE_STRICT`` is 1.
    """

    def find(name: str, *candidates: str) -> str:
        variable = f"EDGEFUSE_{name.upper().replace('-', '_')}"
        given = os.environ.get(variable)
        for candidate in (given,) if given else candidates or (name,):
            path = shutil.which(candidate)
            if path:
                return path
        message = f"{name} not found: install it, or set {variable} to its path"
        if os.environ.get("EDGEFUSE_STRICT") == "1":
            pytest.fail(f"{message} (EDGEFUSE_STRICT=1)", pytrace=False)
        pytest.skip(message)

    return find


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = len(terminalreporter.getreports("skipped"))
    terminalreporter.write_line(f"skipped: {skipped} {'test' if skipped == 1 else 'tests'}")
