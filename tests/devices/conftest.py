from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny float file and the int8 file quantised from it."""
    source = Path(__file__).parents[1] / "tflite" / "tiny.py"
    spec = importlib.util.spec_from_file_location("tiny_for_devices", source)
    assert spec is not None and spec.loader is not None
    tiny = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tiny
    spec.loader.exec_module(tiny)
    folder = tmp_path_factory.mktemp("files")
    float_path, int8_path = folder / "float.tflite", folder / "int8.tflite"
    float_path.write_bytes(tiny.float_file(tiny.weights()))
    int8_path.write_bytes(tiny.int8_file(float_path))
    return float_path, int8_path
