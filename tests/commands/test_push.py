"""push, rollback, status and prune as a user meets them; fleets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import Ended, edgefuse
from devices.transports.parcels import give_evidence, make_bundle, tiny_model, whole_version

NAMES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("bundles")
    model = tiny_model(folder)
    made = [make_bundle(folder / str(n) / "net.bundle.tar", model, n) for n in (1, 2)]
    for path, _ in made:
        give_evidence(path, *NAMES)
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three targets, each this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "targets").mkdir()
    for name in NAMES:
        text = f"name: {name}\nsummary: s\ntransport: local\nruntime: litert\nkernels: reference\n"
        text += f"install_path: {tmp_path}/boards/{name}\n"
        (tmp_path / f"targets/{name}.yaml").write_text(text)
    return tmp_path


def fleet(*names: str) -> list[str]:
    return [word for name in names for word in ("--target", name)]


def rows(ended: Ended) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ended.out)
    return found


def test_push_roll_back_status_prune(home: Path, bundles: list[tuple[Path, str]]) -> None:
    known = {sha256: path for path, sha256 in bundles}
    (one, first), (two, second) = bundles
    board = home / "boards/alpha"
    ended = edgefuse("push", one, "--target", "alpha")
    assert ended.code == 0 and f"alpha: installed {first[:12]} at alpha:" in ended.out, ended.err
    assert "2 golden vectors: bit-exact" in ended.err
    ended = edgefuse("push", two, "--target", "alpha", "-q")
    assert ended.code == 0 and f"previous {first[:12]}" in ended.out and not ended.err
    ended = edgefuse("status", "--target", "alpha")
    assert f"current {second[:12]} (healthy)" in ended.out and first[:12] in ended.out
    ended = edgefuse("rollback", "--target", "alpha", "--json")
    assert rows(ended)[0]["current"] == first == whole_version(board, known)
    assert edgefuse("rollback", "--target", "alpha").code == 2
    ended = edgefuse("prune", "--target", "alpha")
    assert ended.code == 0 and "removed 0 versions" in ended.out
    (board / "current/labels.txt").write_text("damaged")
    ended = edgefuse("status", "--target", "alpha")
    assert ended.code == 3 and "damaged: labels.txt is damaged" in ended.out
    assert len(ended.messages) == 1 and "hint: " in ended.err
    row = rows(edgefuse("status", "--target", "alpha", "--json"))[0]
    assert row["versions"] == {first: "labels.txt is damaged", second: ""}
    assert row["free_bytes"] > 0 and row["locked_by"] == ""


def test_nothing_there(home: Path) -> None:
    ended = edgefuse("status", "--target", "alpha")
    assert ended.code == 0 and "alpha: nothing installed at" in ended.out
    assert edgefuse("prune", "--target", "alpha").code == 0
    assert not (home / "boards").exists()
    assert edgefuse("prune", "--target", "alpha", "--keep", "1").code == 2


def test_a_dry_run(home: Path, bundles: list[tuple[Path, str]]) -> None:
    ended = edgefuse("push", bundles[0][0], "--target", "alpha", "--dry-run")
    assert ended.code == 0 and "would be pushed" in ended.out and "switch from nothing" in ended.out
    assert not (home / "boards").exists()


def test_a_fleet(home: Path, bundles: list[tuple[Path, str]]) -> None:
    ended = edgefuse("push", bundles[0][0], *fleet(*NAMES), "--canary", "beta", "--json")
    assert ended.code == 0
    assert [row["target"] for row in rows(ended)] == ["beta", "alpha", "gamma"]
    assert {row["outcome"] for row in rows(ended)} == {"installed"}


def test_a_canary_that_fails_stops_the_fleet(home: Path, bundles: list[tuple[Path, str]]) -> None:
    (home / "boards").mkdir()
    (home / "boards/alpha").write_text("in the way")
    ended = edgefuse("push", bundles[0][0], *fleet(*NAMES), "--json")
    outcomes = [(row["target"], row["outcome"]) for row in rows(ended)]
    rest = "not tried: the canary failed"
    assert outcomes == [("alpha", "failed"), ("beta", rest), ("gamma", rest)]
    assert ended.code == rows(ended)[0]["exit_code"] != 0 and len(ended.messages) == 1
    assert not (home / "boards/beta").exists()


def test_one_that_fails_does_not_keep_the_rest(home: Path, bundles: list[tuple[Path, str]]) -> None:
    (home / "boards").mkdir()
    (home / "boards/beta").write_text("in the way")
    ended = edgefuse("push", bundles[0][0], *fleet(*NAMES))
    assert "beta: failed: cannot use the installation folder" in ended.out
    assert "gamma: installed" in ended.out and ended.code in (3, 4)
    assert "1 of 3 devices failed: beta" in ended.err


def test_a_fleet_is_refused_as_a_whole(home: Path, bundles: list[tuple[Path, str]]) -> None:
    folder = home / "bundle"
    shutil.copytree(bundles[0][0].parent, folder)
    give_evidence(folder / "net.bundle.tar", "alpha")
    ended = edgefuse("push", folder / "net.bundle.tar", *fleet("alpha", "beta"))
    assert ended.code == 1 and "not on beta" in ended.err and not (home / "boards").exists()
    for words in (
        fleet("alpha", "alpha"),
        [*fleet("alpha"), "--canary", "beta"],
        fleet("nowhere"),
    ):
        assert edgefuse("push", bundles[0][0], *words).code == 2
    assert not (home / "boards").exists()


def test_a_flipped_byte_is_refused(home: Path, bundles: list[tuple[Path, str]]) -> None:
    folder = home / "bundle"
    shutil.copytree(bundles[0][0].parent, folder)
    path = folder / "net.bundle.tar"
    data = bytearray(path.read_bytes())
    data[3000] ^= 4
    path.write_bytes(data)
    ended = edgefuse("push", path, "--target", "alpha")
    assert ended.code == 1 and "the evidence is for bundle" in ended.err
    assert not (home / "boards").exists()


def test_simulated_targets_are_no_boards(home: Path, bundles: list[tuple[Path, str]]) -> None:
    (home / "targets/alpha.yaml").write_text(
        "name: alpha\nsummary: s\ntransport: local\nruntime: tflite_micro\n"
        f"install_path: {home}/boards/alpha\n"
    )
    ended = edgefuse("push", bundles[0][0], "--target", "alpha")
    assert ended.code == 2 and "is played, not a machine" in ended.err
