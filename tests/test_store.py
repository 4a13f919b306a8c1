"""The store: whole or absent, verified on read, shared by processes, swept of the dead."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from edgefuse.artifact import Artifact, Product, Quantization, Signature, TensorSpec, digest_bytes
from edgefuse.errors import StoreError
from edgefuse.store import (
    Damaged,
    Store,
    copy_atomically,
    default_root,
    disk_error,
    is_disk_error,
    write_atomically,
)

KEY = "ab" * 32
SIGNATURE = Signature(
    (TensorSpec("x", (1, 3, 8, 8), "float32", "NCHW"),),
    (TensorSpec("y", (1, 5), "int8", "other", Quantization(0.5, -3)),),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, data: bytes = b"model", key: str = KEY, recipe: str = "r") -> Artifact:
    with store.work_folder() as work:
        (work / "m").write_bytes(data)
        return store.put(
            Product("onnx", work / "m", SIGNATURE, {"parity": {"limit": 1e-4}}),
            stage="export",
            key=key,
            parts={"config": {"seed": 0}},
            parents={"source": "cd" * 32},
            recipe=recipe,
            seconds=1.5,
        )


def flip(path: Path, at: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


def test_what_is_put_comes_back(store: Store) -> None:
    assert not store.has("export", KEY) and store.latest("export", "r") is None
    made = put(store)
    found = store.get("export", KEY)
    assert found.path.read_bytes() == b"model" and found.sha256 == digest_bytes(b"model")
    assert found.signature == SIGNATURE and found.reused and not made.reused
    assert (found.parents, found.evidence, found.seconds) == (
        made.parents, made.evidence, made.seconds
    )  # fmt: skip
    assert store.entry("export", KEY)["parts"] == {"config": {"seed": 0}}
    assert not store.has("fuse", KEY)


def test_equal_bytes_are_kept_once_and_never_rewritten(store: Store) -> None:
    first = put(store).path
    before = first.stat()
    second = put(store, key="cd" * 32).path
    assert first == second
    assert (before.st_ino, before.st_mtime_ns) == (second.stat().st_ino, second.stat().st_mtime_ns)


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_flipped_bit_in_an_entry_is_damage(store: Store, at: float) -> None:
    put(store)
    path = store._entry_path("export", KEY)
    flip(path, at)
    with pytest.raises(Damaged, match=KEY):
        store.get("export", KEY)
    store.drop("export", KEY)
    assert not store.has("export", KEY)
    put(store)
    assert store.get("export", KEY).path.read_bytes() == b"model"


@pytest.mark.parametrize("text", ["", "null", "[]", "7", '{"record": []}', '{"digest": 1}', "\xff"])
def test_anything_else_in_an_entry_is_damage(store: Store, text: str) -> None:
    put(store)
    store._entry_path("export", KEY).write_bytes(text.encode("latin-1"))
    with pytest.raises(Damaged):
        store.entry("export", KEY)


def test_an_entry_moved_to_another_key_is_damage(store: Store) -> None:
    put(store)
    other = "cd" * 32
    store._entry_path("export", KEY).rename(store._entry_path("export", other))
    with pytest.raises(Damaged, match="digest"):
        store.entry("export", other)


def test_damaged_bytes_are_found_dropped_and_written_anew(store: Store) -> None:
    path = put(store).path
    flip(path)
    with pytest.raises(Damaged, match=str(path)):
        store.get("export", KEY)
    store.drop("export", KEY)
    assert not path.exists() and not store.has("export", KEY)
    assert put(store).path.read_bytes() == b"model"


def test_damaged_bytes_are_replaced_by_a_put_of_the_same(store: Store) -> None:
    path = put(store).path
    flip(path)
    assert put(store, key="cd" * 32).path == path and path.read_bytes() == b"model"


def test_an_entry_that_cannot_be_dropped_is_told(store: Store, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(StoreError, match="Permission denied"):
        store.drop("export", "0" * 64)


def test_dropping_an_entry_keeps_bytes_that_another_uses(store: Store) -> None:
    put(store)
    put(store, key="cd" * 32)
    store.drop("export", KEY)
    assert store.get("export", "cd" * 32).path.read_bytes() == b"model"
    store.drop("export", KEY)


def test_latest_is_the_last_of_that_recipe(store: Store) -> None:
    put(store, b"1", "01" * 32)
    put(store, b"2", "02" * 32)
    put(store, b"3", "03" * 32, recipe="other")
    latest = store.latest("export", "r")
    assert latest is not None and latest["key"] == "02" * 32
    put(store, b"1", "01" * 32)
    latest = store.latest("export", "r")
    assert latest is not None and latest["key"] == "01" * 32
    flip(store._entry_path("export", "01" * 32))
    assert store.latest("export", "r") is None


def test_latest_does_not_read_every_entry(store: Store) -> None:
    put(store)
    folder = store._entry_path("export", KEY).parent
    for index in range(2000):
        (folder / f"{index:064}.json").write_text("x" * 500)
    start = time.perf_counter()
    for _ in range(20):
        assert store.latest("export", "r") and store.latest("export", "none") is None
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "replace", "mkstemp"])
def test_a_failing_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    owner = {"fsync": "os.fsync", "replace": "pathlib.Path.replace", "mkstemp": "tempfile.mkstemp"}
    monkeypatch.setattr(owner[call], fail)
    with pytest.raises(StoreError) as caught:
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    full = number in (errno.ENOSPC, errno.EDQUOT)
    assert ("no space left" in caught.value.message) == full
    assert caught.value.where and "EDGEFUSE_CACHE" in caught.value.hint


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "f", b"new")
    assert not list(tmp_path.iterdir())


def test_copies_are_whole_and_readable(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    copy_atomically(tmp_path / "a", tmp_path / "deep" / "b")
    assert (tmp_path / "deep" / "b").read_bytes() == b"a"
    assert (tmp_path / "deep" / "b").stat().st_mode & 0o777 == 0o644
    with pytest.raises(StoreError, match="cannot be read"):
        copy_atomically(tmp_path / "gone", tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("problem writing element 62464 to file", True),
        ("491520 requested and 62464 written", True),
        ("something else", False),
    ],
)
def test_numpy_on_a_full_disk_gives_no_number(text: str, full: bool) -> None:
    assert is_disk_error(OSError(text)) == full
    if full:
        assert disk_error(OSError(text), Path("/x")).message == "no space left on the disk"


def test_a_disk_error_names_the_place_and_a_remedy() -> None:
    error = disk_error(PermissionError(errno.EACCES, "Permission denied", "/x/y"), Path("/x"))
    assert error.where == "/x/y" and "permissions" in error.hint and error.exit_code == 3


def test_work_folders_are_private_and_go(store: Store) -> None:
    with store.work_folder() as one, store.work_folder() as two:
        assert one != two and one.is_dir() and two.is_dir()
        assert one.stat().st_mode & 0o077 == 0
    assert not one.exists() and not two.exists()
    with pytest.raises(KeyError), store.work_folder() as three:
        raise KeyError
    assert not three.exists()


def test_folders_of_the_dead_are_swept_and_of_the_living_not(store: Store) -> None:
    parent = store.root / "work"
    (parent / "dead").mkdir(parents=True)
    (parent / "dead" / "half").write_text("x")
    (parent / "dead" / ".alive").write_text("")
    (parent / "bare").mkdir()
    (parent / "living").mkdir()
    with (parent / "living" / ".alive").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        with store.work_folder():
            assert not (parent / "dead").exists() and not (parent / "bare").exists()
            assert (parent / "living").exists()
    with store.work_folder():
        assert not (parent / "living").exists()


CHILD = """
    import sys, time
    from pathlib import Path
    from edgefuse.store import Store
    store = Store(Path(sys.argv[1]))
    place = Path(sys.argv[2])
    for turn in range(20):
        with store.lock("k"):
            number = int(place.read_text())
            time.sleep(0.002)
            place.write_text(str(number + 1))
"""


def test_processes_take_turns_under_a_lock(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "number"
    place.write_text("0")
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(store.root), str(place)]
    children = [subprocess.Popen(command) for _ in range(2)]
    assert [child.wait(30) for child in children] == [0, 0]
    assert place.read_text() == "40"


def test_who_waits_is_told(store: Store) -> None:
    told: list[str] = []
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom pathlib import Path\nfrom edgefuse.store import Store\n"
            "with Store(Path(sys.argv[1])).lock('k'):\n print('held', flush=True)\n "
            "time.sleep(0.5)",
            str(store.root),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with store.lock("k", lambda: told.append("wait")):
        assert told == ["wait"]
    with store.lock("other", lambda: told.append("wait")):
        assert told == ["wait"]
    holder.communicate()


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    with pytest.raises(StoreError, match="EDGEFUSE_CACHE"), store.lock("k"):
        pass
    with pytest.raises(StoreError), store.work_folder():
        pass
    assert not store.has("export", KEY) and store.latest("export", "r") is None


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEFUSE_CACHE", "~/here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / "here"
    monkeypatch.delenv("EDGEFUSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_root() == Path("/xdg/edgefuse")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == tmp_path / ".cache" / "edgefuse"


def test_nan_is_never_stored(store: Store) -> None:
    with store.work_folder() as work:
        (work / "m").write_bytes(b"m")
        product = Product("onnx", work / "m", SIGNATURE, {"x": float("nan")})
        with pytest.raises(ValueError, match="JSON"):
            store.put(product, stage="s", key=KEY, parts={}, parents={}, recipe="r", seconds=0.0)
    assert not store.has("s", KEY)


def test_size(store: Store) -> None:
    put(store, b"x" * 1000)
    (store.root / "link").symlink_to("nowhere")
    assert 1000 < store.size_bytes() < 5000
    assert json.loads(store._entry_path("export", KEY).read_text())["record"]["recipe"] == "r"
