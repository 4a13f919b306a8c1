from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgefuse.devices.device import Place
from edgefuse.devices.kinds.ethos_u import NPU, EthosU, Layer, operator_cycles
from edgefuse.devices.measure.bench_worker import random_feeds
from edgefuse.devices.setup.pins import VELA
from edgefuse.errors import DeviceUnavailable, Inconclusive, StageError
from edgefuse.target import Target
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import read_model, signature_of
from edgefuse.tflite.runtime import open_model

Made = Callable[..., Path]


@pytest.fixture
def npu(set_up: Made, place: Callable[[Path], Place], target: Callable[[str], Target]) -> EthosU:
    return EthosU(target("ethos-u55-128"), place(set_up(VELA)))


def test_compiled_for_the_npu(npu: EthosU, files: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = tmp_path / "one.tflite", tmp_path / "two.tflite"
    compiled = npu.compile(files[1], first)
    assert compiled.left_to_cpu == () and compiled.npu_operators == 1
    assert [op.custom_code for op in read_model(first).operators] == [NPU]
    assert compiled.model_bytes == first.stat().st_size
    assert 0 < compiled.npu_cycles <= compiled.cycles
    assert compiled.sram_bytes == compiled.arena_bytes > 0 and compiled.flash_bytes > 0
    facts = compiled.facts()
    assert facts["provenance"] == "estimated"
    assert (facts["system_config"], facts["memory_mode"]) == (
        "Ethos_U55_High_End_Embedded",
        "Shared_Sram",
    )
    assert npu.compile(files[1], second) == compiled
    assert first.read_bytes() == second.read_bytes()


def test_cost_and_arena(npu: EthosU, files: tuple[Path, Path]) -> None:
    cost = npu.cost([files[1], files[1]], [{}, {}], processes=5, rounds=9)
    assert (cost.unit, cost.provenance) == ("cycles", "estimated")
    assert cost.rows[0] == cost.rows[1] and len(cost.rows[0]) == len(cost.rows[0][0]) == 1
    assert len(cost.operators[0]) == len(read_model(files[1]).operators)
    assert sum(cost.operators[0]) == pytest.approx(cost.rows[0][0][0], rel=0.02)
    arena, provenance = npu.arena(files[1])
    assert provenance == "estimated"
    assert arena.measured_bytes == cost.conditions["sram_bytes"][0]


def test_outputs_are_the_reference_kernels(npu: EthosU, files: tuple[Path, Path]) -> None:
    feed = random_feeds(signature_of(read_model(files[1])), 0)
    (found,) = npu.outputs(files[1], [feed])
    wanted = open_model(files[1], kernels="reference").run(feed)
    assert all((found[name] == wanted[name]).all() for name in wanted)
    assert npu.provenance == "estimated"


def test_float_model_is_refused(npu: EthosU, files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(StageError, match="integers only; float operators: CONV_2D#0"):
        npu.compile(files[0], tmp_path / "out")
    with pytest.raises(StageError, match="integers only"):
        npu.cost([files[0]], [{}], processes=1, rounds=1)


def test_size_left_open_is_refused(npu: EthosU, files: tuple[Path, Path], tmp_path: Path) -> None:
    edit = Edit(files[1].read_bytes())
    edit.graph.tensors[int(edit.graph.inputs[0])].shapeSignature = [-1, 8, 8, 3]
    path = tmp_path / "open.tflite"
    path.write_bytes(edit.packed())
    with pytest.raises(StageError, match="needs every size in the file"):
        npu.compile(path, tmp_path / "out")


def test_operator_left_to_the_cpu_is_named(
    npu: EthosU, files: tuple[Path, Path], tmp_path: Path
) -> None:
    b = sys.modules["tiny_for_devices"].Builder()
    quantised = {"dtype": "int8", "scales": [0.1]}
    first, second, last = (b.tensor(name, (1, 4, 4, 8), **quantised) for name in "abc")
    b.op("ADD", (first, first), (second,))
    b.op("FLOOR", (second,), (last,))
    path = tmp_path / "partly.tflite"
    path.write_bytes(b.finish({"x": first}, {"y": last}))
    compiled = npu.compile(path, tmp_path / "out")
    (left,) = compiled.left_to_cpu
    assert left.operator.startswith("FLOOR#") and left.tensor == "c" and left.reason
    with pytest.raises(Inconclusive, match=r"1 operators are left to the CPU.*FLOOR"):
        npu.cost([path], [{}], processes=1, rounds=1)
    with pytest.raises(Inconclusive, match="FLOOR"):
        npu.arena(path)


def test_not_set_up(
    tmp_path: Path,
    place: Callable[[Path], Place],
    target: Callable[[str], Target],
    files: tuple[Path, Path],
) -> None:
    npu = EthosU(target("ethos-u85-256"), place(tmp_path / "empty"))
    with pytest.raises(DeviceUnavailable, match="not set up") as refused:
        npu.compile(files[1], tmp_path / "out")
    assert refused.value.hint == "edgefuse setup ethos-u85-256"


def test_cycles_of_inserted_steps_belong_to_the_next_operator(files: tuple[Path, Path]) -> None:
    source = read_model(files[1])
    names = [source.tensors[op.outputs[0]].name for op in source.operators]
    layers = [
        Layer("Conv2D", "Conv2D", "NPU", 10, 1, names[0]),
        Layer("Mean", "DepthwiseConv2D", "NPU", 3, 1, "inserted"),
        Layer("Mean", "Mul", "NPU", 4, 1, names[2]),
        Layer("Copy", "Copy", "NPU", 1, 0, "at the end"),
    ]
    assert operator_cycles(source, layers) == (10.0, 0.0, 8.0, *[0.0] * (len(names) - 3))
