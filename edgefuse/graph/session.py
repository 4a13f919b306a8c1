"""Run an ONNX file with onnxruntime, its own optimisations off: what the file says, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import SourceError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def run_onnx(path: Path, feeds: Iterable[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Outputs by name for each feed.

    Raises:
        SourceError: onnxruntime cannot load or run the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, dict(feed)))) for feed in feeds]
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise SourceError(
            f"onnxruntime cannot run it: {text}",
            where=path.name,
            hint="an unsupported operator or shape: change the model or the opset",
        ) from error
