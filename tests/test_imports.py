"""What commands import: help, plan and a cached run must not wait for heavy libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgefuse import keys
from edgefuse.archive import pack
from edgefuse.artifact import Kind, Product
from edgefuse.job import make_job
from edgefuse.plan import parts_of, stages_of

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "configs" / "mobilenet.yaml"
HEAVY = {
    *("torch", "tensorflow", "tf_keras", "onnx2tf", "onnx", "onnx_ir", "onnxscript", "onnxruntime"),
    *("ai_edge_litert", "ai_edge_quantizer", "tflite_runtime", "flatbuffers", "cryptography"),
}
KINDS: dict[str, Kind] = {
    ".onnx": "onnx",
    ".tflite": "tflite",
    ".json": "verdict",
    ".tar": "bundle",
}
SCRIPT = """
import json, sys
from edgefuse.cli import main
try:
    main()
except SystemExit as ended:
    heads = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps([ended.code, heads]), file=sys.stderr)
"""


def modules_after(cache: Path, *words: str) -> tuple[int, set[str], str]:
    """Run ``edgefuse WORDS``; its exit code, the top-level modules it imported, its output."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "EDGEFUSE_CACHE": str(cache)},
        timeout=120,
    )
    code, heads = json.loads(done.stderr.splitlines()[-1])
    return code or 0, set(heads), done.stdout


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("passes",), ("targets",)])
def test_help_and_lists_import_nothing_heavy(words: tuple[str, ...], tmp_path: Path) -> None:
    code, heads, output = modules_after(tmp_path, *words)
    assert code == 0
    assert output
    assert heads & (HEAVY | {"numpy", "PIL"}) == set()


def test_plan_imports_nothing_heavy_and_writes_nothing(tmp_path: Path) -> None:
    code, heads, output = modules_after(tmp_path / "cache", "plan", str(RECIPE))
    assert code == 0
    assert "package" in output
    assert heads & (HEAVY | {"numpy"}) == set()
    assert not (tmp_path / "cache").exists()


def fill_store(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that holds a result of every stage, made by nobody."""
    keys.code_digest.cache_clear()
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("EDGEFUSE_CACHE", str(cache))
    job = make_job(RECIPE)
    made: dict[str, str] = {}
    for stage in stages_of(job.recipe, target=job.target):
        path = folder / stage.file_name.format(name="mobilenet")
        if path.suffix == ".tar":
            pack({"manifest.json": b"{}"}, path)
        else:
            path.write_text(stage.name)
        evidence = {"summary": "fake"}
        if stage.gate:
            evidence |= {"verdict": "pass", "target": "host", "runtime": "none", "figures": {}}
            evidence |= {"provenance": "measured", "checks": []}
        parents = {name: made[name] for name in stage.inputs if name in made}
        parts = parts_of(job, stage, parents)
        artifact = job.store.put(
            Product(KINDS[path.suffix], path, evidence=evidence),
            stage=stage.name,
            key=keys.key_of(parts),
            parts=parts,
            parents=parents,
            recipe=job.recipe.name,
            seconds=1.0,
        )
        made[stage.name] = artifact.sha256


def test_a_cached_run_imports_nothing_heavy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    fill_store(tmp_path / "cache", tmp_path / "made", monkeypatch)
    out = tmp_path / "out"
    words = ("run", str(RECIPE), "--out", str(out))
    modules_after(tmp_path / "cache", *words)  # The report plans arenas once, and remembers them.
    code, heads, output = modules_after(tmp_path / "cache", *words)
    assert code == 0, output
    assert "pass: mobilenet on host" in output
    statuses = {s["status"] for s in json.loads((out / "report.json").read_text())["stages"]}
    assert statuses == {"reused"}
    assert heads & (HEAVY | {"numpy"}) == set()
