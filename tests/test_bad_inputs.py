"""Every bad input of bad_inputs.py: the exit code, one message with the place and the remedy.

Whatever is wrong: no traceback, no half-written output, no file of the user's touched.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from bad_inputs import NET, ROWS, TEXT, TORCH, Place
from command import edgefuse

from edgefuse.artifact import digest_file

LEFT = {"edgefuse.log", "report.json", "report.html"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EDGEFUSE_DATA", raising=False)
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Place(folder)


def state(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): digest_file(path) if path.is_file() else "folder"
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts and "out" not in path.relative_to(folder).parts[:1]
    }


def test_there_are_enough_rows() -> None:
    assert len(ROWS) >= 36
    assert len({row.what for row in ROWS.values()}) == len(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_bad_input(place: Place, name: str) -> None:
    row = ROWS[name]
    words = row.build(place)
    before = state(place.folder)
    ended = row.act(place, words)
    assert ended.code == row.code, ended.err
    for pattern in row.says:
        assert re.search(pattern, ended.err), f"{pattern} not in:\n{ended.err}"
    assert len(ended.messages) == (row.code != 0), ended.err
    assert "Traceback" not in ended.err + ended.out
    assert "internal error" not in ended.err
    if row.hint:
        assert "\n  hint: " in ended.err, ended.err
    assert all(len(line) < 1000 for line in ended.err.splitlines()), ended.err
    assert state(place.folder) == before
    if place.out.is_dir():
        found = {p.relative_to(place.out).as_posix() for p in place.out.rglob("*")}
        assert found <= LEFT | set(row.made), found
        log = (place.out / "edgefuse.log").read_text()
        assert row.code == 0 or "run ended" in log
    leftovers = [
        path
        for pattern in (".tmp-*", ".part-*", "work/*")
        for path in (place.cache.rglob(pattern) if place.cache.exists() else ())
    ]
    assert not leftovers


SLOW = NET.replace(
    "def make(width=3):\n",
    "def make(width=3):\n    import pathlib, time\n    if pathlib.Path('slow').exists():\n"
    "        pathlib.Path('slow').unlink()\n        time.sleep(60)\n",
)


def test_ctrl_c_ends_with_130_and_the_next_run_goes_on(place: Place) -> None:
    words = [str(word) for word in (*place.torch(net=SLOW), "--until", "export")]
    (place.folder / "slow").touch()
    command = [sys.executable, "-m", "edgefuse.cli", *words]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place.folder
    )
    deadline = time.monotonic() + 60
    while (place.folder / "slow").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert err.count("edgefuse: ") == 1 and "interrupted" in err and "run again" in err
    assert "Traceback" not in out + err
    assert {p.name for p in place.out.iterdir()} == {"edgefuse.log"}
    assert not list((place.cache / "work").iterdir())
    again = edgefuse(*words)
    assert again.code == 0, again.err
    assert (place.out / "net.onnx").is_file()


def test_ctrl_c_during_a_conversion_leaves_no_child(place: Place) -> None:
    words = [str(word) for word in place.onnx(TEXT)]
    command = [sys.executable, "-m", "edgefuse.cli", *words]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=place.folder
    )
    parent, deadline = psutil.Process(child.pid), time.monotonic() + 60
    workers: list[psutil.Process] = []
    while not workers and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        workers = [c for c in parent.children() if "convert_worker" in " ".join(c.cmdline())]
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130 and "edgefuse: interrupted" in err, err
    assert workers and not psutil.wait_procs(workers, timeout=5)[1]
    assert not list((place.cache / "work").iterdir())
    assert {p.name for p in place.out.iterdir()} == {"edgefuse.log", "net.onnx", "net_fused.onnx"}


def test_the_recipe_of_these_rows_is_a_good_one(place: Place) -> None:
    assert edgefuse(*place.torch(), "--until", "export").code == 0
    assert TORCH in place.recipe.read_text()
