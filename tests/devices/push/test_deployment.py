"""Push, rollback, status and prune: what is current is whole, whatever goes wrong on the way."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.transports.boards import make_target
from devices.transports.faults import quick_leases
from devices.transports.faulty import Faulty, Script
from devices.transports.parcels import make_bundle, tiny_model, whole_version
from edgefuse.devices.push.deployment import Deployment, Pushed, opened_bundle
from edgefuse.devices.push.installation import State
from edgefuse.devices.transport import Transport
from edgefuse.errors import (
    DeviceUnavailable,
    EdgefuseError,
    GateFailed,
    StageError,
    UsageError,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("edgefuse.devices.transport._PAUSE_S", 0.0)
    with quick_leases(0.3, 5.0):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def known(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    made = [make_bundle(folder / f"{n}.tar", model, n, padding=90_000) for n in range(1, 6)]
    return {sha256: path for path, sha256 in made}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: every step waits for the disk."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else tmp_path))
    yield folder / "it's a `board`; ok"
    shutil.rmtree(folder)


def push(root: Path, bundle: Path, sha256: str, way: Transport | None = None) -> Pushed:
    target = make_target(root, "local", kernels="reference")
    with opened_bundle(bundle, sha256) as parcel:
        return Deployment(target, transport=way).push(parcel, wait_s=0)


def deployment(root: Path, **fields: object) -> Deployment:
    return Deployment(make_target(root, "local", **fields))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_versions_come_and_go(root: Path, known: dict[str, Path]) -> None:
    shas = list(known)
    for place, sha256 in enumerate(shas):
        done = push(root, known[sha256], sha256)
        assert done.changed and whole_version(root, known) == sha256
        assert done.previous == (shas[place - 1] if place else "")
    assert names(root / "releases") == set(shas[2:]), "three are kept"
    assert not push(root, known[shas[4]], shas[4]).changed
    for place in (3, 2):
        done = deployment(root).rollback()
        assert done.current == whole_version(root, known) == shas[place]
    with pytest.raises(UsageError, match="no earlier version"):
        deployment(root).rollback()
    assert push(root, known[shas[0]], shas[0]).previous == shas[2]
    state = deployment(root).state()
    assert set(deployment(root).faults(state).values()) == {""}
    assert deployment(root).prune(keep=2) and names(root / "releases") == {shas[0], shas[2]}
    assert names(root) == {"current", "history", "releases", "runtime", "sums"}


def test_a_plan_changes_nothing(root: Path, known: dict[str, Path]) -> None:
    first, second = list(known)[:2]
    with opened_bundle(known[first], first) as parcel:
        lines = deployment(root).plan(parcel)
    assert not root.exists() and any("upload" in line for line in lines)
    push(root, known[first], first)
    before = sorted(root.rglob("*"))
    with opened_bundle(known[second], second) as parcel:
        lines = deployment(root).plan(parcel)
    assert sorted(root.rglob("*")) == before
    assert lines[-1] == f"switch from {first[:12]} to {second[:12]}"


def test_cut_at_every_step(root: Path, known: dict[str, Path]) -> None:
    """The connection dies for good in operation n of a push, for every n; then it comes back."""
    first, *others = list(known)[:3]
    push(root, known[first], first)
    steps = 0
    for number in range(60):
        old = whole_version(root, known)
        new = others[number % 2]
        shutil.rmtree(root / "releases" / new, ignore_errors=True) if new != old else None
        way = Faulty(Script(at=number, when="half"))
        try:
            push(root, known[new], new, way)
        except DeviceUnavailable:
            assert whole_version(root, known) in (old, new)
        else:
            steps = number
            assert whole_version(root, known) == new
        if way.done <= number:
            break
    assert 10 < steps < 60, "the last push was never cut"


def test_a_transfer_that_is_cut_goes_on(root: Path, known: dict[str, Path]) -> None:
    first, second = list(known)[:2]
    push(root, known[first], first)
    cut = Faulty(Script())
    target = make_target(root, "local", kernels="reference")
    told: list[str] = []
    inner = cut.write

    def half_once(source: Path, destination: str, offset: int) -> None:
        cut.script = Script(at=cut.done, when="half", comes_back=True)
        cut.write = inner  # type: ignore[method-assign]
        inner(source, destination, offset)

    cut.write = half_once  # type: ignore[method-assign]
    with opened_bundle(known[second], second) as parcel:
        Deployment(target, transport=cut, tell=told.append).push(parcel)
    assert any("going on at byte" in line for line in told), told
    assert whole_version(root, known) == second


def test_a_slow_way(root: Path, known: dict[str, Path]) -> None:
    first = next(iter(known))
    push(root, known[first], first, Faulty(Script(delay_s=0.01)))
    assert whole_version(root, known) == first


def test_golden_vectors_that_depart(root: Path, model: bytes, known: dict[str, Path]) -> None:
    first = next(iter(known))
    push(root, known[first], first)
    bad, sha256 = make_bundle(root.parent / "bad.tar", model, 9)
    import tarfile

    from edgefuse.archive import pack
    from edgefuse.artifact import digest_bytes, digest_file

    with tarfile.open(bad) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    name = "golden/0/output_0.npy"
    members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])
    import json

    manifest = json.loads(members["manifest.json"])
    manifest["files"][name]["sha256"] = digest_bytes(members[name])
    members["manifest.json"] = json.dumps(manifest).encode()
    pack(members, bad)
    sha256 = digest_file(bad)
    with pytest.raises(GateFailed, match="a golden vector departs by"):
        push(root, bad, sha256)
    assert whole_version(root, known) == first
    assert names(root / "releases") == {first}, "nothing of it stays"


def test_a_model_that_the_runtime_refuses(root: Path, known: dict[str, Path]) -> None:
    first = next(iter(known))
    push(root, known[first], first)
    model = b"not a model at all" * 10
    with pytest.raises((EdgefuseError, ValueError)):
        path, sha256 = make_bundle(root.parent / "broken.tar", model, 9)
        push(root, path, sha256)
    assert whole_version(root, known) == first


@pytest.mark.parametrize("damage", ["altered", "lost", "planted", "link", "manifest"])
def test_damage_is_found(root: Path, known: dict[str, Path], damage: str) -> None:
    first, second = list(known)[:2]
    push(root, known[first], first)
    push(root, known[second], second)
    folder = root / "releases" / first
    match damage:
        case "altered":
            (folder / "labels.txt").write_text("other")
        case "lost":
            (folder / "labels.txt").unlink()
        case "planted":
            (folder / "extra").write_text("x")
        case "link":
            (folder / "labels.txt").unlink()
            (folder / "labels.txt").symlink_to("/etc/passwd")
        case _:
            (folder / "manifest.json").write_text("{}")
    state = deployment(root).state()
    faults = deployment(root).faults(state)
    assert faults[first] and not faults[second]
    with pytest.raises(StageError, match="is not whole"):
        deployment(root).rollback()
    assert whole_version(root, known) == second
    assert push(root, known[first], first).changed, "a push mends it"
    assert whole_version(root, known) == first


def test_a_current_version_that_is_damaged_is_mended(root: Path, known: dict[str, Path]) -> None:
    first = next(iter(known))
    push(root, known[first], first)
    (root / "current" / "labels.txt").write_text("other")
    assert push(root, known[first], first).changed
    assert whole_version(root, known) == first


def test_something_else_is_in_the_way(root: Path, known: dict[str, Path]) -> None:
    first = next(iter(known))
    (root / "current").mkdir(parents=True)
    with pytest.raises(StageError, match="is in the way"):
        push(root, known[first], first)
    shutil.rmtree(root)
    root.write_text("a file")
    with pytest.raises(EdgefuseError, match="cannot use the installation folder"):
        push(root, known[first], first)


def test_another_architecture(root: Path, known: dict[str, Path]) -> None:
    target = make_target(root, "ssh", ssh={"host": "h"}, architecture="aarch64")
    first = next(iter(known))
    with (
        opened_bundle(known[first], first) as parcel,
        pytest.raises(DeviceUnavailable, match="the device is x86_64, its target says aarch64"),
    ):
        Deployment(target, transport=Faulty(Script())).push(parcel)
    assert not root.exists()


def test_a_bundle_that_is_another(tmp_path: Path, known: dict[str, Path]) -> None:
    first, second = list(known)[:2]
    with pytest.raises(StageError, match=f"expected {second}"), opened_bundle(known[first], second):
        pass
    with pytest.raises(StageError, match="no such bundle"), opened_bundle(tmp_path / "x", first):
        pass


def test_previous_and_surplus() -> None:
    def state(current: str, history: str, releases: str) -> State:
        lists = tuple(history), tuple(releases)
        return State("", "", True, False, current, *lists, (), "", None)

    assert state("b", "ab", "ab").previous == "a"
    assert state("b", "ab", "b").previous == "", "it is gone"
    assert state("a", "ab", "ab").previous == "", "b was never current, or rolled back from"
    assert state("c", "abc", "ac").previous == "a"
    assert state("a", "aba", "ab").previous == "b"
    assert state("x", "ab", "abx").previous == "", "a history that does not know it"
    assert state("b", "abc", "abc").with_current("d") == ("a", "b", "d")
    assert state("b", "ab", "ab").with_current("a") == ("b", "a")
    assert state("", "", "").with_current("a") == ("a",)
    assert state("d", "abcd", "abcde").surplus(3) == ("e", "a")
    assert state("d", "abcd", "abcd").surplus(2) == ("a", "b")
    assert state("b", "ab", "ab").surplus(2) == ()
