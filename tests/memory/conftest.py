"""tflite-micro in its private environment, made once and kept in the cache that CI keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgefuse.devices.device import prepared_folder
from edgefuse.devices.setup.pins import TFLITE_MICRO
from edgefuse.devices.setup.venv import make_environment
from edgefuse.errors import FetchError


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """``micro()`` is the prepared folder that holds it; skips without a network."""

    def make() -> Path:
        kept = "EDGEFUSE_CACHE" in os.environ
        folder = prepared_folder() if kept else tmp_path_factory.mktemp("prepared")
        try:
            list(make_environment(TFLITE_MICRO, folder))
        except FetchError as error:
            pytest.skip(f"{TFLITE_MICRO.name} not found: {error.message}")
        return folder

    return make
