"""Real tools in private environments, made once and kept in the cache that CI keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgefuse.devices.device import Place, prepared_folder
from edgefuse.devices.setup.venv import Environment, make_environment
from edgefuse.errors import FetchError
from edgefuse.target import Target, load_target

TARGETS = Path(__file__).parents[3] / "targets"


@pytest.fixture(scope="session")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Environment], Path]:
    """``set_up(environment)`` is the prepared folder that holds it; skips without a network."""
    kept = prepared_folder() if "EDGEFUSE_CACHE" in os.environ else None
    folder = kept or tmp_path_factory.mktemp("prepared")

    def make(wanted: Environment) -> Path:
        try:
            list(make_environment(wanted, folder))
        except FetchError as error:
            pytest.skip(f"{wanted.name} not found: {error.message}")
        return folder

    return make


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
