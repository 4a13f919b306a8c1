"""Opens one .tflite file and runs it once: ``python -m`` with this module's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgefuse.child import serve


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Unpack ``job["file"]`` and run it on zeros, in its own process."""
    import numpy as np

    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import read_model
    from edgefuse.tflite.runtime import open_model

    path = Path(job["file"])
    Edit(read_model(path).data)
    model = open_model(path, kernels="builtin", threads=1)
    model.run({spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.signature.inputs})
    return {}


if __name__ == "__main__":
    serve(run)
