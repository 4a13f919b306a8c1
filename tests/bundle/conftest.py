"""One real bundle for the session, from a float .tflite: no converter runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases.pipeline import run, samples, write_recipe
from cases.tflite_file import conv_file

from bundle.beside import put_evidence
from edgefuse.bundle import signing


@pytest.fixture(autouse=True)
def no_trusted_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that the person who runs the tests trusts are no matter here."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (signing.TRUSTED, signing.PASSPHRASE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Path]:
    """The folder of a recipe that was run: sources, and the output in ``out``."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "given.tflite").write_bytes(conv_file(8))
    shapes = {"x/in:0": (8, 8, 3)}
    model = {
        "tflite": {"path": "given.tflite"},
        "inputs": [{"name": "x/in:0", "shape": [1, 8, 8, 3]}],
    }
    data = samples(shapes, 40, seed=1, scale=0.5), samples(shapes, 20, seed=2, scale=0.5)
    path = write_recipe(
        folder, "net", model, *data, gates={"accuracy": {"min_sqnr_db": 15}}, release=False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFUSE_CACHE", str(store))
        ended = run(path, out="out")
    assert ended.report["verdict"] == "pass", ended.error
    put_evidence(folder / "out" / "net.bundle.tar", recipe="net")
    yield folder


@pytest.fixture
def whole(made: Path, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that bundle and its evidence, to be tampered with."""
    monkeypatch.setenv("EDGEFUSE_CACHE", str(store))
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name in ("net.bundle.tar", "evidence.json"):
        shutil.copy(made / "out" / name, folder / name)
    return folder / "net.bundle.tar"
