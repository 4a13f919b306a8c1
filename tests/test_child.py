from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgefuse.child import call, conversing
from edgefuse.errors import SourceError, ToolError

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *([known] if known else [])]))


def test_answer_and_log(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log.txt"
    assert call("misbehave", {"do": "print"}, log, 30) == {"answer": "print"}
    assert log.read_text() == "noise on standard output\n"


def test_timeout_stops_the_child(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ToolError, match=r"ran longer than 1 s and was stopped"):
        call("misbehave", {"do": "sleep"}, tmp_path / "log", 1)
    assert time.monotonic() - start < 10


def test_failures(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="ended with code 7: last words"):
        call("misbehave", {"do": "crash"}, tmp_path / "log", 30)
    with pytest.raises(ToolError, match="gave no answer"):
        call("misbehave", {"do": "silent"}, tmp_path / "log", 30)
    with pytest.raises(ToolError, match="No module named"):
        call("no_such_module", {}, tmp_path / "log", 30)
    with pytest.raises(SourceError, match="bad file") as caught:
        call("misbehave", {"do": "raise"}, tmp_path / "log", 30)
    assert (caught.value.hint, caught.value.where) == ("another file", "x.tflite")


PARENT = """
import sys
from pathlib import Path
import edgefuse.child as child
start = child.subprocess.Popen
def spy(*args, **kwargs):
    made = start(*args, **kwargs)
    print(made.pid, flush=True)
    return made
child.subprocess.Popen = spy
child.call("misbehave", {"do": "sleep"}, Path(sys.argv[1]), 60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_child_dies_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.send_signal(how)
    parent.wait(10)
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_conversation_ends_in_time(tmp_path: Path) -> None:
    start = time.monotonic()
    with conversing("misbehave", tmp_path / "log") as talk:
        with pytest.raises(ToolError, match=r"ran longer than 1 s and was stopped"):
            talk.ask({"do": "sleep"}, 1)
        with pytest.raises(ToolError, match="ended with code"):
            talk.ask({"do": "print"}, 30)
    assert time.monotonic() - start < 10
