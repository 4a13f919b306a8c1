from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from .tiny import Weights, float_file, int8_file, weights


@dataclass(frozen=True)
class Pair:
    float_path: Path
    int8_path: Path
    held: Weights


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A float file and the int8 file quantised from it."""
    folder = tmp_path_factory.mktemp("tiny")
    held = weights()
    float_path, int8_path = folder / "float.tflite", folder / "int8.tflite"
    float_path.write_bytes(float_file(held))
    int8_path.write_bytes(int8_file(float_path))
    return Pair(float_path, int8_path, held)
