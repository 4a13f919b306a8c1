"""schema, passes, targets, help: they answer, and import nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import edgefuse

ROOT = Path(__file__).resolve().parents[2]


def test_lists() -> None:
    schema = json.loads(edgefuse("schema").out)
    assert "schema" in schema["required"] and schema["title"] == "Recipe"
    passes = edgefuse("passes").out
    files = {p.stem for p in (ROOT / "edgefuse/passes").glob("[a-z]*.py")}
    assert all(name in passes for name in files) and passes.count("\n") == len(files)
    assert "host " in edgefuse("targets").out


@pytest.mark.parametrize("words", [[], ["--help"], ["run", "--help"]])
def test_help(words: list[str]) -> None:
    ended = edgefuse(*words)
    assert ended.code in (0, 2) and "Usage: edgefuse" in ended.out + ended.err
    if words == ["--help"]:
        assert "130: interrupted" in " ".join(ended.out.split())


@pytest.mark.parametrize("words", [["rn"], ["run"], ["run", "a", "--nope"], ["push", "a"]])
def test_a_wrong_command_line_is_usage(words: list[str]) -> None:
    ended = edgefuse(*words)
    assert ended.code == 2 and "Traceback" not in ended.err and ended.err


def test_help_and_plan_import_nothing_heavy() -> None:
    script = (
        "import sys, io, contextlib\nfrom edgefuse import cli\n"
        "heavy = {'torch', 'tensorflow', 'onnx', 'onnx2tf', 'onnxruntime', 'ai_edge_litert'}\n"
        "for words in (['--help'], ['plan', 'configs/mobilenet.yaml'], ['targets']):\n"
        "    sys.argv = ['edgefuse', *words]\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        assert cli.guarded(cli.app) == 0\n"
        "    print(words[0], sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines() == ["--help []", "plan []", "targets []"]


def test_a_reader_that_leaves_early_changes_nothing() -> None:
    command = f"{sys.executable} -m edgefuse.cli schema | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0" and not done.stderr
