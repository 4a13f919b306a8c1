"""A probe's child that a depthwise convolution ends, as a runtime's failed assertion would."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from edgefuse.child import serve_all
from edgefuse.tflite.read import read_model


def run(job: dict[str, Any]) -> dict[str, Any]:
    if any(op.code == "DEPTHWISE_CONV_2D" for op in read_model(Path(job["file"])).operators):
        os.abort()
    return {}


if __name__ == "__main__":
    serve_all(run)
