from __future__ import annotations

from pathlib import Path

import pytest

from edgefuse.devices.measure import fingerprint as subject

INTEL = """processor\t: 0
model name\t: Some Xeon
cpu family\t: 6
model\t\t: 143
stepping\t: 8
flags\t\t: fpu avx2 avx512_vnni lahf_lm
processor\t: 1
model name\t: Some Xeon
"""
ARM = """processor : 0
Features : fp asimd asimddp crc32
CPU implementer : 0x41
CPU part : 0xd0b
"""


def given(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    (folder / "cpuinfo").write_text(text)
    monkeypatch.setattr(subject, "CPUINFO", folder / "cpuinfo")


def test_models_and_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given(monkeypatch, tmp_path, INTEL)
    assert subject.cpu_model() == "Some Xeon (6/143/8)"
    assert subject.cpu_flags() == ("avx2", "avx512_vnni")
    given(monkeypatch, tmp_path, ARM)
    assert subject.cpu_model() == "ARM 0x41/0xd0b"
    assert subject.cpu_flags() == ("asimd", "asimddp")
    monkeypatch.setattr(subject, "CPUINFO", tmp_path / "absent")
    assert subject.cpu_model() and subject.cpu_flags() == ()


def test_int8_dot_product_is_known_or_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for text in (INTEL, ARM):
        given(monkeypatch, tmp_path, text)
        assert subject.has_int8_dot_product() is True
    given(monkeypatch, tmp_path, INTEL.replace("avx512_vnni", "erms"))
    assert subject.has_int8_dot_product() is False
    given(monkeypatch, tmp_path, "processor : 0\n")
    assert subject.has_int8_dot_product() is None
    monkeypatch.setattr(subject, "CPUINFO", tmp_path / "absent")
    assert subject.has_int8_dot_product() is None


def test_digest_follows_what_matters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given(monkeypatch, tmp_path, INTEL)
    one = subject.fingerprint("litert 1")
    assert one == subject.fingerprint("litert 1") and len(one["sha256"]) == 64
    assert subject.fingerprint("litert 2")["sha256"] != one["sha256"]
    given(monkeypatch, tmp_path, INTEL.replace("avx512_vnni", "erms"))
    assert subject.fingerprint("litert 1")["sha256"] != one["sha256"]
    given(monkeypatch, tmp_path, INTEL.replace("lahf_lm", "erms"))
    assert subject.fingerprint("litert 1") == one


def test_governor_is_text() -> None:
    assert subject.governor()
