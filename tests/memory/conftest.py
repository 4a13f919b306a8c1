"""tflite-micro in its private environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgefuse.devices.setup.pins import TFLITE_MICRO
from edgefuse.devices.setup.venv import Environment


@pytest.fixture
def micro(set_up: Callable[[Environment], Path]) -> Callable[[], Path]:
    """``micro()`` is the prepared folder that holds it; skips without a network."""
    return lambda: set_up(TFLITE_MICRO)
