"""Files from elsewhere that end the runtime's process, or cannot be unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quant.weights.networks import classifier

from edgefuse.errors import EdgefuseError, SourceError, ToolError
from edgefuse.tflite import intact
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.intact import require_intact
from edgefuse.tflite.read import parse_model


def _damaged(data: bytes) -> bytes:
    """A file that reads well, and does not unpack: found by flipping bytes."""
    random = np.random.default_rng(0)
    for _ in range(2000):
        changed = bytearray(data)
        for place in random.integers(8, len(data), 4):
            changed[place] = int(random.integers(0, 256))
        try:
            parse_model(bytes(changed))
        except EdgefuseError:
            continue
        try:
            Edit(bytes(changed))
        except SourceError:
            return bytes(changed)
    raise AssertionError("every damage was seen")


def test_a_sound_file_passes_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    path, log = tmp_path / "net.tflite", tmp_path / "log"
    path.write_bytes(classifier())
    require_intact(path, log)
    path.write_bytes(_damaged(path.read_bytes()))
    with pytest.raises(SourceError, match=r"damaged \.tflite file") as caught:
        require_intact(path, log)
    assert caught.value.where == str(path) and "make the file again" in caught.value.hint


def test_a_file_that_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(module: str, *_: Any) -> None:
        raise ToolError(f"{module} ended with code -11: ", where="log")

    monkeypatch.setattr(intact, "call", ended)
    with pytest.raises(SourceError, match=r"not survive this file: .*code -11") as caught:
        require_intact(tmp_path / "net.tflite", tmp_path / "log")
    assert caught.value.where.endswith("net.tflite")
