"""The foretold head against the one that tflite-micro reports, to the byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from edgefuse.devices.device import Place
from edgefuse.devices.kinds.tflite_micro import TfliteMicro
from edgefuse.devices.measure.bench_worker import random_feeds
from edgefuse.memory.arena import Live
from edgefuse.memory.arenas.tflite_micro import greedy_offsets, predicted_head
from edgefuse.memory.shrink.absorb_pad import absorb_padding
from edgefuse.memory.shrink.tile import tile
from edgefuse.target import load_target
from edgefuse.tflite.read import parse_model, read_model, signature_of

from ..nets import mobile

HEAD = re.compile(r"Arena allocation head (\d+) bytes")


def test_greedy_offsets_are_the_planner_s() -> None:
    """By falling size, of equal ones the later first, each at the lowest free address."""

    def live(size: int, first: int, last: int) -> Live:
        return Live("", size, first, last)

    buffers = (live(32, 0, 1), live(64, 1, 2), live(32, 2, 3), live(16, 0, 3), live(16, 1, 1))
    assert greedy_offsets(buffers) == (64, 0, 64, 112, 96)


def test_scratch_of_a_mean_is_counted() -> None:
    model = parse_model(mobile())
    head = predicted_head(model)
    names = [buffer.name for buffer in head.buffers]
    assert names[-1].startswith("scratch of MEAN#")
    assert head.buffers[-1].size_bytes == 4 * 16
    assert head.arena_bytes >= head.bound_bytes > 0


def test_head_is_the_reported_one(tmp_path: Path, micro: Callable[[], Path]) -> None:
    prepared = micro()
    plain = mobile((32, 24))
    wide = absorb_padding(plain)[0]
    turned = absorb_padding(plain, "turned")[0]
    tiled = tile(plain, arena_bytes=predicted_head(parse_model(plain)).arena_bytes * 7 // 10)[0]
    device = TfliteMicro(load_target("tflm"), Place(tmp_path, tmp_path / "log", prepared))
    for data in (plain, wide, turned, tiled, mobile((16, 16), integer=False)):
        path = tmp_path / "model.tflite"
        path.write_bytes(data)
        source = read_model(path)
        feed = random_feeds(signature_of(source), 0)
        _, finished = device._generous(path, source, [feed])
        found = HEAD.search(finished.words)
        assert found is not None
        assert int(found[1]) == predicted_head(source).arena_bytes
