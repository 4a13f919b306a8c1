"""What of running on a GPU can be seen without one: it says that there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda.kernels.cases import FLOATS
from cuda.kernels.single import case
from edgefuse.cuda.run_gpu import Captured, require_gpu
from edgefuse.errors import DeviceUnavailable

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_no_device_is_said_so(tmp_path: Path) -> None:
    built = case(FLOATS[0], "fp16")
    with pytest.raises(DeviceUnavailable, match="no device: torch finds no NVIDIA GPU"):
        Captured(built.program, built.weights, tmp_path)


def test_a_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a T4")
    with pytest.raises(DeviceUnavailable, match="a T4 is sm_75: code is made from sm_80 on"):
        require_gpu()
