"""A torch module as the export stage writes it, without samples to compare."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefuse.graph.clean import clean_export


def export(
    module: Any, shapes: Mapping[str, tuple[int, ...]], path: Path, *, name: str, opset: int = 20
) -> None:
    """Write the clean ONNX file of a module whose inputs are zeros of these shapes."""
    import torch

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = Path(folder) / "raw.onnx"
        torch.onnx.export(
            module,
            tuple(torch.zeros(shape) for shape in shapes.values()),
            dynamo=True,
            optimize=False,
            input_names=list(shapes),
            opset_version=opset,
            verbose=False,
        ).save(str(raw))
        clean_export(raw, path, name)
