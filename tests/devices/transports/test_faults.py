"""A small share of the faults of tests/benchmarks/push_faults.py, and what follows a push."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.transports.adbd import Adbd
from devices.transports.boards import Proxy, Sshd, adb_target
from devices.transports.faults import Board, Faults, quick_leases
from devices.transports.parcels import whole_version
from edgefuse.devices.push.deployment import Deployment

KINDS = ("cut and gone", "client killed", "unpacked file corrupted")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "in stalled"


@pytest.fixture
def ssh_board(sshd: Sshd, root: Path, bundles: dict[str, Path]) -> Iterator[Board]:
    proxy = Proxy(sshd.port)
    target = sshd.target(root, proxy.port).model_copy(update={"kernels": "reference"})
    yield Board(root, target, proxy, bundles, sshd.kill_shells, False)
    proxy.close()


@pytest.fixture
def adb_board(
    adb: None, adbds: dict[bool, Adbd], root: Path, bundles: dict[str, Path]
) -> Iterator[Board]:
    proxy = Proxy(adbds[True].port)
    target = adb_target(root, proxy.port, kernels="reference")
    yield Board(root, target, proxy, bundles, adbds[True].kill_shells, False)
    proxy.close()


@pytest.mark.parametrize("over", ["ssh", "adb"])
def test_faults(over: str, request: pytest.FixtureRequest) -> None:
    board: Board = request.getfixturevalue(f"{over}_board")
    with quick_leases(1.0):
        faults = Faults(board, 5)
        faults.prepare()
        for kind in KINDS:
            outcome = faults.run(kind)
            assert not outcome.trouble, outcome
        assert not faults.recover()
    deployment = Deployment(board.target)
    state = deployment.state()
    assert deployment.faults(state)[state.current] == ""
    assert deployment.rollback().current == whole_version(board.root, dict(board.bundles))
    shutil.rmtree(board.root)
