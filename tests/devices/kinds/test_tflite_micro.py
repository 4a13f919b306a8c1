from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgefuse.devices.device import Place
from edgefuse.devices.kinds.tflite_micro import TfliteMicro, least_bytes
from edgefuse.devices.measure.bench_worker import random_feeds
from edgefuse.devices.setup.pins import TFLITE_MICRO
from edgefuse.errors import DeviceUnavailable, Inconclusive, StageError
from edgefuse.memory.arenas.tflite_micro import predicted_head
from edgefuse.target import Target
from edgefuse.tflite.read import read_model, signature_of
from edgefuse.tflite.runtime import open_model

Made = Callable[..., Path]


@pytest.fixture
def board(
    set_up: Made, place: Callable[[Path], Place], target: Callable[[str], Target]
) -> TfliteMicro:
    return TfliteMicro(target("tflm"), place(set_up(TFLITE_MICRO)))


def test_outputs_are_the_reference_kernels(board: TfliteMicro, files: tuple[Path, Path]) -> None:
    for path in files:
        signature = signature_of(read_model(path))
        feeds = [random_feeds(signature, seed) for seed in (0, 1, 0)]
        found = list(board.outputs(path, feeds))
        reference = open_model(path, kernels="reference")
        assert len(found) == 3
        for feed, outputs in zip(feeds, found):
            wanted = reference.run(feed)
            assert outputs.keys() == wanted.keys()
            if path == files[1]:
                assert all((outputs[name] == wanted[name]).all() for name in wanted)
        # The arena overwrites the input: a feed that was set once would not give this.
        assert all((found[0][name] == found[2][name]).all() for name in found[0])
    assert board.provenance == "measured"
    assert board.describe().startswith("tflite-micro 0.dev")


def test_arena_is_tried(board: TfliteMicro, files: tuple[Path, Path]) -> None:
    arena, provenance = board.arena(files[1])
    assert provenance == "measured"
    assert arena.lower_bound_bytes == least_bytes(read_model(files[1]))
    assert arena.lower_bound_bytes < arena.measured_bytes < 8 * arena.lower_bound_bytes
    assert arena.head_bytes == predicted_head(read_model(files[1])).arena_bytes
    assert board.runs_in(files[1], arena.measured_bytes)
    assert not board.runs_in(files[1], arena.measured_bytes * 99 // 100)
    assert board.arena(files[1])[0].measured_bytes == arena.measured_bytes


def test_operator_without_a_kernel_is_named(
    board: TfliteMicro, files: tuple[Path, Path], tmp_path: Path
) -> None:
    b = sys.modules["tiny_for_devices"].Builder()
    first, second, last = (b.tensor(name, (1, 4)) for name in "abc")
    b.op("ABS", (first,), (second,))
    b.op("SIGN", (second,), (last,))
    sign = tmp_path / "sign.tflite"
    sign.write_bytes(b.finish({"x": first}, {"y": last}))
    with pytest.raises(StageError, match="no kernel for SIGN#1"):
        list(board.outputs(sign, [{"x": np.zeros((1, 4), np.float32)}]))
    b.graph.operators.pop()
    b.op("CUSTOM", (second,), (last,), custom="Mystery")
    path = tmp_path / "custom.tflite"
    path.write_bytes(b.finish({"x": first}, {"y": last}))
    with pytest.raises(StageError, match="no kernel for Mystery#1"):
        list(board.outputs(path, [{"x": np.zeros((1, 4), np.float32)}]))


def test_cost_is_not_invented(board: TfliteMicro, files: tuple[Path, Path]) -> None:
    with pytest.raises(Inconclusive, match="nothing here tells how long"):
        board.cost([files[1]], [{}], processes=1, rounds=1)


def test_not_set_up(
    tmp_path: Path,
    place: Callable[[Path], Place],
    target: Callable[[str], Target],
    files: tuple[Path, Path],
) -> None:
    board = TfliteMicro(target("tflm"), place(tmp_path / "empty"))
    with pytest.raises(DeviceUnavailable, match="not set up") as refused:
        board.arena(files[1])
    assert refused.value.hint == "edgefuse setup tflm"


def test_least_bytes_by_hand(files: tuple[Path, Path]) -> None:
    b = sys.modules["tiny_for_devices"].Builder()
    held = [b.tensor(f"t{k}", (1, 100)) for k in range(4)]
    for k in range(3):
        b.op("ABS", (held[k],), (held[k + 1],))
    from edgefuse.tflite.read import parse_model

    # 400 bytes each; the input dies after its only reader.
    assert least_bytes(parse_model(b.finish({"x": held[0]}, {"y": held[3]}))) == 800
