"""One interpreter for all tests of kernels: its start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from edgefuse.cuda.run_interp import Interpreter, interpreter


@pytest.fixture(scope="session")
def triton_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    if find_spec("triton") is None:
        pytest.skip("triton not found: pip install -c constraints.txt -e '.[cuda]'")
    with interpreter(tmp_path_factory.mktemp("interpreter") / "log") as running:
        yield running
