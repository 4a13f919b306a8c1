"""Events of a run, shown to people: a bar on a terminal, plain lines in a log, or nothing.

Everything goes to stderr; stdout is for results.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, Protocol, TextIO


class Console(Protocol):
    """Where a run reports to."""

    def stage_started(self, name: str, index: int, count: int, estimate_s: float | None) -> None:
        """``estimate_s``: the last run's wall time in seconds, when known."""

    def progress(self, done: int, total: int, what: str) -> None:
        """``total``: 0 when nobody knows it; ``what`` then says how far it is."""

    def stage_ended(self, name: str, status: str, seconds: float, summary: str) -> None: ...

    def tell(self, text: str) -> None:
        """A line that a user wants to know, as a download that goes on."""

    def warn(self, text: str) -> None: ...

    def close(self) -> None: ...


class Quiet:
    """-q, --json: warnings only."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    def stage_started(self, name: str, index: int, count: int, estimate_s: float | None) -> None:
        pass

    def progress(self, done: int, total: int, what: str) -> None:
        pass

    def stage_ended(self, name: str, status: str, seconds: float, summary: str) -> None:
        pass

    def tell(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        self._line(f"warning: {text}")

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        """A reader of stderr that has gone does not end a run."""
        with contextlib.suppress(BrokenPipeError):
            print(text, file=self.stream, flush=True)


class Lines(Quiet):
    """One line an event, for logs; progress at most every ten seconds."""

    def __init__(self, verbose: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.verbose = verbose
        self._name = ""
        self._last = 0.0

    def stage_started(self, name: str, index: int, count: int, estimate_s: float | None) -> None:
        self._name, self._last = name, time.monotonic()
        about = f" (about {estimate_s:.0f} s)" if estimate_s and estimate_s >= 1 else ""
        self._line(f"[{index}/{count}] {name} ...{about}")

    def progress(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if now - self._last >= 10 or (self.verbose and total):
            self._last = now
            self._line(f"  {self._name}: {_so_far(done, total, what)}")

    def stage_ended(self, name: str, status: str, seconds: float, summary: str) -> None:
        took = "" if status == "reused" else f" in {seconds:.1f} s"
        self._line(f"  {name}: {status}{took}" + (f" - {summary}" if summary else ""))

    def tell(self, text: str) -> None:
        self._line(f"  {text}")


def _so_far(done: int, total: int, what: str) -> str:
    return f"{what} {done}/{total}" if total else what


class Bar(Lines):
    """A progress bar with the time left, on a terminal; with -v each step stays as a line."""

    def __init__(self, verbose: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(verbose, stream)
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._rich = RichConsole(file=self.stream)
        self._bar: Any = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._rich,
            transient=True,
        )
        self._task: Any = None

    def _line(self, text: str) -> None:
        self._rich.print(text, markup=False, highlight=False, soft_wrap=True)

    def stage_started(self, name: str, index: int, count: int, estimate_s: float | None) -> None:
        self._name, self._last = name, time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task(f"[{index}/{count}] {name}".replace("[", r"\["), total=None)

    def progress(self, done: int, total: int, what: str) -> None:
        if self._task is not None:
            label = f"{self._name}: {_so_far(done, total, what)}".replace("[", r"\[")
            self._bar.update(self._task, completed=done, total=total or None, description=label)
        if self.verbose:
            super().progress(done, total, what)

    def stage_ended(self, name: str, status: str, seconds: float, summary: str) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        self._bar.stop()
        super().stage_ended(name, status, seconds, summary)

    def close(self) -> None:
        self._bar.stop()


def choose(*, quiet: bool = False, verbose: bool = False) -> Console:
    """The console for this stderr, on a descriptor of its own.

    Stages may turn descriptor 2 to the log while foreign code runs; ours goes on being seen.
    """
    stream: TextIO = sys.stderr
    if sys.stderr is sys.__stderr__:
        stream = os.fdopen(os.dup(2), "w", encoding=sys.__stderr__.encoding, errors="replace")
    if quiet:
        return Quiet(stream)
    return Bar(verbose, stream) if stream.isatty() else Lines(verbose, stream)
