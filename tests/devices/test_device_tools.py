"""Busybox and toybox suffice on a device: the whole of a push and a rollback with their programs.

Debian's toybox lacks sh and dd, which Android's has: these are busybox's here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from devices.transports.boards import make_target
from devices.transports.parcels import make_bundle, tiny_model, whole_version
from edgefuse.devices.push.deployment import Deployment, opened_bundle


def programs(tool: str, names: list[str], folder: Path) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tool)


@pytest.mark.parametrize("kind", ["busybox", "toybox"])
def test_push_and_roll_back(
    kind: str,
    require_tool: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in dict.fromkeys(["busybox", kind]):
        path = require_tool(tool)
        words = [path, "--list"] if tool == "busybox" else [path]
        listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        wanted = listed if tool == kind else ["sh", "dd"]
        programs(path, wanted, folder)
    model = tiny_model(tmp_path)
    made = [make_bundle(tmp_path / "b" / f"{n}.tar", model, n) for n in (1, 2)]
    known = {sha256: path for path, sha256 in made}
    root = tmp_path / "board"
    monkeypatch.setenv("PATH", str(folder))
    assert shutil.which("tar") == str(folder / "tar")
    deployment = Deployment(make_target(root, "local", kernels="reference"))
    for path, sha256 in made:
        with opened_bundle(path, sha256) as parcel:
            assert deployment.push(parcel).current == whole_version(root, known) == sha256
    assert deployment.rollback().current == whole_version(root, known) == made[0][1]
    assert set(deployment.faults(deployment.state()).values()) == {""}
    assert deployment.state().free_bytes
