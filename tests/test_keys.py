"""Cache keys: they change with everything that can change the result, and with nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_stages import HOST, sample_set

from edgefuse import keys
from edgefuse.errors import RecipeError, SourceError
from edgefuse.keys import code_digest, content, differences, key_of, local_file
from edgefuse.plan import Job, parts_of
from edgefuse.recipe import LocalFile, Recipe
from edgefuse.stage import STAGES
from edgefuse.store import Store
from edgefuse.target import Limits, Support

NAMES = ["export", "fuse", "convert", "quantize", "check", "gate_accuracy", "gate_memory",
         "gate_latency", "package"]  # fmt: skip
TORCH: dict[str, Any] = {
    "torch": {"callable": "users_net:make", "weights": {"path": "w.pth"}},
    "inputs": [{"name": "x", "shape": [1, 3, 8, 8]}],
    "outputs": ["y"],
}
BLOB = {"file": "labels.txt", "sha256": "a" * 64, "mirrors": ["file:labels.txt"]}
FIELDS: dict[str, Any] = {
    "schema": 1,
    "name": "tiny",
    "model": TORCH,
    "preprocess": {"crop": [8, 8]},
    "data": {
        "calibration": {"folder": "a"},
        "evaluation": {"folder": "b"},
        "report": {"folder": "c"},
        "labels": BLOB,
    },
    "gates": {
        "accuracy": {"min_sqnr_db": 10},
        "memory": {"max_arena_bytes": 100},
        "latency": {"max_ratio_to_float": 1},
    },
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys.callable_digest.cache_clear()
    keys.version.cache_clear()
    monkeypatch.chdir(tmp_path)
    make(tmp_path)


def make(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "w.pth").write_bytes(b"weights")
    (folder / "users_net.py").write_text("import users_part\ndef make(): ...\n")
    (folder / "users_part.py").write_text("WIDTH = 8\n")


def replaced(fields: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    head, _, rest = dotted.partition(".")
    held = fields.get(head) or {}
    return {**fields, head: replaced(held, rest, value) if rest else value}


def all_keys(base: Path, fields: dict[str, Any] | None = None, **job: Any) -> dict[str, str]:
    """The key of each stage, as if the stages before it always made the same bytes."""
    keys.callable_digest.cache_clear()
    digest_of = job.get("digest_of", lambda role: f"digest of {role}")
    made = Job(
        recipe=Recipe.model_validate(fields or FIELDS),
        target=job.get("target", HOST),
        base=base,
        store=Store(base / "store"),
        samples_of=lambda role: sample_set(digest_of(role)),
        fingerprint=job.get("fingerprint", lambda: "machine"),
    )
    inputs = job.get("inputs", {})
    return {
        name: key_of(parts_of(made, stage, {n: inputs.get(n, "0" * 64) for n in stage.inputs}))
        for name, stage in STAGES.all().items()
        if name in NAMES
    }


def changed(base: Path, **job: Any) -> set[str]:
    before = all_keys(base)
    after = all_keys(base, **job)
    return {name for name in NAMES if before[name] != after[name]}


AFTER: dict[str, tuple[Any, set[str]]] = {
    "seed": (1, set(NAMES)),
    "name": ("other", set(NAMES)),
    "description": ("words", {"package"}),
    "target": ("host-tflite-runtime", {"package"}),
    "export.opset": (17, {"export", "package"}),
    "export.parity_samples": (5, {"export", "package"}),
    "fuse.skip": (["fold_constants"], {"fuse", "package"}),
    "convert.max_relative_error": (1e-3, {"convert", "package"}),
    "quantize.tail_percent": (1, {"quantize", "check", "package"}),
    "check.permit_float": (["SOFTMAX"], {"quantize", "check", "package"}),
    "gates.accuracy.min_sqnr_db": (11, {"gate_accuracy", "package"}),
    "gates.memory.max_arena_bytes": (101, {"gate_memory", "package"}),
    "gates.latency.rounds": (41, {"gate_latency", "package"}),
    "package.golden_samples": (3, {"package"}),
    "data.labels.sha256": ("b" * 64, {"package"}),
    "data.labels.mirrors": (["https://elsewhere/labels.txt"], {"package"}),
    "model.torch.arguments": ({"width": 2}, {"export", "package"}),
    "model.torch.weights": ("random", {"export", "package"}),
    "preprocess.colour": ("BGR", {"export", "fuse", "convert", "quantize", "gate_accuracy",
                                  "package"}),
    "model.outputs": (["z"], {"export", "convert", "package"}),
}  # fmt: skip


@pytest.mark.parametrize("dotted", AFTER)
def test_a_field_enters_the_keys_of_the_stages_that_read_it(tmp_path: Path, dotted: str) -> None:
    value, expected = AFTER[dotted]
    assert changed(tmp_path, fields=replaced(FIELDS, dotted, value)) == expected


def test_every_field_of_the_recipe_enters_some_key() -> None:
    read = {s.split(".")[0] for n in NAMES for s in STAGES.all()[n].sections} | {"name", "seed"}
    assert set(Recipe.model_fields) - read == {"schema_version"}


def test_weights_enter_by_their_bytes_and_not_by_path(tmp_path: Path) -> None:
    before = all_keys(tmp_path)
    (tmp_path / "w.pth").rename(tmp_path / "moved.pth")
    moved = replaced(FIELDS, "model.torch.weights", {"path": "moved.pth"})
    after = all_keys(tmp_path, moved)
    assert {n for n in NAMES if before[n] != after[n]} == {"package"}, "recipe.json holds the path"
    (tmp_path / "moved.pth").write_bytes(b"Weights")
    assert all_keys(tmp_path, moved)["export"] != before["export"]


def test_a_hash_in_the_recipe_or_a_mirror_changes_nothing_but_the_bundle(tmp_path: Path) -> None:
    _, sha256 = local_file(tmp_path, LocalFile(path="w.pth"))
    given = replaced(FIELDS, "model.torch.weights", {"path": "w.pth", "sha256": sha256})
    assert changed(tmp_path, fields=given) == {"package"}
    mirrors = {"file": "w.pth", "sha256": sha256, "mirrors": ["file:w.pth"]}
    assert changed(tmp_path, fields=replaced(FIELDS, "model.torch.weights", mirrors)) == {"package"}


def test_the_place_does_not_matter(tmp_path: Path) -> None:
    before = all_keys(tmp_path)
    make(tmp_path / "elsewhere")
    assert all_keys(tmp_path / "elsewhere") == before


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("calibration", {"quantize", "package"}),
        ("evaluation", {"export", "fuse", "convert", "quantize", "gate_accuracy", "package"}),
        ("report", {"gate_accuracy", "package"}),
    ],
)
def test_samples_enter_where_they_are_read(tmp_path: Path, role: str, expected: set[str]) -> None:
    def digest_of(asked: str) -> str:
        return "changed" if asked == role else f"digest of {asked}"

    assert changed(tmp_path, digest_of=digest_of) == expected


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("name", "other", {"gate_accuracy", "gate_memory", "gate_latency"}),
        ("runtime", "tflite_runtime", {"quantize", "gate_accuracy", "gate_memory", "gate_latency"}),
        (
            "kernels",
            "reference",
            {"quantize", "gate_accuracy", "gate_memory", "gate_latency"},
        ),
        ("threads", 2, {"quantize", "gate_accuracy", "gate_memory", "gate_latency"}),
        ("limits", Limits(arena_bytes=1), {"gate_memory"}),
        ("support", Support(int8_dot_product=True), {"check", "gate_latency"}),
        ("notes", "words", set()),
        ("summary", "words", set()),
        ("install_path", "/x", set()),
    ],
)
def test_target_fields(tmp_path: Path, field: str, value: Any, expected: set[str]) -> None:
    target = HOST.model_copy(update={field: value})
    assert changed(tmp_path, target=target) == expected


def test_only_measurements_depend_on_the_machine(tmp_path: Path) -> None:
    assert changed(tmp_path, fingerprint=lambda: "another") == {"gate_latency"}


def test_inputs_enter(tmp_path: Path) -> None:
    expected = {"quantize", "check", "gate_accuracy", "gate_memory", "gate_latency", "package"}
    assert changed(tmp_path, inputs={"convert": "1" * 64}) == expected


def test_tool_versions_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = all_keys(tmp_path), keys.metadata.version
    monkeypatch.setattr(
        keys.metadata, "version", lambda n: "0.0.1" if n == "ai-edge-quantizer" else real(n)
    )
    keys.version.cache_clear()
    after = all_keys(tmp_path)
    keys.version.cache_clear()
    assert {n for n in NAMES if before[n] != after[n]} == {"quantize", "package"}
    monkeypatch.setattr(keys.platform, "python_version", lambda: "3.12.0")
    assert all(all_keys(tmp_path)[n] != after[n] for n in NAMES)


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda f: (f / "users_net.py").write_text("import users_part\ndef make(): pass\n"), False),
        (lambda f: (f / "users_part.py").write_text("WIDTH = 16\n"), False),
        (lambda f: (f / "users_else.py").write_text("X = 1\n"), True),
    ],
    ids=["callable", "its import", "another file"],
)
def test_the_users_sources_enter(tmp_path: Path, edit: Callable[[Path], Any], same: bool) -> None:
    before = all_keys(tmp_path)
    edit(tmp_path)
    after = all_keys(tmp_path)
    assert (before["export"] == after["export"]) is same and before["fuse"] == after["fuse"]


def test_a_package_installed_editable_enters_by_content(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "recipe").mkdir()
    make(tmp_path / "recipe")
    package = tmp_path / "src/users_linked"
    (package / "nets").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "nets/__init__.py").write_text("from users_linked.width import WIDTH\n")
    (package / "width.py").write_text("WIDTH = 8\n")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.chdir(tmp_path / "recipe")
    fields = replaced(FIELDS, "model.torch.callable", "users_linked.nets:make")
    seen = {all_keys(tmp_path / "recipe", fields)["export"]}
    for name in ("width.py", "nets/__init__.py", "__init__.py"):
        (package / name).write_text((package / name).read_text() + "X = 1\n")
        seen.add(all_keys(tmp_path / "recipe", fields)["export"])
    assert len(seen) == 4 and "users_linked" not in sys.modules
    monkeypatch.setattr(keys, "_is_installed", lambda path: True)
    before = all_keys(tmp_path / "recipe", fields)["export"]
    (package / "width.py").write_text("WIDTH = 9\n")
    assert all_keys(tmp_path / "recipe", fields)["export"] == before


def test_what_is_installed_is_not_followed() -> None:
    for name in ("numpy", "json", "no_such_module", "__main__"):
        assert keys._linked_file(name, "") is None, name


def test_a_users_module_that_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "users_part.py").write_text("def (:\n")
    with pytest.raises(RecipeError, match="not valid Python") as caught:
        all_keys(tmp_path)
    assert caught.value.where == str(tmp_path / "users_part.py")


def test_an_installed_package_counts_by_version_under_any_name() -> None:
    assert keys._installed("PIL").lower() == f"pillow {keys.version('pillow')}"
    assert keys._installed("numpy") == keys.version("numpy")
    assert keys._installed("json") == keys._installed("no_such_module") == "missing"


@pytest.mark.parametrize("location", ["data/m.bin", "w" * 127, "w" * 128, "w" * 255])
def test_external_data_of_an_onnx_file_enters(tmp_path: Path, location: str) -> None:
    path = tmp_path / "m.onnx"
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[64,64] x) => (float[64,64] y)'
        " { y = MatMul(x, w) }"
    )
    model.graph.initializer.append(weight)
    (tmp_path / "data").mkdir()
    onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=0)
    (tmp_path / "beside.bin").write_bytes(b"x")
    before = content(LocalFile(path="m.onnx"), tmp_path)
    assert list(before["external_data"]) == [location]
    data = bytearray((tmp_path / location).read_bytes())
    data[5] ^= 1
    (tmp_path / location).write_bytes(data)
    after = content(LocalFile(path="m.onnx"), tmp_path)
    assert after["sha256"] == before["sha256"] and key_of(after) != key_of(before)
    (tmp_path / "empty.onnx").touch()
    assert list(content(LocalFile(path="empty.onnx"), tmp_path)) == ["sha256"]


def test_missing_and_changed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file") as missing:
        all_keys(tmp_path, replaced(FIELDS, "model.torch.weights", {"path": "gone.pth"}))
    assert missing.value.where == "model.torch.weights" and missing.value.hint
    wrong = {"path": "w.pth", "sha256": "b" * 64}
    with pytest.raises(SourceError, match=f"the recipe says {'b' * 64}") as changed_file:
        all_keys(tmp_path, replaced(FIELDS, "model.torch.weights", wrong))
    assert changed_file.value.where == str(tmp_path / "w.pth")


def test_external_data_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch) -> None:
    def fail(path: Path) -> dict[str, Any]:
        raise PermissionError(13, "Permission denied", str(path.parent / "m.bin"))

    (tmp_path / "m.onnx").write_bytes(b"x")
    monkeypatch.setattr(keys, "_external_data", fail)
    with pytest.raises(RecipeError, match="cannot be read: Permission denied") as caught:
        content(LocalFile(path="m.onnx"), tmp_path)
    assert caught.value.where == str(tmp_path / "m.bin")


def test_our_own_sources_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the package: what is edited, and which stages notice."""
    package = tmp_path / "edgefuse"
    shutil.copytree(keys._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(keys, "_PACKAGE", package)

    def digests() -> dict[str, str]:
        for cached in (keys.code_digest, keys._own):
            cached.cache_clear()
        return {name: code_digest(f"edgefuse.stages.{name}") for name in NAMES}

    def touched(name: str) -> set[str]:
        path = package / name
        kept = path.read_text()
        path.write_text(kept + "\n# edited\n")
        after = digests()
        path.write_text(kept)
        return {n for n in NAMES if before[n] != after[n]}

    try:
        before = digests()
        assert len(set(before.values())) == len(NAMES)
        # Given ONNX files have their shapes, and QDQ models their values, behind folded constants.
        assert touched("passes/fold_constants.py") == {"export", "fuse", "quantize"}
        assert touched("stages/fuse.py") == {"fuse"}
        assert touched("tflite/convert_worker.py") == {"convert"}
        assert touched("quant/calibration/histogram.py") == {"quantize"}
        assert "gate_latency" in touched("devices/measure/bench_worker.py")
        assert touched("artifact.py") == set(NAMES)
        assert touched("report/html.py") == touched("commands/doctor.py") == set()
    finally:
        for cached in (keys.code_digest, keys._own):
            cached.cache_clear()


def _code_read_anew() -> str:
    """The digest of a stage that reaches most of the package; nothing is known of this process."""
    for cached in (keys.code_digest, keys._own, keys._known_imports):
        cached.cache_clear()
    return code_digest("edgefuse.stages.quantize")


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """That digest; the name of the file of imports and its text."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("EDGEFUSE_CACHE", str(cache))
        digest = _code_read_anew()
        keys.remember_imports()
        (path,) = cache.glob("imports-*.json")
        yield digest, path.name, path.read_text()


@pytest.mark.parametrize("damage", [None, "", "[]", "{}", "null", "flip", "values"])
def test_remembered_imports_are_verified(
    remembered: tuple[str, str, str], tmp_path: Path, monkeypatch, damage: str | None
) -> None:
    digest, name, text = remembered
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path))
    path = tmp_path / name
    module = "edgefuse.quant.calibration.ranges"
    if damage is None:
        path.write_text(text)
        monkeypatch.setattr(keys.ast, "parse", lambda *_: pytest.fail("parsed again"))
    elif damage == "flip":
        assert module in text
        path.write_text(text.replace(module, "edgefuse.quant.rangex"))
    elif damage == "values":
        path.write_text(json.dumps(dict.fromkeys(json.loads(text), 3)))
    else:
        path.write_text(damage)
    try:
        assert _code_read_anew() == digest
        keys.remember_imports()
        assert path.read_text() == text
    finally:
        for cached in (keys.code_digest, keys._own, keys._known_imports):
            cached.cache_clear()


def test_planning_imports_no_heavy_library() -> None:
    script = (
        "import sys\nfrom edgefuse.stage import STAGES\nfrom edgefuse import cli, plan, keys\n"
        "STAGES.all(); keys.code_digest('edgefuse.stages.convert')\n"
        "bad = {'torch','tensorflow','onnx','onnx2tf','onnxruntime','numpy','ai_edge_litert'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_differences() -> None:
    old = {"config": {"a": 1, "b": [1, 2]}, "tools": {"x": "1"}}
    new = {"config": {"a": 2, "b": [1, 2], "c": None}, "tools": {"y": "1"}}
    assert list(differences(old, new)) == [
        ("config.a", 1, 2),
        ("tools.x", "1", None),
        ("tools.y", None, "1"),
    ]
    assert list(differences(old, old)) == []
    assert code_digest("edgefuse.stages.export") == code_digest("edgefuse.stages.export")
