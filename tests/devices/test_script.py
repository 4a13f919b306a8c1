from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from edgefuse.devices.script import run_script
from edgefuse.errors import ToolError

PYTHON = sys.executable


def test_what_a_program_did(tmp_path: Path) -> None:
    text = "import sys; print(sys.stdin.readline(), end=''); print('why', file=sys.stderr); exit(3)"
    done = run_script([PYTHON, "-c", text], tmp_path / "log", timeout_s=60, job={"a": 1})
    assert (done.code, done.output, done.words) == (3, '{"a": 1}\n', "why\n")
    assert done.last_words == "why"
    log = (tmp_path / "log").read_text()
    assert log.startswith("$ ") and '{"a": 1}\nwhy\n' in log


def test_crash_is_an_answer(tmp_path: Path) -> None:
    text = "import os; os.kill(os.getpid(), 11)"
    done = run_script([PYTHON, "-c", text], tmp_path / "log", timeout_s=60)
    assert done.code == -11
    assert done.last_words == "it said nothing"


def test_stopped_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(mark)!r}).touch()"
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(ToolError, match=r"ran longer than 1\.5 s and was stopped"):
        run_script([PYTHON, "-c", text], tmp_path / "log", timeout_s=1.5)
    time.sleep(2.5)
    assert not mark.exists()


def test_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be started"):
        run_script([tmp_path / "absent"], tmp_path / "log", timeout_s=1)
