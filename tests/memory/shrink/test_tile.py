"""First operators in tiles: equal bit by bit, within the goal, and the goal out of reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgefuse.errors import GateFailed, StageError, UsageError
from edgefuse.memory.arenas.tflite_micro import predicted_head
from edgefuse.memory.shrink.absorb_pad import absorb_padding
from edgefuse.memory.shrink.multiply_adds import multiply_adds
from edgefuse.memory.shrink.tile import tile
from edgefuse.memory.shrink.tile_segment import segments
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import parse_model

from ..nets import Net, equal, mobile, pictures, results


@pytest.mark.parametrize("kernels", ["builtin", "default"])
@pytest.mark.parametrize("grid", [(1, 2), (3, 1), (2, 3)])
def test_every_bit_is_the_same(grid: tuple[int, int], kernels: str, tmp_path: Path) -> None:
    data = mobile()
    given = pictures(data)
    whole = results(data, tmp_path, given, kernels)
    found = segments(Edit(data))
    assert [segment.end for segment in found] == [2, 6, 7, 9, 10, 14, 15, 17, 18]
    for segment in found[::3]:
        changed, facts = tile(data, grid=grid, last=segment.end - 1)
        assert facts.grid == grid and facts.operators > facts.operators_before
        assert equal(whole, results(changed, tmp_path, given, kernels))


@pytest.mark.parametrize(("size", "grid"), [((17, 23), (3, 2)), ((15, 32), (2, 3))])
def test_odd_pictures_and_a_turned_network(
    size: tuple[int, int], grid: tuple[int, int], tmp_path: Path
) -> None:
    data = mobile(size)
    given = pictures(data)
    whole = results(data, tmp_path, given)
    for held in (data, absorb_padding(data)[0], absorb_padding(data, "turned")[0]):
        last = segments(Edit(held))[5].end - 1
        changed, _ = tile(held, grid=grid, last=last)
        assert equal(whole, results(changed, tmp_path, given))


def test_float(tmp_path: Path) -> None:
    data = mobile(integer=False)
    changed, _ = tile(data, grid=(2, 2), last=segments(Edit(data))[4].end - 1)
    given = pictures(data)
    before, after = (results(held, tmp_path, given) for held in (data, changed))
    np.testing.assert_allclose(before, after, rtol=1e-4)


def test_multiply_adds_and_halo() -> None:
    """Two rows of tiles of a 3 x 3 behind a 1 x 1: each tile computes one row more of the 1 x 1."""
    net = Net((8, 8))
    inner = net.conv(net.image, 32, 1)
    data = net.finish(net.conv(inner, 4, 3))
    changed, facts = tile(data, grid=(2, 1), last=1)
    before = 8 * 8 * (32 * 3 + 4 * 9 * 32)
    assert facts.multiply_adds_before == before
    assert facts.multiply_adds == before + 2 * 8 * 32 * 3
    assert multiply_adds(parse_model(changed)) == facts.multiply_adds
    assert facts.extra_share == pytest.approx(2 * 8 * 32 * 3 / before)


def test_the_goal_is_kept_at_the_least_cost(tmp_path: Path) -> None:
    data = mobile((32, 32))
    before = predicted_head(parse_model(data)).arena_bytes
    goal = before * 7 // 10
    changed, facts = tile(data, arena_bytes=goal)
    assert facts.head_bytes_before == before
    assert facts.head_bytes == predicted_head(parse_model(changed)).arena_bytes <= goal
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))
    lesser, more = tile(data, arena_bytes=before * 9 // 10)
    assert more.extra_share <= facts.extra_share and more.head_bytes > facts.head_bytes
    same, none = tile(data, arena_bytes=before)
    assert same is data and none.grid == (1, 1) and none.extra_share == 0
    assert lesser != changed


def test_a_goal_out_of_reach_names_what_blocks_it() -> None:
    data = mobile()
    with pytest.raises(GateFailed, match=r"the least is \d+ bytes, of which .* alive at .*#\d+"):
        tile(data, arena_bytes=500)
    with pytest.raises(GateFailed, match=r"at most 0\.1% more"):
        tile(data, arena_bytes=2000, max_extra_share=0.001)


def test_questions_without_an_answer() -> None:
    data = mobile()
    with pytest.raises(UsageError, match="needs a goal in bytes"):
        tile(data, grid=(2, 2))
    with pytest.raises(UsageError, match="no grid of"):
        tile(data, grid=(40, 1), last=1)
    with pytest.raises(StageError, match="no operators of the model can be tiled up to MEAN"):
        tile(data, grid=(2, 2), last=len(parse_model(data).operators) - 1)


def test_where_a_segment_may_end() -> None:
    """Behind an operator only when nothing made before it is read later."""
    net = Net((8, 8))
    x = net.conv(net.image, 8)
    y = net.conv(x, 8)
    data = net.finish(net.pooled(net.conv(net.add(x, y), 4)))
    assert [segment.end for segment in segments(Edit(data))] == [1, 3, 4]
    with pytest.raises(StageError, match="CONV_2D#1"):
        tile(data, grid=(2, 2), last=1)


def test_a_pooling_that_pads_is_not_tiled(tmp_path: Path) -> None:
    net = Net((8, 8))
    x = net.conv(net.image, 8)
    pooled = net.made("max", (8, 8, 8))
    window = {"filterHeight": 3, "filterWidth": 3, "strideW": 1, "strideH": 1}
    net.b.op("MAX_POOL_2D", (x,), (pooled,), options=("Pool2DOptions", window))
    last = net.made("last", (4, 4, 8))
    window = {"filterHeight": 2, "filterWidth": 2, "strideW": 2, "strideH": 2, "padding": 1}
    net.b.op("MAX_POOL_2D", (pooled,), (last,), options=("Pool2DOptions", window))
    data = net.finish(last)
    assert [segment.end for segment in segments(Edit(data))] == [1]
    net.b.graph.operators[1].inputs[0] = net.image  # Unread, the padded one no longer stands first.
    net.b.graph.operators[2].inputs[0] = x
    net.b.graph.operators.pop(1)
    data = net.finish(last)
    changed, _ = tile(data, grid=(2, 2), last=1)
    given = pictures(data)
    assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))


def test_a_sum_gets_whole_vectors() -> None:
    """Built-in kernels round the remainder of a vector loop otherwise."""
    net = Net((20, 20))
    x = net.conv(net.image, 8, 1)
    total = net.add(x, net.conv(x, 8, 1))
    data = net.finish(net.conv(total, 4, 3, 2))
    changed = parse_model(tile(data, grid=(3, 3), last=3)[0])
    sums = [changed.tensors[o.outputs[0]].shape for o in changed.operators if o.code == "ADD"]
    assert len(sums) == 9
    assert all(shape[1] % 2 == 0 and shape[1] * shape[2] * 8 % 32 == 0 for shape in sums)


def test_a_search_ends_however_long_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is drafted is counted: of the first tilings the cheapest, else a failed goal."""
    from edgefuse.memory.shrink import tile as searched

    drafted = []
    kept = searched.draft
    monkeypatch.setattr(searched, "draft", lambda *a: drafted.append(a) or kept(*a))
    monkeypatch.setattr(searched, "_EFFORT", 600)
    net = Net((16, 16))
    x = net.conv(net.image, 4)
    for _ in range(40):
        x = net.add(x, net.conv(x, 4, 1))
    with pytest.raises(GateFailed, match="the least found is"):
        tile(net.finish(x), arena_bytes=100, max_extra_share=9.0)
    assert len(drafted) < 20
