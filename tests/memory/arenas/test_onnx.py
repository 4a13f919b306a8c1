"""Arenas of ONNX graphs: at the bound, and right when a model runs in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases.onnx_graph import OnnxGraph
from graph.random_graphs import random_graph

from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.verify import seeded_feed
from edgefuse.memory.arena import Arena, Live
from edgefuse.memory.arenas.onnx import load_graph, onnx_arena
from edgefuse.memory.liveness.onnx import ONNX, ONNX_IN_PLACE
from edgefuse.memory.liveness.sharing import Sharing

from ..onnx_text import RESIDUAL, model
from ..poisoned import Model, equal

TIGHT = Sharing(alignment=1, keeps_inputs=False, reshapes=True, elementwise=True)
APART = replace(ONNX, keeps_inputs=False, reshapes=False)
# With views, residuals, branches and several outputs among them.
SEEDS = (6, 15, 24, 33)


def drawn(seed: int) -> tuple[ir.Model, dict[str, np.ndarray]]:
    case = random_graph(seed)
    return prepare(case.proto), case.feeds[0]


def test_a_residual_net() -> None:
    graph = model(RESIDUAL)
    arena = onnx_arena(graph)
    assert arena.proven and arena.arena_bytes == arena.bound_bytes == 4 * 576
    assert arena.steps == ("Conv#0", "Relu#1", "Conv#2", "Add#3")
    assert [b.name for b in arena.alive_at(arena.peak_step)] == ["x", "b", "c", "y"]
    assert onnx_arena(graph, ONNX_IN_PLACE).arena_bytes == 3 * 576
    assert onnx_arena(graph, replace(ONNX, alignment=256)).arena_bytes == 4 * 768
    run_passes(graph)
    fused = onnx_arena(graph)
    assert fused.steps == ("ConvRelu#0", "ConvAdd#1")
    assert fused.arena_bytes == 3 * 576


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fused", [False, True])
def test_a_model_runs_in_its_arena(seed: int, fused: bool) -> None:
    """Bit by bit as outside, though every dead and unborn buffer is poisoned."""
    graph, feed = drawn(seed)
    if fused:
        run_passes(graph)
    running = Model(graph, feed)
    for sharing in (ONNX, ONNX_IN_PLACE, TIGHT, APART):
        arena = onnx_arena(graph, sharing)
        assert arena.proven
        assert equal(running.plain, running.in_arena(arena)), sharing


def test_a_planted_overlap_is_seen() -> None:
    """Every pair that is alive at one step, put at one address, spoils the result."""
    planted = 0
    graph = model(RESIDUAL)
    running = Model(graph, seeded_feed_of(graph))
    arena = onnx_arena(graph, replace(ONNX, keeps_inputs=False))
    assert equal(running.plain, running.in_arena(arena))
    for one, first in enumerate(arena.buffers):
        for other, second in enumerate(arena.buffers):
            if one != other and first.first <= second.last and second.first <= first.last:
                planted += 1
                moved = _moved(arena, one, arena.offsets[other])
                assert not equal(running.plain, running.in_arena(moved)), (first, second)
    assert planted >= 10


def test_a_lifetime_that_is_too_short_is_seen() -> None:
    """The poison tells a buffer that dies a step early."""
    graph = model(RESIDUAL)
    running = Model(graph, seeded_feed_of(graph))
    arena = onnx_arena(graph, replace(ONNX, keeps_inputs=False))
    for index, buffer in enumerate(arena.buffers[:-1]):
        short = replace(buffer, last=buffer.last - 1)
        if short.last >= short.first:
            buffers: list[Live] = list(arena.buffers)
            buffers[index] = short
            wrong = replace(arena, buffers=tuple(buffers))
            assert not equal(running.plain, running.in_arena(wrong)), buffer


def _moved(arena: Arena, index: int, offset: int) -> Arena:
    offsets = list(arena.offsets)
    offsets[index] = offset
    return replace(arena, offsets=tuple(offsets))


def seeded_feed_of(graph: ir.Model) -> dict[str, np.ndarray]:
    return dict(seeded_feed(ir.serde.serialize_model(graph), seed=0))


def fire_net(path: Path) -> Path:
    """A convolution, three fire modules as in SqueezeNet, global pooling."""
    net = OnnxGraph()
    x = net.add("Relu", net.conv(net.input("image", (1, 3, 32, 24)), 3, 16))
    for _ in range(3):
        squeezed = net.add("Relu", net.conv(x, 16, 4, 1))
        one = net.add("Relu", net.conv(squeezed, 4, 8, 1))
        three = net.add("Relu", net.conv(squeezed, 4, 8))
        x = net.add("Concat", one, three, axis=1)
    net.add("GlobalAveragePool", x, output="logits")
    net.output("logits")
    net.save(path)
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(path)), path)
    return path


def test_a_network_s_arena_is_at_the_bound(tmp_path: Path) -> None:
    """By hand: the picture is held; the first result and its ReLU are the peak."""
    graph = load_graph(fire_net(tmp_path / "fire.onnx"))
    plane = 32 * 24 * 4
    arena = onnx_arena(graph)
    assert arena.proven and arena.arena_bytes == arena.bound_bytes == (3 + 16 + 16) * plane
    # In place: both halves and their join; fused the same.
    in_place = onnx_arena(graph, ONNX_IN_PLACE)
    assert in_place.proven and in_place.arena_bytes == (3 + 8 + 8 + 16) * plane
    run_passes(graph)
    fused = onnx_arena(graph)
    assert fused.proven and fused.arena_bytes == in_place.arena_bytes
    assert len(fused.buffers) < len(arena.buffers)
