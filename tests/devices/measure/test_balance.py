"""The balance of a target: as its file says, or measured in a process of its own and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from edgefuse.devices.measure import balance, balance_worker
from edgefuse.errors import ToolError
from edgefuse.graph.chain import chain_of_tiny_operators
from edgefuse.target import Target

FIGURES = {"launch_s": 2e-6, "bytes_per_s": 1e10, "flops_per_s": 5e10, "buffer_bytes": 1 << 27}
FIGURES["cpu_share"] = 0.99


def target(**more: Any) -> Target:
    fields = {"name": "b", "summary": "s", "transport": "local", "runtime": "litert", **more}
    return Target.model_validate(fields)


def figure(value: float) -> dict[str, Any]:
    return {"value": value, "source": "data sheet"}


GIVEN = {"launch_us": figure(2), "bytes_per_s": figure(4.3e12), "flops_per_s": figure(790e12)}


def test_as_the_file_says(tmp_path: Path) -> None:
    whole = {**GIVEN, "vector_flops_per_s": figure(67e12), "parallel_tiles": figure(132)}
    found = balance.balance_of(target(balance={**whole, "int8_ops_per_s": figure(1e15)}), tmp_path)
    assert found is not None
    assert found.balance.launch_s == pytest.approx(2e-6) and found.balance.parallel_tiles == 132
    assert found.balance.flops_per_byte == pytest.approx(790 / 4.3)
    assert found.balance.vector_flops_per_s == 67e12 and found.int8_ops_per_s == 1e15
    assert set(found.sources) == {*whole, "int8_ops_per_s"}
    assert found.to_json()["sources"]["launch_us"] == "data sheet"
    bare = balance.balance_of(target(balance=GIVEN), tmp_path)
    assert bare is not None and bare.balance.parallel_tiles == 1
    assert bare.balance.vector_flops_per_s is None and bare.int8_ops_per_s is None


def test_none(tmp_path: Path) -> None:
    assert balance.balance_of(target(), tmp_path) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "guessed",
        {},
        {**GIVEN, "flops_per_s": {"value": 1e9}},
        {**GIVEN, "flops_per_s": {"value": 1e9, "source": ""}},
        {**GIVEN, "flops_per_s": {"value": 0, "source": "data sheet"}},
        {k: v for k, v in GIVEN.items() if k != "bytes_per_s"},
    ],
)
def test_no_figure_without_its_source(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        target(balance=wrong)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "store"))
    return tmp_path / "store"


def test_measured_once_for_a_machine(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measure(threads: int, log: Path) -> dict[str, float]:
        asked.append(threads)
        return dict(FIGURES)

    monkeypatch.setattr(balance, "_measure", measure)
    host = target(balance="measured", threads=2)
    first, second = (balance.balance_of(host, tmp_path / "log") for _ in range(2))
    assert first == second and asked == [2]
    assert first is not None and first.balance.parallel_tiles == 2 and not first.warning
    assert "copies of 128 MiB" in first.sources["bytes_per_s"]
    balance.balance_of(host, tmp_path / "log", anew=True)
    balance.balance_of(target(balance="measured", threads=1), tmp_path / "log")
    monkeypatch.setattr(balance, "fingerprint", lambda _: {"sha256": "another"})
    balance.balance_of(host, tmp_path / "log")
    assert asked == [2, 2, 1, 2]
    files = sorted((store / "balances").iterdir())
    assert len(files) == 3
    for file in files:
        file.write_text(file.read_text().replace("5e", "6e").replace("50000000000", "6"))
    balance.balance_of(host, tmp_path / "log")
    assert asked == [2, 2, 1, 2, 2] and json.loads(files[0].read_text())


def test_this_machine(store: Path, tmp_path: Path) -> None:
    found = balance.measured(1, tmp_path / "log")
    # From a slow board under emulation to the fastest core there is.
    assert 1e-8 < found.balance.launch_s < 1e-3
    assert 1e7 < found.balance.bytes_per_s < 1e12
    assert 1e7 < found.balance.flops_per_s < 1e13
    kept = list((store / "balances").glob("*.json"))
    assert len(kept) == (0 if found.warning else 1)


def test_a_busy_machine_is_told_and_not_kept(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "_measure", lambda *_: {**FIGURES, "cpu_share": 0.45})
    found = balance.measured(1, tmp_path / "log")
    assert "with 45% of a CPU" in found.warning and "--measure" in found.warning
    assert not (store / "balances").exists()
    monkeypatch.setattr(balance, "_measure", lambda *_: dict(FIGURES))
    assert balance.measured(1, tmp_path / "log").warning == ""
    assert len(list((store / "balances").iterdir())) == 1


def test_a_measurement_of_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> Any:
            return lambda job, timeout_s: {**FIGURES, "launch_s": 0.0}

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(balance, "started", Started)
    with pytest.raises(ToolError, match="came out as nothing"):
        balance._measure(1, tmp_path / "log")


def test_buffers_are_larger_than_the_caches(tmp_path: Path) -> None:
    for index, size in enumerate(["32K", "1024K", "36M", "odd", ""]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert balance_worker.largest_cache_bytes(tmp_path) == 36 << 20
    assert balance_worker.largest_cache_bytes(tmp_path / "nowhere") == 0
    assert balance_worker.buffer_bytes(36 << 20) == 144 << 20
    assert balance_worker.buffer_bytes(0) == 64 << 20
    assert balance_worker.buffer_bytes(1 << 30) == 512 << 20


def test_the_best_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 9, 10, 13, 20, 25])
    monkeypatch.setattr(balance_worker.time, "perf_counter_ns", lambda: next(clock))
    assert balance_worker.best_s(lambda: None, 3) == 3e-9
    monkeypatch.setattr(balance_worker.time, "perf_counter_ns", lambda: 7)
    with pytest.raises(ToolError, match="clock"):
        balance_worker.best_s(lambda: None, 2)


def test_the_chain_is_as_long_as_asked() -> None:
    import numpy as np
    import onnx

    from edgefuse.graph.verify import Runner

    data = chain_of_tiny_operators(5)
    assert [n.op_type for n in onnx.load_from_string(data).graph.node] == ["Neg"] * 5
    x = np.arange(16, dtype=np.float32)
    np.testing.assert_array_equal(Runner(data)({"x": x})["y"], -x)
