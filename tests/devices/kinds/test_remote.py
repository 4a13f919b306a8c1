"""A board behind ssh as a device of the gates: this machine, with Python in place of the runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from devices.transports.boards import Sshd, make_target
from devices.transports.conftest import sshd
from edgefuse.devices.device import DEVICES, Place
from edgefuse.devices.kinds.remote import Remote
from edgefuse.devices.program import program_of
from edgefuse.errors import DeviceUnavailable
from edgefuse.tflite.runtime import open_model

__all__ = ["sshd"]


@pytest.fixture
def remote(sshd: Sshd, tmp_path: Path) -> Iterator[Remote]:
    target = sshd.target(tmp_path / "board").model_copy(update={"kernels": "reference"})
    assert DEVICES.all()[target.device].open is Remote
    (tmp_path / "work").mkdir()
    yield Remote(target, Place(tmp_path / "work", tmp_path / "log", tmp_path / "prepared"))


def test_outputs_times_and_memory(remote: Remote, files: tuple[Path, Path], tmp_path: Path) -> None:
    float_file, int8_file = files
    here = open_model(int8_file, kernels="reference")
    (spec,) = here.signature.inputs
    random = np.random.default_rng(0)
    feeds = [{spec.name: random.integers(-128, 128, spec.shape).astype(spec.dtype)} for _ in "123"]
    for feed, found in zip(feeds, remote.outputs(int8_file, feeds), strict=True):
        for name, wanted in here.run(feed).items():
            assert found[name].tobytes() == wanted.tobytes()
    float_feed = {
        one.name: np.zeros(one.shape, np.float32) for one in open_model(float_file).signature.inputs
    }
    cost = remote.cost([float_file, int8_file], [float_feed, feeds[0]], processes=2, rounds=3)
    assert (cost.unit, cost.provenance) == ("ms", "measured")
    assert [[len(times) for times in row] for row in cost.rows] == [[3, 3], [3, 3]]
    assert all(ms > 0 for row in cost.rows for times in row for ms in times)
    assert cost.conditions["governor"] and cost.conditions["cpu"] in remote.describe()
    assert remote.describe().startswith("ai-edge-litert ")
    arena, provenance = remote.arena(int8_file)
    assert provenance == "measured" and arena.measured_bytes >= arena.lower_bound_bytes > 0
    assert not (tmp_path / "board/.lock").is_symlink()


def test_a_board_that_is_not_prepared(tmp_path: Path) -> None:
    fields = {"ssh": {"host": "h"}, "python": None, "architecture": "aarch64"}
    target = make_target(tmp_path, "ssh", **fields)
    needs = DEVICES.all()["remote"].needs
    assert needs is not None and not any(needs(target, tmp_path).values())
    with pytest.raises(DeviceUnavailable) as raised:
        program_of(target, tmp_path)
    assert "edgefuse setup board-ssh" in str(raised.value)
