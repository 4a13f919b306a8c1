"""``edgefuse conformance`` as a user meets it, on LiteRT's kernels."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import edgefuse
from tflite import tiny

from edgefuse.archive import pack
from edgefuse.devices.measure.bench_worker import random_feeds
from edgefuse.tflite.read import read_model, signature_of
from edgefuse.tflite.runtime import open_model

REFERENCE = ("--path", "litert-reference")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "float.tflite").write_bytes(tiny.float_file(tiny.weights()))
    path = folder / "int8.tflite"
    path.write_bytes(tiny.int8_file(folder / "float.tflite"))
    return path


def npy(value: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def bundle(model: Path, path: Path, off: int = 0, **manifest: Any) -> Path:
    """A bundle as packaging writes it; golden outputs ``off`` steps away."""
    feed = random_feeds(signature_of(read_model(model)), 0)
    golden = open_model(model, kernels="reference").run(feed)
    rows = {"inputs": {}, "outputs": {}}
    members = {"models/int8.tflite": model.read_bytes()}
    for side, arrays in (("inputs", feed), ("outputs", golden)):
        for name, value in arrays.items():
            shifted = value.astype(int) + (off if side == "outputs" else 0)
            member = f"golden/0/{side}_{name}.npy"
            members[member] = npy(np.clip(shifted, -128, 127).astype(value.dtype))
            rows[side][name] = member
    document = {
        "models": {"int8": "models/int8.tflite"},
        "golden": {"kernels": "reference", "vectors": [rows]},
        **manifest,
    }
    members["manifest.json"] = json.dumps(document).encode()
    pack(members, path)
    return path


def test_bare_file(model: Path) -> None:
    ended = edgefuse("conformance", model, *REFERENCE, "--path", "litert-builtin", "-q")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == ("int8.tflite: 4 vectors (seeded, 0 to 3), golden: litert-reference")
    assert [line.split()[0] for line in lines[2:4]] == ["litert-reference", "litert-builtin"]
    assert "bit-exact" in lines[2]
    assert lines[-1] == "2 paths played"


def test_bundle_and_output_folder(model: Path, tmp_path: Path) -> None:
    bundle(model, tmp_path / "m.bundle.tar")
    for source in (tmp_path / "m.bundle.tar", tmp_path):
        ended = edgefuse("conformance", source, *REFERENCE, "--json")
        assert ended.code == 0, ended.err
        document = json.loads(ended.out)
        assert document["golden"] == {"kernels": "litert-reference", "stored": True, "vectors": 1}
        assert [row["label"] for row in document["paths"]] == ["bit-exact"]


def test_golden_outputs_of_other_kernels(model: Path, tmp_path: Path) -> None:
    path = bundle(model, tmp_path / "m.bundle.tar", off=3)
    ended = edgefuse("conformance", path, *REFERENCE, "-q")
    assert ended.code == 0 and "within 3 LSB" in ended.out
    ended = edgefuse("conformance", path, *REFERENCE, "-q", "--within", "2")
    assert ended.code == 1 and "different" in ended.out


def test_path_that_cannot_be_played(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = edgefuse("conformance", model, "--path", "coral-edgetpu", "-q")
    assert ended.code == 4
    assert "not played" in ended.out and "not documented" in ended.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere.tflite"], 2, "no such file"),
        (["MODEL", "--path", "litert-fast"], 2, "no kernel path is called 'litert-fast'"),
        (["FOLDER"], 2, "holds 0 bundles"),
        (["ESCAPING"], 3, "is outside the bundle"),
        (["EMPTY"], 3, "golden.vectors"),
        (["CUT"], 3, "not a whole archive"),
    ],
)
def test_refused(model: Path, tmp_path: Path, words: list[str], code: int, said: str) -> None:
    (tmp_path / "folder").mkdir()
    escaping = bundle(model, tmp_path / "a.bundle.tar", models={"int8": "../../etc/passwd"})
    none = {"kernels": "reference", "vectors": []}
    empty = bundle(model, tmp_path / "b.bundle.tar", golden=none)
    cut = tmp_path / "c.bundle.tar"
    cut.write_bytes(empty.read_bytes()[:2000])
    places = {
        "MODEL": model,
        "FOLDER": tmp_path / "folder",
        "ESCAPING": escaping,
        "EMPTY": empty,
        "CUT": cut,
    }
    ended = edgefuse("conformance", *(places.get(word, word) for word in words))
    assert ended.code == code, ended.err
    assert said in ended.err
