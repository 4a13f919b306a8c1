"""doctor: what is missing or wrong is an error with its remedy; nothing heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import edgefuse

from edgefuse import keys
from edgefuse.commands import doctor as command_doctor
from edgefuse.commands.doctor import Finding, examine


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EDGEFUSE_DATA", raising=False)
    monkeypatch.setattr(command_doctor, "constraints_file", lambda: None)


def test_the_constraints_of_a_checkout_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert command_doctor.constraints_file() == Path(__file__).parents[2] / "constraints.txt"


def levels(word: str) -> list[tuple[str, str]]:
    return [(f.level, f.remedy) for f in examine() if word in f.what]


def test_each_finding_is_a_line_and_json_says_the_same() -> None:
    plain, data = edgefuse("doctor"), edgefuse("doctor", "--json")
    findings = json.loads(data.out)
    assert plain.code == data.code == (3 if any(f["level"] == "error" for f in findings) else 0)
    assert {"ok", "note"} & {f["level"] for f in findings}
    for finding in findings:
        assert set(finding) == {"level", "what", "remedy"}
        if finding["level"] == "error":
            assert finding["remedy"], finding
    assert "Python 3" in plain.out and not plain.err


def test_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = keys.version
    monkeypatch.setattr(
        command_doctor, "version", lambda n: "missing" if n in ("onnx2tf", "pip") else real(n)
    )
    assert levels("onnx2tf not installed") == [
        ("error", "pip install 'edgefuse[convert]' -c constraints.txt")
    ]
    assert levels("pip is not installed")[0][0] == "error"
    ended = edgefuse("doctor")
    assert ended.code == 3 and "remedy: pip install 'edgefuse[convert]'" in ended.out


def test_versions_are_compared_with_the_tested_ones(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "constraints.txt"
    monkeypatch.setattr(command_doctor, "constraints_file", lambda: path)
    path.write_text(
        f"# tested\nnumpy=={keys.version('numpy')}  # pinned\nnot-installed==1\n\n-r x\n"
    )
    assert levels("constraints.txt")[0][0] == "ok"
    path.write_text("numpy==0.1\npillow==0.2; python_version < '3'\n")
    (found,) = [f for f in examine() if "differ from constraints.txt" in f.what]
    assert found.level == "error" and "numpy" in found.what and "pillow" not in found.what
    assert found.remedy == f"pip install -c {path} numpy"


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(f"store {tmp_path / 'cache'}: 0.00 GB held") == [("ok", "")]
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "x").write_bytes(b"x" * 30_000_000)
    assert levels("0.03 GB held")
    monkeypatch.setattr(command_doctor, "_FREE_BYTES", 1 << 60)
    assert levels("GB free")[0] == ("error", "free 2 GB, or set EDGEFUSE_CACHE to another disk")
    monkeypatch.setattr(command_doctor.os, "access", lambda *_: False)
    assert levels("not writable")[0][0] == "error"
    monkeypatch.setenv("EDGEFUSE_DATA", str(tmp_path / "gone"))
    assert levels("EDGEFUSE_DATA=")[0][0] == "error"


def test_a_store_that_cannot_be_looked_at_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command_doctor.shutil, "disk_usage", fail)
    assert levels("cannot be read: Permission denied")[0][0] == "error"


@pytest.mark.parametrize(
    ("dot", "level", "said"),
    [(True, "ok", " has int8"), (False, "note", " has no int8"), (None, "note", "unknown")],
)
def test_what_the_cpu_can_do(monkeypatch: pytest.MonkeyPatch, dot, level: str, said: str) -> None:
    monkeypatch.setattr("edgefuse.devices.measure.fingerprint.has_int8_dot_product", lambda: dot)
    (found,) = [f for f in examine() if "int8 dot product" in f.what]
    assert found.level == level and said in found.what


def test_a_wrong_python_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_doctor.sys, "version_info", (3, 13, 0))
    assert levels("Python 3")[0][0] == "error"


def test_a_line() -> None:
    assert Finding("ok", "fine").line == "ok    fine"
    assert Finding("error", "bad", "mend").line == "ERROR bad\n      remedy: mend"


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys\nfrom edgefuse.commands.doctor import examine\nexamine()\n"
        "print(sorted({'torch','tensorflow','onnx','onnx2tf','numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
