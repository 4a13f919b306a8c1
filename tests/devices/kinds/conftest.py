"""Targets, and places where devices work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgefuse.devices.device import Place
from edgefuse.target import Target, load_target

TARGETS = Path(__file__).parents[3] / "targets"


@pytest.fixture
def place(tmp_path: Path) -> Callable[[Path], Place]:
    """``place(prepared)``, with a work folder and a log of this test's own."""

    def at(prepared: Path) -> Place:
        (tmp_path / "work").mkdir()
        return Place(tmp_path / "work", tmp_path / "log", prepared)

    return at


@pytest.fixture
def target() -> Callable[[str], Target]:
    return lambda name: load_target(str(TARGETS / f"{name}.yaml"))
