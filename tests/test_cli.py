"""The command line's streams: full, closed, or read by nobody."""

from __future__ import annotations

import subprocess
import sys

import pytest

EDGEFUSE = f"exec {sys.executable} -m edgefuse.cli"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


def test_a_full_disk_is_told_and_is_no_defect() -> None:
    ended = shell(f"{EDGEFUSE} passes > /dev/full")
    assert ended.returncode == 3
    assert ended.stderr == "edgefuse: the result cannot be written: No space left on device\n"


def test_a_full_disk_does_not_hide_how_a_command_ended() -> None:
    ended = shell(f"{EDGEFUSE} explain nowhere.onnx --json > /dev/full")
    assert ended.returncode == 2
    assert ended.stderr == "edgefuse: there is no file nowhere.onnx\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("passes", 0), ("explain nowhere.onnx --json", 2)])
def test_closed_streams_swallow(words: str, code: int, closed: str) -> None:
    ended = shell(f"{EDGEFUSE} {words} {closed}")
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr and "internal error" not in ended.stderr


def test_a_reader_that_has_gone_changes_nothing() -> None:
    ended = shell(f"set -o pipefail; ({EDGEFUSE} passes) | head -1")
    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) == 1 and not ended.stderr
