"""The vendor's compiler is played by a script that writes what its documentation shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgefuse.devices.device import Place
from edgefuse.devices.kinds.edgetpu import EdgeTpu, prepare
from edgefuse.devices.measure.bench_worker import random_feeds
from edgefuse.errors import DeviceUnavailable, Inconclusive, StageError
from edgefuse.target import Target
from edgefuse.tflite.read import read_model, signature_of


@pytest.fixture
def coral(
    tmp_path: Path,
    place: Callable[[Path], Place],
    target: Callable[[str], Target],
    monkeypatch: pytest.MonkeyPatch,
) -> EdgeTpu:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return EdgeTpu(target("coral-edgetpu"), place(tmp_path / "prepared"))


def install_compiler(folder: Path, status: str, left: str = "") -> None:
    """A compiler that maps everything but the operator ``left``."""
    b = sys.modules["tiny_for_devices"].Builder()
    x, y, z = (b.tensor(name, (1, 8), "int8", scales=[0.1]) for name in "xyz")
    b.op("CUSTOM", (x,), (y,), custom="edgetpu-custom-op")
    if left:
        b.op(left, (y,), (z,))
    made = folder / "made.tflite"
    made.write_bytes(b.finish({"x": x}, {"y": z if left else y}))
    script = folder / "bin" / "edgetpu_compiler"
    script.write_text(
        "#!/bin/sh\n"
        'test "$1 $2 $3 $4" = "-s -o out model.tflite" || exit 9\n'
        f"cp '{made}' out/model_edgetpu.tflite\n"
        "cat <<'END'\nEdge TPU Compiler version 16.0.384591198\n\n"
        f"Operator                       Count      Status\n\n{status}END\n"
    )
    script.chmod(0o755)


def test_broken_rule_before_anything_else(
    coral: EdgeTpu, files: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(StageError, match=r"int8 or uint8, with a scale\. CONV_2D#0, DEPTHWISE"):
        coral.compile(files[0], tmp_path / "out")


def test_without_the_compiler(
    coral: EdgeTpu, files: tuple[Path, Path], tmp_path: Path, target: Callable[[str], Target]
) -> None:
    with pytest.raises(DeviceUnavailable, match="keeps the 20 documented rules") as refused:
        coral.compile(files[1], tmp_path / "out")
    assert refused.value.exit_code == 4 and "edgetpu-compiler" in refused.value.hint
    with pytest.raises(DeviceUnavailable, match="not installed"):
        list(prepare(target("coral-edgetpu"), tmp_path))
    with pytest.raises(DeviceUnavailable):
        list(coral.outputs(files[1], [{}]))


def test_all_of_it_mapped(coral: EdgeTpu, files: tuple[Path, Path], tmp_path: Path) -> None:
    install_compiler(tmp_path, "CONV_2D      3     Mapped to Edge TPU\n")
    mapped = coral.compile(files[1], tmp_path / "out")
    assert mapped.compiler == "edgetpu_compiler 16.0.384591198"
    assert mapped.operators == {"CONV_2D": 3}
    assert mapped.model_bytes == (tmp_path / "out").stat().st_size
    feed = random_feeds(signature_of(read_model(files[1])), 0)
    assert len(list(coral.outputs(files[1], [feed]))) == 1
    assert coral.provenance == "estimated"


def test_left_to_the_cpu(coral: EdgeTpu, files: tuple[Path, Path], tmp_path: Path) -> None:
    status = "CONV_2D   3   Mapped to Edge TPU\nSOFTMAX   1   Tensor has unsupported rank\n"
    install_compiler(tmp_path, status, left="SOFTMAX")
    with pytest.raises(StageError, match="leaves operators to the CPU: SOFTMAX#1") as refused:
        coral.compile(files[1], tmp_path / "out")
    assert refused.value.hint == "1 SOFTMAX: Tensor has unsupported rank"
    assert not (tmp_path / "out").exists()


def test_compiler_that_fails(coral: EdgeTpu, files: tuple[Path, Path], tmp_path: Path) -> None:
    script = tmp_path / "bin" / "edgetpu_compiler"
    script.write_text("#!/bin/sh\necho 'Internal compiler error. Aborting!' >&2; exit 1\n")
    script.chmod(0o755)
    assert os.access(script, os.X_OK)
    with pytest.raises(StageError, match="Internal compiler error"):
        coral.compile(files[1], tmp_path / "out")


def test_what_nobody_knows(coral: EdgeTpu, files: tuple[Path, Path]) -> None:
    with pytest.raises(Inconclusive, match="hardware tells how long"):
        coral.cost([files[1]], [{}], processes=1, rounds=1)
    with pytest.raises(Inconclusive, match="memory for activations"):
        coral.arena(files[1])
