"""Downloads: mirrors in order, wrong and damaged bytes, wheels read once, nothing half-written."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import time
import urllib.error
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from edgefuse import fetch
from edgefuse.errors import FetchError, RecipeError, StoreError
from edgefuse.fetch import Downloads
from edgefuse.recipe import Blob

DATA = b"pixels" * 1000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob(*mirrors: str, data: bytes = DATA, file: str = "a.bin") -> Blob:
    return Blob(file=file, sha256=sha(data), mirrors=mirrors)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def downloads(tmp_path: Path, said: list[str]) -> Downloads:
    base = tmp_path / "recipe"
    base.mkdir()
    (base / "a.bin").write_bytes(DATA)
    return Downloads(tmp_path / "store" / "downloads", base, said.append)


def leftovers(downloads: Downloads) -> list[str]:
    return [p.name for p in downloads.folder.rglob(".part-*")]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip finds wheels in, and nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "pictures-1.0.dist-info"
    with zipfile.ZipFile(folder / "pictures-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("pictures/a.bin", DATA)
        archive.writestr("pictures/b.bin", DATA + b"b")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: pictures\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def serve(monkeypatch: pytest.MonkeyPatch, answers: dict[str, object]) -> list[str]:
    asked: list[str] = []

    class Response(io.BytesIO):
        headers = Message()

    def urlopen(request, timeout):
        asked.append(request.full_url)
        answer = answers[request.full_url]
        if isinstance(answer, Exception):
            raise answer
        response = Response(answer)
        response.headers = Message()
        response.headers["Content-Length"] = str(len(DATA))
        return response

    monkeypatch.setattr(fetch.urllib.request, "urlopen", urlopen)
    return asked


def test_file_mirror_lands_at_its_digest(downloads: Downloads, said: list[str]) -> None:
    found = downloads.get(blob("file:{file}"))
    assert found == downloads.folder / sha(DATA)[:2] / sha(DATA)
    assert found.read_bytes() == DATA
    assert downloads.have(sha(DATA)) and not downloads.have(sha(b""))
    assert not leftovers(downloads) and not said


def test_second_use_needs_no_mirror(downloads: Downloads) -> None:
    downloads.get(blob("file:a.bin"))
    again = Downloads(downloads.folder, downloads.base, pytest.fail)
    assert again.get(blob("file:gone")).read_bytes() == DATA


def test_variables_in_file_mirrors(
    downloads: Downloads, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("PLACE", str(downloads.base))
    assert downloads.get(blob("file:${NOT_SET}/a.bin", "file:${PLACE}/a.bin")).is_file()
    (line,) = said
    assert "the variable NOT_SET is not set" in line
    with pytest.raises(RecipeError, match="export NOT_SET"):
        fetch.local_path("${NOT_SET}/x", Path())


def test_wrong_bytes_are_an_error_at_once(downloads: Downloads) -> None:
    wanted = blob("file:a.bin", "file:other", data=b"other")
    (downloads.base / "other").write_bytes(b"other")
    with pytest.raises(FetchError) as caught:
        downloads.get(wanted)
    text = str(caught.value)
    assert "file:a.bin" in text and sha(DATA) in text and sha(b"other") in text
    assert not downloads.have(wanted.sha256) and not leftovers(downloads)


def test_damaged_copy_is_reported_and_fetched_anew(downloads: Downloads, said: list[str]) -> None:
    path = downloads.get(blob("file:a.bin"))
    path.write_bytes(DATA[:-1])
    fresh = Downloads(downloads.folder, downloads.base, said.append)
    assert fresh.get(blob("file:a.bin")).read_bytes() == DATA
    assert "damaged" in said[0]
    path.write_bytes(b"")
    dead = Downloads(downloads.folder, downloads.base, said.append)
    with pytest.raises(FetchError):
        dead.get(blob("file:gone"))
    assert not path.exists()


def test_every_failure_is_named(
    downloads: Downloads, monkeypatch: pytest.MonkeyPatch, wheels: Path, said: list[str]
) -> None:
    secret = "https://user:hunter2@one.example/a.bin?token=s3cret"
    missing = "https://two.example/a.bin"
    serve(
        monkeypatch,
        {
            secret: urllib.error.URLError("no route to https://user:hunter2@one.example/?k=s3cret"),
            missing: urllib.error.HTTPError(missing, 404, "Not Found", Message(), None),
        },
    )
    wanted = blob(secret, missing, "file:nowhere/{file}", "wheel:absent==1.0#x/{file}")
    with pytest.raises(FetchError) as caught:
        downloads.get(wanted)
    text = str(caught.value)
    for part in (
        "https://one.example/a.bin: cannot be reached",
        "two.example/a.bin: HTTP 404 Not Found",
        "file:nowhere/a.bin: No such file or directory",
        "wheel:absent==1.0#x/a.bin: pip download: No matching distribution found for absent==1.0",
        f"put the file with SHA-256 {wanted.sha256} at {downloads.path(wanted.sha256)}",
    ):
        assert part in text
    everything = text + "".join(said)
    assert "hunter2" not in everything and "s3cret" not in everything
    assert len([line for line in said if line.startswith("passing over")]) == 4
    assert not leftovers(downloads)


def test_https_cut_short_is_passed_over(
    downloads: Downloads, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    serve(monkeypatch, {"https://a.example/x": DATA[:100], "https://b.example/x": DATA})
    found = downloads.get(blob("https://a.example/x", "https://b.example/x"))
    assert found.read_bytes() == DATA
    assert any("lost after 100 of 6000 bytes" in line for line in said)


def test_a_dead_host_is_asked_once(downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a.bin", "b.bin", "c.bin"]
    answers = {f"https://dead.example/{n}": urllib.error.URLError("unreachable") for n in names}
    asked = serve(monkeypatch, dict(answers))
    for name in names:
        (downloads.base / name).write_bytes(name.encode())
    downloads.get_all(
        [blob("https://dead.example/{file}", "file:{file}", data=n.encode(), file=n) for n in names]
    )
    assert asked == ["https://dead.example/a.bin"]


def test_spaces_in_a_file_name_are_quoted(
    downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, {"https://a.example/one%20two.bin": DATA})
    downloads.get(blob("https://a.example/{file}", file="one two.bin"))
    assert asked == ["https://a.example/one%20two.bin"]


def test_files_of_one_wheel_take_one_download(
    downloads: Downloads,
    wheels: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    runs = []
    real = subprocess.run
    monkeypatch.setattr(
        fetch.subprocess, "run", lambda *a, **k: (runs.append(a[0]), real(*a, **k))[1]
    )
    mirror = "wheel:pictures==1.0#pictures/{file}"
    found = downloads.get_all(
        [blob(mirror), blob(mirror, data=DATA + b"b", file="b.bin"), blob(mirror)]
    )
    assert [path.read_bytes() for path in found] == [DATA, DATA + b"b", DATA]
    assert len(runs) == 1 and runs[0][0] == sys.executable
    assert capfd.readouterr() == ("", "")
    assert not leftovers(downloads)
    assert said == ["fetching the wheel pictures==1.0"]


def test_wheel_without_the_file_and_broken_wheel(downloads: Downloads, wheels: Path) -> None:
    with pytest.raises(FetchError, match="the wheel has no pictures/none"):
        downloads.get(blob("wheel:pictures==1.0#pictures/none"))
    with pytest.raises(FetchError, match="wrong content"):
        downloads.get(blob("wheel:pictures==1.0#pictures/b.bin"))


def test_a_users_constraints_do_not_forbid_data(
    downloads: Downloads, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.txt").write_text("pictures==2.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "c.txt"))
    assert downloads.get(blob("wheel:pictures==1.0#pictures/a.bin")).is_file()


def test_stale_parts_are_swept_and_fresh_ones_kept(downloads: Downloads) -> None:
    downloads.folder.mkdir(parents=True)
    old, new, folder = (downloads.folder / f".part-{n}" for n in ("old", "new", "dir"))
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    folder.mkdir()
    (folder / "x.whl").write_bytes(b"half")
    for path in (old, folder):
        os.utime(path, (time.time() - 90000,) * 2)
    downloads.get(blob("file:a.bin"))
    assert sorted(leftovers(downloads)) == [".part-new"]


def test_full_disk_is_a_store_error(downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left.*\n.*free some space"):
        downloads.get(blob("file:a.bin"))
    assert not leftovers(downloads) and not downloads.have(sha(DATA))


def test_store_that_is_a_file(downloads: Downloads) -> None:
    downloads.folder.parent.mkdir()
    downloads.folder.write_text("in the way")
    with pytest.raises(StoreError, match=str(downloads.folder)):
        downloads.get(blob("file:a.bin"))


def test_killed_half_way_leaves_nothing_taken_for_whole(downloads: Downloads) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom edgefuse import fetch, recipe\n"
        "fetch.os.fsync = lambda _: os._exit(9)\n"
        "d = fetch.Downloads(Path(sys.argv[1]), Path(sys.argv[2]), print)\n"
        "d.get(recipe.Blob(file='a.bin', sha256=sys.argv[3], mirrors=('file:a.bin',)))\n"
    )
    arguments = [str(downloads.folder), str(downloads.base), sha(DATA)]
    assert subprocess.run([sys.executable, "-c", script, *arguments]).returncode == 9
    assert leftovers(downloads) and not downloads.have(sha(DATA))
    assert downloads.get(blob("file:a.bin")).read_bytes() == DATA


def test_two_processes_at_once(downloads: Downloads) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom edgefuse import fetch, recipe\n"
        "d = fetch.Downloads(Path(sys.argv[1]), Path(sys.argv[2]), print)\n"
        "b = recipe.Blob(file='a.bin', sha256=sys.argv[3], mirrors=('file:a.bin',))\n"
        "for _ in range(200):\n"
        "    assert d.get(b).stat().st_size == 6000\n"
        "    d._verified.clear()\n"
        "    fetch._digest(open(d.path(b.sha256), 'rb'))\n"
        "    d._fetch(b, fetch._Session(d.folder, None))\n"
    )
    arguments = [str(downloads.folder), str(downloads.base), sha(DATA)]
    running = [subprocess.Popen([sys.executable, "-c", script, *arguments]) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert not leftovers(downloads)
