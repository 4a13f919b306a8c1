"""Targets that run no .tflite file are listed among the kernel paths, and not played."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefuse.devices.device import Place
from edgefuse.devices.measure.kernel_paths import kernel_paths
from edgefuse.target import load_target


@pytest.mark.parametrize("name", ["cuda-interp", "cuda-local", "cuda-orin"])
def test_a_gpu_program_is_no_kernel_path(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "log", tmp_path)
    path = kernel_paths([load_target(name)], place, [name])[-1]
    assert path.name == name and path.player is None
    assert "not the .tflite file" in path.reason
