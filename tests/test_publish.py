"""The output folder: whole files, bundles unpacked, withdrawal, failures told."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from fake_stages import Fakes, fakes

from edgefuse import publish, store
from edgefuse.archive import pack
from edgefuse.artifact import Artifact, digest_file
from edgefuse.errors import StoreError
from edgefuse.stage import Stage

__all__ = ["fakes"]


@pytest.fixture
def stages(fakes: Fakes) -> dict[str, Stage]:
    return fakes.registry().all()


def bundle(folder: Path, **members: bytes) -> Artifact:
    path = folder / "stored"
    pack({name.replace("__", "/"): data for name, data in members.items()}, path)
    return Artifact("bundle", path, digest_file(path), "seal", "k")


def test_a_bundle_is_unpacked_and_replaced_as_a_whole(stages, tmp_path: Path) -> None:
    out = tmp_path / "o"
    out.mkdir()
    first = bundle(tmp_path, manifest=b"1", models__old=b"m")
    assert publish.put(out, "tiny", stages["seal"], first) == "tiny.bundle.tar"
    assert (out / "bundle/models/old").read_bytes() == b"m"
    assert (out / "bundle").stat().st_mode & 0o777 == 0o755
    publish.put(out, "tiny", stages["seal"], bundle(tmp_path, manifest=b"2"))
    names = sorted(p.relative_to(out).as_posix() for p in out.rglob("*"))
    assert names == ["bundle", "bundle/manifest", "tiny.bundle.tar"]


def test_a_verdict_is_not_published(stages, tmp_path: Path) -> None:
    verdict = Artifact("verdict", tmp_path / "v", "0" * 64, "gate_one", "k")
    assert publish.put(tmp_path, "tiny", stages["gate_one"], verdict) is None


def test_an_unreadable_file_in_its_place_is_replaced(stages, tmp_path: Path, monkeypatch) -> None:
    made = bundle(tmp_path, manifest=b"1")
    publish.put(tmp_path, "tiny", stages["seal"], made)
    (tmp_path / "tiny.bundle.tar").write_text("old")

    def fail(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(store, "digest_file", fail)
    assert publish.put(tmp_path, "tiny", stages["seal"], made) == "tiny.bundle.tar"
    assert digest_file(tmp_path / "tiny.bundle.tar") == made.sha256


def test_withdrawing_takes_evidence_along_and_nothing_else(stages, tmp_path: Path) -> None:
    publish.put(tmp_path, "tiny", stages["seal"], bundle(tmp_path, manifest=b"1"))
    for name in ("evidence.json", "tiny_alpha.onnx", "notes.txt", "other.bundle.tar"):
        (tmp_path / name).write_text("x")
    publish.withdraw(tmp_path, "tiny", [stages["seal"], stages["beta"]], "host")
    assert {p.name for p in tmp_path.iterdir() if p.name not in ("stored", "recipe.yaml")} == {
        "data.npz", "tiny_alpha.onnx", "notes.txt", "other.bundle.tar"
    }  # fmt: skip
    publish.withdraw(tmp_path, "tiny", stages.values(), "host")


@pytest.mark.parametrize("call", ["unlink", "rmtree"])
def test_what_cannot_be_withdrawn_is_told(stages, tmp_path: Path, monkeypatch, call: str) -> None:
    publish.put(tmp_path, "tiny", stages["seal"], bundle(tmp_path, manifest=b"1"))

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "there")

    monkeypatch.setattr(*((Path, "unlink") if call == "unlink" else (shutil, "rmtree")), fail)
    with pytest.raises(StoreError, match="Permission denied"):
        publish.withdraw(tmp_path, "tiny", [stages["seal"]], "host")


def test_a_folder_in_the_place_of_a_file_is_told(stages, tmp_path: Path) -> None:
    (tmp_path / "tiny_alpha.onnx").mkdir()
    with pytest.raises(StoreError):
        publish.withdraw(tmp_path, "tiny", [stages["alpha"]], "host")


def test_runs_into_one_folder_replace_each_other(stages, tmp_path: Path) -> None:
    """Each removes the folder before it puts its own there, and may find another's again."""
    made = bundle(tmp_path, **{f"member{k}": b"1" for k in range(20)})
    out = tmp_path / "out"
    out.mkdir()
    failed: list[Exception] = []

    def run() -> None:
        for _ in range(30):
            try:
                publish._unpack(made.path, out / "bundle")
            except Exception as error:
                failed.append(error)

    runs = [threading.Thread(target=run) for _ in range(3)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert failed == [] and [path.name for path in out.iterdir()] == ["bundle"]
    assert len(list((out / "bundle").iterdir())) == 20


def test_a_full_disk_while_unpacking_leaves_no_part(stages, tmp_path: Path, monkeypatch) -> None:
    real = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if "b" in self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    made = bundle(tmp_path, a=b"1", b=b"2")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError, match="no space left"):
        publish.put(tmp_path, "tiny", stages["seal"], made)
    assert not list(tmp_path.glob(".tmp-*")) and not (tmp_path / "bundle").exists()
