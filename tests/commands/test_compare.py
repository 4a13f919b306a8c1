"""edgefuse compare, from the words to the files: real rows on a tiny model."""

from __future__ import annotations

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command import Ended, edgefuse

from edgefuse.commands import compare as command_compare
from edgefuse.compare import cuda_device
from edgefuse.compare.rows import ROWS

from .tiny import INPUTS, NETS, written

QUICK = (
    *("eager", "folded", "torchscript", "onnxruntime_disabled", "onnxruntime_all", "openvino"),
    *("litert_float", "litert_int8", "edgefuse_disabled", "edgefuse_all"),
)
FIELDS = {
    *("name", "title", "status", "available", "reason", "ours", "operators", "fusions"),
    *("fusion_kinds", "p50_ms", "p90_ms", "ratio_to_eager", "ratio_to_base", "samples"),
    *("max_relative_error", "cpu_p50_ms", "cores", "versions", "note", "device"),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny torch recipe with a cache of its own."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "users_compare_nets.py").write_text(NETS)
    random = np.random.default_rng(0)
    np.savez(folder / "samples.npz", image=random.normal(size=(8, 3, 16, 16)).astype(np.float32))
    torch = {"callable": "users_compare_nets:net", "weights": "random"}
    return written(folder, "tiny", {"torch": torch, "outputs": ["logits"], "inputs": INPUTS})


@pytest.fixture(autouse=True)
def place(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    monkeypatch.setenv("EDGEFUSE_CACHE", str(recipe.parent / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def compare(recipe: Path, *names: str, more: tuple[str | Path, ...] = ()) -> Ended:
    words = [word for name in names for word in ("--row", name)]
    return edgefuse("compare", recipe, *words, "--rounds", "2", "--invokes", "3", *more)


def rows_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document["rows"]}


@pytest.fixture(scope="module")
def quick(recipe: Path) -> tuple[Ended, dict[str, Any]]:
    """One run of the quick rows, named in another order than they are shown in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(recipe.parent)
        patch.setenv("EDGEFUSE_CACHE", str(recipe.parent / "cache"))
        ended = compare(recipe, *reversed(QUICK))
    assert ended.code == 0, ended.err
    return ended, json.loads((recipe.parent / "build/tiny/compare/compare.json").read_text())


def test_the_document(quick: tuple[Ended, dict[str, Any]]) -> None:
    document = quick[1]
    assert (document["schema"], document["recipe"], document["base"]) == (1, "tiny", "eager")
    assert (document["threads"], document["rounds"], document["exit_code"]) == (1, 2, 0)
    assert document["machine"]["cpu"] and document["command"].startswith("edgefuse compare ")
    assert [row["name"] for row in document["rows"]] == list(QUICK)
    for row in document["rows"]:
        assert set(row) == FIELDS
        if not row["available"]:
            continue
        assert 0 < row["p50_ms"] <= row["p90_ms"] and row["samples"] == 6
        assert row["ratio_to_eager"] == row["ratio_to_base"] > 0
        assert row["versions"] and row["cores"] > 0
    # One thread each; a single row of six short invocations can be off on a busy machine.
    cores = [row["cores"] for row in document["rows"] if row["available"]]
    assert statistics.median(cores) < 1.5


def test_what_runs_and_what_fused(quick: tuple[Ended, dict[str, Any]]) -> None:
    rows = rows_of(quick[1])
    # Conv, BatchNorm, ReLU6 twice; pool (a mean), linear; flattening is a view.
    assert rows["eager"]["operators"] == 8 and rows["eager"]["fusions"] == 0
    assert rows["folded"]["operators"] == 6
    assert rows["folded"]["fusion_kinds"] == {"BatchNorm folded": 2}
    assert rows["torchscript"]["fusion_kinds"]["BatchNorm folded"] == 2
    assert rows["onnxruntime_disabled"]["fusions"] == 0
    assert rows["onnxruntime_all"]["fusion_kinds"] == {
        "BatchNorm folded": 2,
        "activation fused": 2,
    }
    assert rows["onnxruntime_all"]["operators"] < rows["onnxruntime_disabled"]["operators"]
    assert rows["edgefuse_disabled"]["fusion_kinds"] == {"fold_conv_batch_norm": 2}
    assert "2 fused groups inlined" in rows["edgefuse_disabled"]["note"]
    assert rows["edgefuse_all"]["fusion_kinds"]["activation fused"] == 2
    for name in ("litert_float", "litert_int8"):
        assert rows[name]["fusion_kinds"] == {"fold_conv_batch_norm": 2, "activation fused": 2}


def test_errors_are_to_eager(quick: tuple[Ended, dict[str, Any]]) -> None:
    rows = rows_of(quick[1])
    errors = {n: row["max_relative_error"] for n, row in rows.items() if row["available"]}
    assert errors.pop("eager") == 0.0
    assert 1e-3 < errors.pop("litert_int8") < 0.2
    assert all(0 <= error < 1e-5 for error in errors.values()), errors


def test_not_installed_is_no_failure(quick: tuple[Ended, dict[str, Any]]) -> None:
    ended, document = quick
    row = rows_of(document)["openvino"]
    assert (row["status"], row["available"], row["p50_ms"]) == ("unavailable", False, None)
    assert "openvino: unavailable: not installed: openvino (pip install" in ended.out


def test_the_table_and_the_page_show_every_row(
    recipe: Path, quick: tuple[Ended, dict[str, Any]]
) -> None:
    lines = quick[0].out.splitlines()
    assert lines[0].split() == [
        *("row", "operators", "fusions", "p50", "ms", "p90", "ms", "to", "eager", "max", "error")
    ]
    assert [line.split()[0] for line in lines[1:11]] == list(QUICK)
    assert max(map(len, lines)) <= 100
    page = (recipe.parent / "build/tiny/compare/compare.html").read_text()
    chart = page[page.index("<svg") : page.index("</svg>")]
    titles = {row.name: row.title for row in ROWS}
    assert all(f">{titles[name]}</text>" in chart for name in QUICK)
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page
    assert shlex.join(["edgefuse", "compare", str(recipe)]) in page


def test_json_on_stdout_and_another_folder(recipe: Path, tmp_path: Path) -> None:
    more = ("--json", "--out", tmp_path / "there")
    ended = compare(recipe, "litert_float", "onnxruntime_basic", more=more)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document == json.loads((tmp_path / "there/compare.json").read_text())
    assert document["base"] == "onnxruntime_basic" and document["base_title"]
    assert [row["ratio_to_eager"] for row in document["rows"]] == [None, None]
    assert document["rows"][0]["ratio_to_base"] == 1.0


def test_a_row_that_fails_is_told_and_the_others_are_measured(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO taken for installed: its worker cannot import it."""
    monkeypatch.setattr(command_compare, "why_not_installed", lambda _: "")
    ended = compare(recipe, "onnxruntime_all", "openvino", more=("--out", tmp_path))
    assert ended.code == 3 and len(ended.messages) == 1
    assert "rows failed: openvino" in ended.err
    assert "openvino: error: ModuleNotFoundError: No module named 'openvino'" in ended.out
    rows = rows_of(json.loads((tmp_path / "compare.json").read_text()))
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {"onnxruntime_all": "measured", "openvino": "error"}
    assert "Traceback" in (tmp_path / "logs/openvino.log").read_text()


FAKE_OPENVINO = '''
"""The few calls that the row makes, answered by onnxruntime."""
import onnxruntime

__version__ = "0.0.fake"


class Output:
    def __init__(self, name):
        self.name = name

    def get_any_name(self):
        return self.name


class Node:
    def __init__(self, kind, held):
        self.info = {"layerType": kind, "originalLayersNames": held}

    def get_rt_info(self):
        return self.info


class Compiled:
    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.outputs = [Output(o.name) for o in self.session.get_outputs()]

    def create_infer_request(self):
        return self

    def infer(self, feed):
        return dict(zip(self.outputs, self.session.run(None, feed)))

    def get_runtime_model(self):
        return self

    def get_ops(self):
        return [Node("Input", "x"), Node("Convolution", "c,b,r"), Node("Reorder", "")]


class Core:
    def compile_model(self, path, device, settings):
        assert device == "CPU" and settings["INFERENCE_NUM_THREADS"] == 1
        return Compiled(path)
'''


def test_openvino_where_installed(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino.py").write_text(FAKE_OPENVINO)
    monkeypatch.syspath_prepend(tmp_path)
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([known] if known else [])]))
    ended = compare(recipe, "edgefuse_all", "openvino", more=("--json", "--out", tmp_path / "out"))
    assert ended.code == 0, ended.err
    row = rows_of(json.loads(ended.out))["openvino"]
    assert (row["operators"], row["fusion_kinds"]) == (2, {"fused nodes": 1})
    assert row["max_relative_error"] < 1e-5 and row["versions"] == {"openvino": "0.0.fake"}


def test_a_recipe_without_torch(recipe: Path, tmp_path: Path) -> None:
    exported = next((recipe.parent / "cache/objects").rglob("*.onnx"), None)
    import onnx

    given = recipe.parent / "given.onnx"
    if exported is None:
        assert edgefuse("run", recipe, "--until", "export", "--out", tmp_path / "run").code == 0
        exported = tmp_path / "run/tiny.onnx"
    onnx.save(onnx.load(exported), given)
    other = written(recipe.parent, "given", {"onnx": {"path": "given.onnx"}, "inputs": INPUTS})
    names = ("eager", "folded", "onnxruntime_basic", "edgefuse_disabled")
    ended = compare(other, *names, more=("--out", tmp_path / "out"))
    assert ended.code == 0, ended.err
    assert "eager, folded: unavailable: the recipe's source is an .onnx file" in ended.out
    assert "ratios and errors are to onnxruntime, basic" in ended.out and "to base" in ended.out
    rows = rows_of(json.loads((tmp_path / "out/compare.json").read_text()))
    assert rows["onnxruntime_basic"]["ratio_to_base"] == 1.0
    assert rows["edgefuse_disabled"]["max_relative_error"] < 1e-5


def test_no_gpu_costs_nothing(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_device, "LIBRARY", "libcuda-of-nobody.so.1")
    monkeypatch.setattr(command_compare, "run_aside", lambda *_: pytest.fail("a stage ran"))
    names = [row.name for row in ROWS if row.on_gpu]
    ended = compare(recipe, *names, more=("--out", tmp_path))
    assert ended.code == 0, ended.err
    told = " ".join(ended.out.split())
    assert f"{', '.join(names)}: unavailable: no CUDA device" in told
    rows = json.loads((tmp_path / "compare.json").read_text())["rows"]
    assert {(row["status"], row["reason"]) for row in rows} == {("unavailable", "no CUDA device")}
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["compare.log"]


def test_slow_rows(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile, Grappler and XLA; and torch.compile without a compiler."""
    names = ("eager", "inductor", "grappler", "xla")
    ended = compare(recipe, *names, more=("--json", "--out", tmp_path / "out"))
    assert ended.code == 0, ended.out
    rows = rows_of(json.loads(ended.out))
    assert all(row["available"] and row["max_relative_error"] < 1e-5 for row in rows.values())
    assert rows["inductor"]["operators"] >= 4 and rows["inductor"]["fusions"] >= 1
    assert rows["xla"]["fusion_kinds"]["fusion instructions"] >= 1
    assert rows["grappler"]["operators"] >= 4
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    ended = compare(recipe, "inductor", more=("--out", tmp_path / "none"))
    assert ended.code == 0, ended.err
    assert "inductor: unavailable: inductor needs a C++ compiler" in ended.out
    assert "no row: none was measured" in ended.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--row", "onnxruntime_al"), "did you mean onnxruntime_all?"),
        (("--rounds", "0"), "--rounds"),
        (("--out", "a_file"), "is a file"),
    ],
)
def test_bad_words(recipe: Path, words: tuple[str, ...], says: str) -> None:
    Path("a_file").write_text("")
    ended = edgefuse("compare", recipe, *words)
    assert ended.code == 2 and says in ended.err


def test_a_failing_run_leaves_no_older_figures(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text("{}")
    words = ("--set", "fuse.max_relative_error=1e-12", "--out", tmp_path)
    ended = compare(recipe, "onnxruntime_basic", more=words)
    assert ended.code == 3 and "relative error" in ended.err
    assert not (tmp_path / "compare.json").exists()


def test_ctrl_c_ends_the_rows(recipe: Path, tmp_path: Path) -> None:
    words = ["compare", str(recipe), "--row", "onnxruntime_all", "--row", "onnxruntime_basic"]
    words += ["--rounds", "1000000", "--out", str(tmp_path)]
    run = subprocess.Popen(
        [sys.executable, "-m", "edgefuse.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    try:
        for line in run.stderr:
            if "measure" in line:
                break
        time.sleep(0.5)
        rows = psutil.Process(run.pid).children()
        assert len(rows) == 2
        run.send_signal(signal.SIGINT)
        _, told = run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 130 and "interrupted" in told
    gone, alive = psutil.wait_procs(rows, timeout=10)
    assert alive == [] and len(gone) == 2
    assert not (tmp_path / "compare.json").exists()
