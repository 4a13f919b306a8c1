"""Private environments, from a wheel made here: no network."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from edgefuse.devices.setup.venv import Environment, Pin, interpreter, make_environment
from edgefuse.errors import DeviceUnavailable, FetchError, ToolError


def make_wheel(folder: Path, body: str = "VALUE = 7\n") -> str:
    """A wheel of one module, ``planted``; its SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "planted-1.0-py3-none-any.whl"
    info = "planted-1.0.dist-info"
    files = {
        "planted.py": body,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(sha256: str, proves: str = "planted") -> Environment:
    return Environment("planted", (Pin("planted", "1.0", (sha256,)),), (proves,))


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own pip configuration: an index that holds one wheel."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_USER", "1")
    return folder


def test_made_once_then_offline(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, prepared = environment(make_wheel(wheels)), tmp_path / "prepared"
    with pytest.raises(DeviceUnavailable, match="not set up") as refused:
        interpreter(wanted, prepared, "tflm")
    assert refused.value.hint == "edgefuse setup tflm"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("planted==2.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    assert list(make_environment(wanted, prepared)) == ["planted: installed planted 1.0"]
    python = interpreter(wanted, prepared, "tflm")
    told = subprocess.run(
        [python, "-I", "-c", "import planted; print(planted.VALUE)"], capture_output=True, text=True
    )
    assert told.stdout == "7\n"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert list(make_environment(wanted, prepared)) == ["planted: already there (planted 1.0)"]


def test_wrong_hash_leaves_nothing(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels)
    wanted = environment("0" * 64)
    with pytest.raises(FetchError, match="other bytes than the pinned"):
        list(make_environment(wanted, tmp_path))
    assert not wanted.folder(tmp_path).exists()
    assert [p.name for p in (tmp_path / "venvs").iterdir() if ".part" in p.name] == []


def test_no_such_wheel(wheels: Path, tmp_path: Path) -> None:
    wheels.mkdir()
    with pytest.raises(FetchError, match="pip cannot install planted") as refused:
        list(make_environment(environment("0" * 64), tmp_path))
    assert "wheels for Python" in refused.value.hint


def test_what_cannot_be_imported_is_not_made(wheels: Path, tmp_path: Path) -> None:
    wanted = environment(make_wheel(wheels), proves="absent")
    with pytest.raises(ToolError, match="No module named 'absent'"):
        list(make_environment(wanted, tmp_path))
    assert not wanted.folder(tmp_path).exists()


def test_python_moved(wheels: Path, tmp_path: Path) -> None:
    wanted = environment(make_wheel(wheels))
    list(make_environment(wanted, tmp_path))
    python = interpreter(wanted, tmp_path, "tflm")
    for link in python.parent.glob("python*"):
        link.unlink()
    python.symlink_to(tmp_path / "gone" / "python3")
    with pytest.raises(DeviceUnavailable, match="the Python that it was made with is gone"):
        interpreter(wanted, tmp_path, "tflm")
    lines = list(make_environment(wanted, tmp_path))
    assert "making it anew" in lines[0] and "installed" in lines[1]
    assert interpreter(wanted, tmp_path, "tflm").exists()


def test_damaged_is_made_anew(wheels: Path, tmp_path: Path) -> None:
    wanted = environment(make_wheel(wheels))
    list(make_environment(wanted, tmp_path))
    (module,) = wanted.folder(tmp_path).glob("lib/*/site-packages/planted.py")
    module.write_text("import nothing_of_the_kind\n")
    assert "cannot be loaded" in next(iter(make_environment(wanted, tmp_path)))
    list(make_environment(wanted, tmp_path))
    assert module.read_text() == "VALUE = 7\n"


def test_half_made_is_never_used(wheels: Path, tmp_path: Path) -> None:
    wanted = environment(make_wheel(wheels))
    folder = wanted.folder(tmp_path)
    left = folder.parent / f".part-{folder.name}-killed"
    left.mkdir(parents=True)
    folder.mkdir()
    with pytest.raises(DeviceUnavailable, match="record is missing"):
        interpreter(wanted, tmp_path, "tflm")
    list(make_environment(wanted, tmp_path))
    assert not left.exists()
    assert interpreter(wanted, tmp_path, "tflm").exists()


def test_two_at_once_make_one(wheels: Path, tmp_path: Path) -> None:
    wanted = environment(make_wheel(wheels))
    lines: list[str] = []
    threads = [
        threading.Thread(target=lambda: lines.extend(make_environment(wanted, tmp_path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lines) == [
        "planted: already there (planted 1.0)",
        "planted: installed planted 1.0",
    ]
