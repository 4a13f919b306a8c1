"""release and push: only what passed every gate, with its evidence, leaves the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundle.beside import put_evidence
from command import edgefuse
from devices.transports.parcels import make_bundle, tiny_model
from fake_stages import TEXT, Fakes, fakes

from edgefuse.archive import pack
from edgefuse.artifact import digest_file
from edgefuse.errors import StoreError
from edgefuse.report import document as documents

__all__ = ["fakes"]

GATES = """\
release: true
gates:
  accuracy: {min_sqnr_db: 1}
  memory: {max_arena_bytes: 1}
  latency: {max_ratio_to_float: 1}
"""


@pytest.fixture
def dist(fakes: Fakes) -> Path:
    (fakes.folder / "recipe.yaml").write_text(TEXT + GATES)
    (fakes.folder / "other.yaml").write_text(TEXT.replace("tiny", "other") + GATES)
    (fakes.folder / "draft.yaml").write_text(TEXT.replace("tiny", "draft"))
    return fakes.folder / "dist"


def test_every_recipe_that_is_to_be_released(fakes: Fakes, dist: Path) -> None:
    names = [fakes.folder / name for name in ("recipe.yaml", "draft.yaml", "other.yaml")]
    ended = edgefuse("release", *names, "--out", dist, "-q")
    assert ended.code == 0, ended.err
    first, second = ended.out.splitlines()
    bundle = dist / "tiny" / "tiny.bundle.tar"
    assert first == f"{bundle}  {digest_file(bundle)}" and "other.bundle.tar" in second
    assert sorted(p.name for p in dist.iterdir()) == ["other", "tiny"]
    evidence = json.loads((dist / "tiny/evidence.json").read_text())
    assert evidence["bundle_sha256"] == digest_file(bundle)
    assert evidence["targets"]["host"]["verdict"] == "pass"


def test_a_release_measures_anew(fakes: Fakes, dist: Path) -> None:
    for _ in range(2):
        fakes.ran.clear()
        assert edgefuse("release", fakes.folder / "recipe.yaml", "--out", dist, "-q").code == 0
    assert fakes.ran == ["gate_two"]


@pytest.mark.parametrize(("figure", "code"), [((9.0, 8.0), 1), ((11.0, 9.0), 4)])
def test_the_first_that_does_not_pass_stops_it(fakes: Fakes, dist: Path, figure, code) -> None:
    paths = [fakes.folder / "recipe.yaml", fakes.folder / "other.yaml"]
    assert edgefuse("release", *paths, "--out", dist, "-q").code == 0
    fakes.figures["gate_two"] = figure
    ended = edgefuse("release", *paths, "--out", dist, "-q")
    assert ended.code == code and len(ended.messages) == 1
    assert "recipe.yaml: gate_two: figure" in ended.err and "hint: mend gate_two" in ended.err
    assert not (dist / "tiny/tiny.bundle.tar").exists() and not (dist / "tiny/bundle").exists()
    assert not (dist / "tiny/evidence.json").exists()
    assert not (dist / "other/other.bundle.tar").exists(), "not reached, so not of this release"
    assert not (dist / "other/bundle").exists() and not (dist / "other/evidence.json").exists()


@pytest.mark.parametrize("trouble", [StoreError("no space"), KeyboardInterrupt(), OSError("odd")])
def test_no_bundle_remains_of_a_release_that_raises(
    fakes: Fakes, dist: Path, monkeypatch: pytest.MonkeyPatch, trouble: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise trouble

    paths = [fakes.folder / "recipe.yaml", fakes.folder / "other.yaml"]
    assert edgefuse("release", *paths, "--out", dist, "-q").code == 0
    monkeypatch.setattr(documents, "write", fail)
    assert edgefuse("release", *paths, "--out", dist, "-q").code in (3, 130)
    left = {p.relative_to(dist).as_posix() for p in dist.rglob("*") if "bundle" in p.name}
    assert not left and not list(dist.rglob("evidence.json"))


def test_two_recipes_of_one_name(fakes: Fakes, dist: Path) -> None:
    (fakes.folder / "other.yaml").write_text(TEXT + GATES)
    paths = [fakes.folder / "recipe.yaml", fakes.folder / "other.yaml"]
    ended = edgefuse("release", *paths, "--out", dist)
    assert ended.code == 2 and "has the name 'tiny' too" in ended.err and not dist.exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_model(tmp_path_factory.mktemp("model"))


def bundle(folder: Path, model: bytes = b"model", **changes: Any) -> Path:
    path = folder / "net.bundle.tar"
    if model == b"model":
        pack({"manifest.json": b"{}", "models/m": model}, path)
    else:
        make_bundle(path, model)
    put_evidence(path, **changes)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def test_push_installs_once(home: Path, model: bytes) -> None:
    path = bundle(home, model)
    first, second = (edgefuse("push", path, "--target", "host") for _ in range(2))
    assert first.code == second.code == 0, first.err
    assert "host: installed" in first.out and "already current" in second.out
    current = home / "home/.local/share/edgefuse/host/current"
    assert (current / "models/net_full_integer_quant.tflite").read_bytes() == model


def test_push_asks_for_the_trusted_signature(home: Path, model: bytes) -> None:
    path, key = bundle(home, model), home / "key"
    assert edgefuse("keygen", key).code == 0
    words = ("push", path, "--target", "host", "--key", home / "key.pub")
    without = edgefuse(*words)
    assert without.code == 1 and "no signature beside the bundle" in without.err
    assert edgefuse("sign", path, "--key", key).code == 0
    put_evidence(path, permissions=["all"])
    edited = edgefuse(*words)
    assert edited.code == 1 and "changed after signing" in edited.err
    assert not (home / "home").exists()
    assert edgefuse("sign", path, "--key", key).code == 0
    done = edgefuse(*words)
    assert done.code == 0 and "signed by trusted key" in done.out + done.err, done.err


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"schema": 3}, 2, "schema 3, this edgefuse reads up to 2"),
        ({"schema": 1}, 2, "run the recipe again"),
        ({"golden": None}, 2, "incomplete: golden"),
        ({"weights": "random"}, 3, "random weights"),
    ],
)
def test_push_never_installs(
    home: Path, model: bytes, changes: dict[str, Any], code: int, said: str
) -> None:
    path, _ = make_bundle(home / "net.bundle.tar", model, **changes)
    put_evidence(path)
    ended = edgefuse("push", path, "--target", "host")
    assert ended.code == code and said in ended.err and len(ended.messages) == 1
    assert not list((home / "home").rglob("current"))


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "incomplete"},
        {"verdict": "error"},
        {"gates": []},
        {"gates": [{"name": "accuracy", "verdict": "pass"}]},
        {"bundle_sha256": "0" * 64},
        {"targets": {}},
    ],
)
def test_push_refuses_what_did_not_pass(home: Path, changes: dict[str, Any]) -> None:
    ended = edgefuse("push", bundle(home, **changes), "--target", "host")
    assert ended.code == 1 and len(ended.messages) == 1 and "hint: " in ended.err
    assert not (home / "home").exists()


def test_push_refuses_what_was_judged_elsewhere(home: Path) -> None:
    path = bundle(home, target="host-tflite-runtime")
    ended = edgefuse("push", path, "--target", "host")
    assert ended.code == 1 and "judged on target host-tflite-runtime, not on host" in ended.err
    assert "edgefuse run RECIPE --target host" in ended.err and not (home / "home").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"schema": 2, "gates": 3}',
     '{"schema": 2, "bundle_sha256": 1, "targets": [1]}',
     '{"schema": 2, "bundle_sha256": null, "targets": {}}'],
)  # fmt: skip
def test_push_refuses_evidence_that_says_nothing(home: Path, text: str) -> None:
    path = bundle(home)
    (home / "evidence.json").write_text(text)
    ended = edgefuse("push", path, "--target", "host")
    assert ended.code in (1, 2) and "internal" not in ended.err and len(ended.messages) == 1
    assert not (home / "home").exists()


def test_push_needs_a_place(home: Path, model: bytes) -> None:
    target = home / "board.yaml"
    target.write_text("name: board\nsummary: b\ntransport: local\nruntime: litert\n")
    ended = edgefuse("push", bundle(home, model, target="board"), "--target", str(target))
    assert ended.code == 2 and "target board has no install_path" in ended.err
