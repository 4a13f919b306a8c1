"""LiteRT's foretold arena against the one that is measured, to the byte."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from edgefuse.devices.measure.arena import measure_arena
from edgefuse.devices.measure.arena_worker import measure
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
    assert greedy_offsets(buffers, {0}) == (0, 64, 320, 64, 128)
    assert greedy_offsets(buffers) == (448, 0, 256, 0, 64)


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


def hard_swish(net: Net, source: int) -> int:
    result = net.made(f"swish{source}", net.shapes[source])
    net.b.op("HARD_SWISH", (source,), (result,))
    return result


def read_twice(*, integer: bool = True) -> bytes:
    """Blocks of x + hard_swish(conv(depthwise(x))): x dies in the sum, and is read twice."""
    net = Net((24, 24), 3, integer=integer)
    x = net.conv(net.pad(net.image, (1, 1), (1, 1)), 16, 3, 2, "VALID", "RELU")
    x = net.add(x, hard_swish(net, net.conv(net.conv(x, activation="RELU"), 16, 1)))
    x = net.conv(net.pad(x, (1, 1), (1, 1)), 32, 3, 2, "VALID", "RELU")
    x = net.add(x, hard_swish(net, net.conv(net.conv(x, activation="RELU"), 32, 1)))
    return net.finish(net.pooled(x))


def never_freed() -> bytes:
    """What the first operator makes and the last reads is freed there: it is put by its size."""
    net = Net((28, 28), 3)
    return net.finish(net.conv(net.pad(net.image, (0, 1), (0, 1)), 8, 3, 2, "VALID"))


def random_net(seed: int) -> bytes:
    """A few operators over any earlier results; some results nobody reads, some are outputs."""
    random = Random(seed)
    net = Net((random.randint(3, 20), random.randint(3, 20)), random.randint(1, 6))
    held, read = [net.image], {net.image}
    for _ in range(random.choice((4, 10, 25))):
        x = random.choice(held[-4:])
        c, kind = (
            net.shapes[x][2],
            random.choice(("conv", "deep", "pad", "sum", "swish", "reshape")),
        )
        if kind == "conv":
            y = net.conv(x, random.choice((1, 2, c)), random.choice((1, 3)), random.choice((1, 2)))
        elif kind == "deep":
            y = net.conv(x, 0, 3, random.choice((1, 2)))
        elif kind == "pad":
            y = net.pad(x, (0, 1), (1, 0))
        elif kind == "sum":
            other = random.choice([k for k in held if net.shapes[k] == net.shapes[x]])
            y = net.add(*random.sample((x, other), 2))
            read.add(other)
        elif kind == "swish":
            y = hard_swish(net, x)
        else:
            h, w, _ = net.shapes[x]
            y = net.made(f"turned{x}_{len(held)}", (w, h, c))
            options = ("ReshapeOptions", {"newShape": [1, w, h, c]})
            net.b.op("RESHAPE", (x,), (y,), options=options)
        read.add(x)
        held.append(y)
    ends = [k for k in held if k not in read and random.random() < 0.7]
    return net.finish(*sorted({*ends, held[-1], random.choice(held[1:])}))


@pytest.mark.parametrize(
    "data",
    [
        *(mobile((32, 24)), mobile((16, 16), integer=False), residuals()),
        *(read_twice(), read_twice(integer=False), never_freed()),
    ],
    ids=["int8", "float", "residuals", "read twice", "read twice, float", "never freed"],
)
def test_arena_is_the_measured_one(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    arena = predicted_arena(read_model(path))
    assert measure_arena(path, log=tmp_path / "log").measured_bytes == arena.arena_bytes
    assert arena.arena_bytes >= arena.bound_bytes > 0
    assert len(arena.steps) == len(parse_model(data).operators)


def test_arenas_of_random_nets_are_the_measured_ones(tmp_path: Path) -> None:
    path, differ = tmp_path / "model.tflite", {}
    for seed in range(60):
        path.write_bytes(random_net(seed))
        told = predicted_arena(read_model(path)).arena_bytes
        found = measure({"file": str(path), "runtime": "litert"})["measured_bytes"]
        if told != found:
            differ[seed] = (told, found)
    assert not differ


def test_windows_are_counted_where_a_convolution_unrolls_them() -> None:
    sizes = {b.name: b.size_bytes for b in predicted_arena(parse_model(residuals())).buffers}
    windows = {name: size for name, size in sizes.items() if name.startswith("windows")}
    assert list(windows.values()) == [17 * 12 * 25 * 3, 17 * 12 * 9 * 4, 6 * 9 * 4]
