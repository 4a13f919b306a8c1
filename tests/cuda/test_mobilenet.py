"""MobileNetV2 at its full size: launches, bytes and arena against their floors, in fp16."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from zoo.exported import export as export_zoo
from zoo.models import build, by_name

from edgefuse.cuda.lower.choose import choose, every_depthwise
from edgefuse.cuda.lower.graph import lower
from edgefuse.graph.cost import Balance, kernels, model_costs, total
from edgefuse.graph.normalise import load_proto
from edgefuse.graph.shapes import at_shapes, fold_load_time
from edgefuse.memory.arena import peak
from edgefuse.memory.liveness.onnx import live_buffers

from .nets import fused

BATCH = 64
SHAPES = {"image": (BATCH, 3, 224, 224)}
H200 = Balance(2e-6, 4.3e12, 790e12, vector_flops_per_s=67e12, parallel_tiles=132)


@pytest.fixture(scope="module")
def export() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "net.onnx"
        net = build(by_name("mobilenet_v2"), small=False)
        export_zoo(net, {"image": (1, 3, 224, 224)}, clean, name="net")
        return load_proto(clean)


@pytest.fixture(scope="module")
def net(export: Any) -> Any:
    return fused(export)


@pytest.fixture(scope="module")
def unfused(export: Any) -> Any:
    model = at_shapes(export, SHAPES).model
    fold_load_time(model)
    return model


def test_launches_bytes_and_arena(net: Any, unfused: Any) -> None:
    unfused_peak_bytes = peak(live_buffers(unfused))[0] // 2  # float16 for float32
    assert len(kernels(unfused)) == 151
    found = []
    # Megabytes an image of each grouping: activations once written, once read, weights once.
    for merge, most_launches, floor_megabytes in ((False, 54, 27.5), (True, 37, 18.2)):
        model = at_shapes(net, SHAPES).model
        chosen = every_depthwise(model) if merge else None
        program, _ = lower(model, "fp16", name="mobilenet_v2", kernels=chosen)
        assert len(program.launches) <= most_launches
        assert program.bytes_moved / BATCH / 1e6 <= 1.05 * floor_megabytes
        assert program.floor_bytes <= program.bytes_moved <= 1.001 * program.floor_bytes
        assert program.arena.proven
        assert program.arena.arena_bytes == program.arena.bound_bytes
        assert unfused_peak_bytes >= 1.6 * program.arena.arena_bytes
        found.append(program.bytes_moved)
    assert total(model_costs(unfused, 2).values()).bytes_moved > 2.8 * found[0]
    assert found[1] < found[0]


def test_the_cost_model_takes_every_depthwise_on_a_large_gpu(net: Any) -> None:
    model = at_shapes(net, SHAPES).model
    plan = choose(model, H200, "fp16", bucket="batch 64")
    assert len(plan.kernels) == 37
    assert all(d.reason for d in plan.decisions)
