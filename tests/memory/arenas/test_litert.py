"""LiteRT's foretold arena against the one that is measured, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefuse.devices.measure.arena import measure_arena
from edgefuse.memory.arena import Live
from edgefuse.memory.arenas.litert import greedy_offsets, predicted_arena
from edgefuse.tflite.read import parse_model, read_model

from ..nets import Net, mobile


def test_greedy_offsets_are_the_planner_s() -> None:
    """What lives throughout first, then by falling size into the tightest gap."""
    buffers = (
        Live("input", 10, 0, 5),
        Live("large", 256, 1, 2),
        Live("wide", 192, 2, 3),
        Live("small", 64, 3, 4),
        Live("last", 60, 4, 5),
    )
    assert greedy_offsets(buffers, 6) == (0, 64, 320, 64, 128)


def residuals() -> bytes:
    """Sums in place, a sum that cannot be, a reshape, and windows that decide the arena."""
    net = Net((17, 12), 3)
    x = net.conv(net.image, 4, kernel=5)
    y = net.conv(x, 4)
    total = net.add(net.add(x, y), x)
    shaped = net.made("shaped", (12, 17, 4))
    options = ("ReshapeOptions", {"newShape": [1, 12, 17, 4]})
    net.b.op("RESHAPE", (total,), (shaped,), options=options)
    return net.finish(net.conv(shaped, 2, kernel=1, stride=2))


@pytest.mark.parametrize(
    "data",
    [mobile((32, 24)), mobile((16, 16), integer=False), residuals()],
    ids=["int8", "float", "residuals"],
)
def test_arena_is_the_measured_one(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    arena = predicted_arena(read_model(path))
    assert measure_arena(path, log=tmp_path / "log").measured_bytes == arena.arena_bytes
    assert arena.arena_bytes >= arena.bound_bytes > 0
    assert len(arena.steps) == len(parse_model(data).operators)


def test_windows_are_counted_where_a_convolution_unrolls_them() -> None:
    sizes = {b.name: b.size_bytes for b in predicted_arena(parse_model(residuals())).buffers}
    windows = {name: size for name, size in sizes.items() if name.startswith("windows")}
    assert list(windows.values()) == [17 * 12 * 25 * 3, 17 * 12 * 9 * 4, 6 * 9 * 4]
