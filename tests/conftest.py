"""What every test may use: external tools, and a count of what was skipped."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import forked_converters

from edgefuse.devices.device import prepared_folder
from edgefuse.devices.setup.venv import Environment, make_environment
from edgefuse.errors import FetchError

PREPARED = prepared_folder()  # Now: later a test may have set another EDGEFUSE_CACHE.
KEPT = "EDGEFUSE_CACHE" in os.environ

# A shell's background jobs ignore Ctrl-C, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

_DRAWN: dict[tuple[str, str], Any] = {}


@pytest.fixture(autouse=True)
def draws_the_same_whichever_test_ran_before(request: pytest.FixtureRequest) -> None:
    """A module's random generators begin every test as the module made them."""
    for name, held in vars(request.module).items():
        if isinstance(held, np.random.Generator):
            first = _DRAWN.setdefault((request.module.__name__, name), held.bit_generator.state)
            held.bit_generator.state = first


@pytest.fixture(scope="session", autouse=True)
def converters() -> Iterator[None]:
    """What a test converts in its own process takes no seconds to load TensorFlow."""
    with forked_converters():
        yield


@pytest.fixture(scope="session")
def prepared() -> Path:
    """Where ``edgefuse setup`` put what this session found prepared."""
    return PREPARED


@pytest.fixture(scope="session")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Environment], Path]:
    """``set_up(environment)`` is the prepared folder that holds a private environment, made once
    and kept in the cache that CI keeps; skips without a network.
    """
    folder = PREPARED if KEPT else tmp_path_factory.mktemp("prepared")

    def make(wanted: Environment) -> Path:
        try:
            list(make_environment(wanted, folder))
        except FetchError as error:
            pytest.skip(f"{wanted.name} not found: {error.message}")
        return folder

    return make


@pytest.fixture(scope="module")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One store for a module, and no keys but the test's."""
    from edgefuse.bundle import signing

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFUSE_CACHE", str(tmp_path_factory.mktemp("store")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv(signing.TRUSTED, raising=False)
        yield


@pytest.fixture(scope="session")
def require_tool() -> Callable[..., str]:
    """``require_tool(name, *candidates)`` is the path of a program.

    ``EDGEFUSE_<NAME>`` in the environment wins, else the first candidate on PATH (without
    candidates: ``name`` itself). Without the program the test is skipped.
    """

    def find(name: str, *candidates: str) -> str:
        variable = f"EDGEFUSE_{name.upper().replace('-', '_')}"
        given = os.environ.get(variable)
        for candidate in (given,) if given else candidates or (name,):
            path = shutil.which(candidate)
            if path:
                return path
        pytest.skip(f"{name} not found: install it, or set {variable} to its path")

    return find


@pytest.fixture(scope="session")
def require_data() -> Callable[[str], Path]:
    """``require_data(path)`` is a file or folder below ``EDGEFUSE_DATA``; skips without it."""

    def find(relative: str) -> Path:
        root = os.environ.get("EDGEFUSE_DATA")
        if not root or not (Path(root) / relative).exists():
            pytest.skip(f"EDGEFUSE_DATA/{relative} not found")
        return Path(root) / relative

    return find


#: What takes longest starts first: else one process works alone at the end.
LONGEST = (
    "test_recipes.py", "zoo/test_account.py", "commands/test_compare.py",
    "quant/blame/test_blame.py",
    "commands/test_memory.py", "test_kill.py", "graph/test_random_graphs.py", "recipe/test_cuda.py",
    "graph/test_kinds_of_graphs.py", "cases/test_contract.py", "test_bad_inputs.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which ``--dist loadfile --no-loadscope-reorder`` hands out the files."""
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under ``EDGEFUSE_STRICT=1`` nothing is skipped: what is missing is a failure."""
    report = yield
    strict = os.environ.get("EDGEFUSE_STRICT") == "1"
    if strict and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"EDGEFUSE_STRICT=1: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = len(terminalreporter.getreports("skipped"))
    terminalreporter.write_line(f"skipped: {skipped} {'test' if skipped == 1 else 'tests'}")
