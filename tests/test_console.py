"""What a run shows: lines, nothing, or a bar; a reader that goes away does not end the run."""

from __future__ import annotations

import io
import sys

import pytest

from edgefuse.console import Bar, Console, Lines, Quiet, choose


def told(console: Console) -> None:
    console.stage_started("fuse", 2, 6, 12.3)
    console.progress(1, 4, "[passes]")
    console.warn("odd [bold]input[/bold]")
    console.tell("fetching")
    console.stage_ended("fuse", "ran", 1.25, "9 -> 4 operators")
    console.stage_started("check", 3, 6, None)
    console.stage_ended("check", "reused", 0.0, "")
    console.close()


def test_lines() -> None:
    stream = io.StringIO()
    told(Lines(stream=stream))
    assert stream.getvalue().splitlines() == [
        "[2/6] fuse ... (about 12 s)",
        "warning: odd [bold]input[/bold]",
        "  fetching",
        "  fuse: ran in 1.2 s - 9 -> 4 operators",
        "[3/6] check ...",
        "  check: reused",
    ]


def test_verbose_lines_show_progress_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    told(Lines(verbose=True, stream=stream))
    assert "  fuse: [passes] 1/4\n" in stream.getvalue()
    seconds = iter(range(0, 1000, 4))
    monkeypatch.setattr("edgefuse.console.time.monotonic", lambda: float(next(seconds)))
    stream = io.StringIO()
    console = Lines(stream=stream)
    console.stage_started("convert", 1, 1, None)
    for index in range(9):
        console.progress(index, 9, "converting")
    assert stream.getvalue().count("converting") == 3, "every ten seconds"


def test_quiet_shows_warnings_only() -> None:
    stream = io.StringIO()
    told(Quiet(stream))
    assert stream.getvalue() == "warning: odd [bold]input[/bold]\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    console = choose()
    assert isinstance(console, Bar)
    told(console)
    text = stream.getvalue()
    assert "odd [bold]input[/bold]" in text and "fuse: ran in 1.2 s - 9 -> 4 operators" in text


def test_a_verbose_bar_keeps_each_step_as_a_line() -> None:
    for verbose in (False, True):
        stream = Terminal()
        told(Bar(verbose, stream))
        assert ("  fuse: [passes] 1/4\n" in stream.getvalue()) is verbose


def test_an_unknown_total_shows_no_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 1000, 11))
    monkeypatch.setattr("edgefuse.console.time.monotonic", lambda: float(next(seconds)))
    stream = io.StringIO()
    console = Lines(verbose=True, stream=stream)
    console.stage_started("convert", 1, 1, None)
    console.progress(11, 0, "converting, 11 s")
    assert stream.getvalue().splitlines()[1] == "  convert: converting, 11 s"


def test_the_console_fits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(choose()) is Lines and type(choose(quiet=True)) is Quiet


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize("kind", [Quiet, Lines])
def test_a_reader_that_has_gone_does_not_end_a_run(kind) -> None:
    told(kind(stream=Closed()))
