"""Fine-tuning within a memory budget trains the same weights, in less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from edgefuse.errors import GateFailed, UsageError
from edgefuse.quant.weights import qat
from edgefuse.quant.weights.qat import Tuned, fine_tune
from edgefuse.recipe.quantize import Qat
from edgefuse.tflite.read import read_model
from quant.weights.networks import Net, feeds, twin

PLAIN = Qat(steps=6, learning_rate=2e-3, batch=4)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qat, "_THREADS", 1)


def residuals(blocks: int = 5) -> bytes:
    """Inverted residuals in a row, and a head."""
    net = Net(3)
    x = net.tensor("input", (1, 16, 16, 3))
    y = net.conv("stem", x, (1, 16, 16, 6), 3, 1, "RELU6")
    for k in range(blocks):
        wide = net.conv(f"wide{k}", y, (1, 16, 16, 24), 1, 1, "RELU6")
        deep = net.depthwise(f"deep{k}", wide, (1, 16, 16, 24))
        narrow = net.conv(f"narrow{k}", deep, (1, 16, 16, 6), activation="NONE")
        total = net.tensor(f"sum{k}", (1, 16, 16, 6))
        net.op("ADD", (y, narrow), (total,))
        y = total
    return net.finish({"x": x}, {"y": net.dense("scores", net.mean("pooled", y), 10)})


def tune(folder: Path, data: bytes, options: Qat, name: str) -> Tuned:
    source = folder / "float.tflite"
    source.write_bytes(data)
    int8 = twin(source, folder / "int8.tflite", feeds(source, 8, seed=1))
    samples = feeds(source, 16, seed=2)
    return fine_tune(
        source, source, int8, samples, 16, None, folder / name, options, seed=0,
        work=folder / "work",
    )  # fmt: skip


def test_the_weights_are_the_same_and_the_peak_is_lower(tmp_path: Path) -> None:
    plain = tune(tmp_path, residuals(), PLAIN, "plain.tflite")
    wanted = PLAIN.model_copy(update={"memory_budget": "50%"})
    tuned = tune(tmp_path, residuals(), wanted, "tuned.tflite")
    assert plain.memory is None and "memory" not in plain.to_json()
    memory = tuned.to_json()["memory"]
    assert memory["peak_bytes"] <= memory["budget_bytes"] == memory["plain_peak_bytes"] // 2
    assert memory["pieces_run_twice"] > 0
    assert (plain.best_step, plain.last_loss) == (tuned.best_step, tuned.last_loss)
    one, other = (read_model(tmp_path / f"{name}.tflite") for name in ("plain", "tuned"))
    moved = 0
    for a, b in zip(one.tensors, other.tensors):
        if a.is_constant:
            np.testing.assert_array_equal(one.constant(a), other.constant(b))
            start = read_model(tmp_path / "float.tflite")
            moved += not np.array_equal(start.constant(start.tensors[a.index]), one.constant(a))
    assert moved > 10


def test_a_budget_that_nothing_keeps_is_refused(tmp_path: Path) -> None:
    wanted = PLAIN.model_copy(update={"memory_budget": 4096})
    with pytest.raises(GateFailed, match="the least reachable is") as caught:
        tune(tmp_path, residuals(2), wanted, "tuned.tflite")
    assert caught.value.where == "quantize.qat.memory_budget"
    assert not (tmp_path / "work").exists()


def test_a_network_that_is_no_chain_is_refused(tmp_path: Path) -> None:
    net = Net(3)
    x = net.tensor("input", (1, 8, 8, 3))
    left = net.conv("left", x, (1, 8, 8, 3))
    right = net.conv("right", x, (1, 8, 8, 3))
    total = net.tensor("sum", (1, 8, 8, 3))
    net.op("ADD", (left, right), (total,))
    wanted = PLAIN.model_copy(update={"memory_budget": "50%"})
    with pytest.raises(UsageError, match="no chain of blocks found"):
        tune(tmp_path, net.finish({"x": x}, {"y": total}), wanted, "tuned.tflite")


@pytest.mark.parametrize(
    ("value", "budget"), [("40%", 0.4), ("2.5 %", 0.025), (1000, 1000), ("3 MiB", 3 << 20)]
)
def test_shares_and_bytes(value: str | int, budget: float) -> None:
    assert Qat(memory_budget=value).budget == budget


@pytest.mark.parametrize("value", ["4 barrels", "0%", "101%", "-5%", 0, -1, 0.4, True])
def test_what_is_no_budget(value: object) -> None:
    with pytest.raises(ValidationError):
        Qat.model_validate({"memory_budget": value})
