"""One store for the whole session: nothing is converted twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFUSE_CACHE", str(tmp_path_factory.mktemp("store")))
        yield
