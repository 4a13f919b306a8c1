"""Loads and runs small files one after another: ``python -m`` with this module's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgefuse.child import serve_all


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Load ``job["file"]`` and run it once on seeded values."""
    import numpy as np

    from edgefuse.tflite.runtime import open_model

    model = open_model(Path(job["file"]), job["runtime"])
    random = np.random.default_rng(0)
    feeds = {}
    for spec in model.signature.inputs:
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            feeds[spec.name] = random.standard_normal(spec.shape).astype(dtype)
        else:
            feeds[spec.name] = random.integers(0, 2, spec.shape).astype(dtype)
    model.run(feeds)
    return {}


if __name__ == "__main__":
    serve_all(run)
