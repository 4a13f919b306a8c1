"""The command line's streams: full, closed, or read by nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import edgefuse
from fake_stages import TEXT

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


def test_names_that_no_file_can_have_are_told(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    long = "n" * 300
    recipe.write_text(TEXT.replace("model.onnx", f"{long}.onnx"))
    for words in (["plan", recipe], ["memory", f"{long}.onnx"], ["run", recipe, "--out", long]):
        ended = edgefuse(*words)
        assert ended.code == 2 and len(ended.messages) == 1, ended.err
        assert f"{long[:200]}" in ended.err and "cannot be used: File name too long" in ended.err


def test_what_a_message_quotes_cannot_steer_the_terminal(tmp_path: Path) -> None:
    ended = edgefuse("explain", tmp_path / "\x1b[31mred\x9b.onnx")
    assert ended.code == 2 and r"\x1b[31mred\x9b.onnx" in ended.err and "\x1b" not in ended.err
