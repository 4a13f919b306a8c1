"""Generated text as functions of Triton. The one place that imports generated modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from edgefuse.cuda.codegen.source import Source


def load(source: Source, folder: Path) -> Any:
    """The decorated function of a generated kernel; its file is written to ``folder``."""
    path = source.written(folder)
    spec = importlib.util.spec_from_file_location(source.name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, source.name)
