"""Small bundles with a model that runs, golden vectors of the reference kernels, and evidence."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.archive import pack
from edgefuse.artifact import digest_bytes, digest_file
from edgefuse.tflite.runtime import open_model


def tiny_model(folder: Path) -> bytes:
    """An int8 model of a few kilobytes."""
    source = Path(__file__).parents[2] / "tflite" / "tiny.py"
    spec = importlib.util.spec_from_file_location("tiny_for_parcels", source)
    assert spec is not None and spec.loader is not None
    tiny = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tiny
    spec.loader.exec_module(tiny)
    path = folder / "float.tflite"
    path.write_bytes(tiny.float_file(tiny.weights()))
    data: bytes = tiny.int8_file(path)
    return data


def golden(model: Path, seed: int, count: int = 2) -> tuple[dict[str, bytes], dict[str, Any]]:
    opened = open_model(model, kernels="reference")
    random = np.random.default_rng(seed)
    members: dict[str, bytes] = {}
    rows = []
    for index in range(count):
        feeds = {
            spec.name: random.integers(-128, 128, spec.shape).astype(spec.dtype)
            for spec in opened.signature.inputs
        }
        row: dict[str, Any] = {"inputs": {}, "outputs": {}}
        for side, arrays in (("input", feeds), ("output", opened.run(feeds))):
            for place, (name, array) in enumerate(arrays.items()):
                member = f"golden/{index}/{side}_{place}.npy"
                stream = io.BytesIO()
                np.lib.format.write_array(stream, np.ascontiguousarray(array), version=(1, 0))
                members[member] = stream.getvalue()
                row[f"{side}s"][name] = member
        rows.append(row)
    return members, {"kernels": "reference", "vectors": rows, "deviation": None}


def make_bundle(
    path: Path, model: bytes, number: int = 1, *, padding: int = 0, **changes: Any
) -> tuple[Path, str]:
    """A bundle of version ``number``; its path and SHA-256. ``changes`` go into the manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_suffix(".tflite")
    file.write_bytes(model)
    vectors, listed = golden(file, number)
    file.unlink()
    name = "models/net_full_integer_quant.tflite"
    filling = np.random.default_rng(number).bytes(padding)
    labels = f"version {number}\n".encode()
    members = {name: model, "labels.txt": labels, "models/net_float32.tflite": filling, **vectors}
    manifest = {
        "schema": 2, "edgefuse": "0", "name": "net", "weights": "given", "release": True,
        "files": {n: {"sha256": digest_bytes(d), "bytes": len(d)} for n, d in members.items()},
        "models": {"int8": name, "float": "models/net_float32.tflite"},
        "signature": {}, "golden": listed, "runtime": {}, "sources": {}, "data": {},
        "lineage": {}, "toolchain": {}, **changes,
    }  # fmt: skip
    members["manifest.json"] = json.dumps(manifest).encode()
    pack(members, path)
    return path, digest_file(path)


def give_evidence(bundle: Path, *targets: str, verdict: str = "pass") -> None:
    """Evidence beside a bundle that it passed on those targets."""
    names = ("accuracy", "memory", "latency")
    judged = {
        "verdict": verdict,
        "gates": [{"name": name, "verdict": verdict} for name in names],
        "parity": [],
        "permissions": [],
    }
    document = {"schema": 2, "bundle_sha256": digest_file(bundle), "recipe": "net"}
    text = json.dumps({**document, "targets": dict.fromkeys(targets, judged)})
    bundle.with_name("evidence.json").write_text(text)


def whole_version(root: Path, known: dict[str, Path]) -> str:
    """The current version of an installation that lies here, proven by its bundle and golden
    vectors, independent of the code under test; raises AssertionError."""
    link = root / "current"
    assert link.is_symlink(), "there is no current version"
    sha256 = str(link.readlink()).removeprefix("releases/")
    assert sha256 in known, f"unknown version {sha256}"
    folder = root / "releases" / sha256
    import tarfile

    with tarfile.open(known[sha256]) as archive:
        expected = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    found = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    assert found == expected, "the current version is not its bundle"
    manifest = json.loads(found["manifest.json"])
    model = open_model(folder / manifest["models"]["int8"], kernels="reference")
    for row in manifest["golden"]["vectors"]:
        outputs = model.run({n: np.load(folder / p) for n, p in row["inputs"].items()})
        for name, member in row["outputs"].items():
            assert outputs[name].tobytes() == np.load(folder / member).tobytes()
    return sha256
