"""Orders of operators: never a higher peak, the best of all on small graphs, the same outputs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgefuse.errors import StageError
from edgefuse.memory.shrink.judge import alive_at_once, judged
from edgefuse.memory.shrink.order import best_order, order
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import TfliteModel, parse_model

from ..nets import Net, equal, mobile, pictures, results


def wired(seed: int, count: int = 12, *, size: int = 6) -> bytes:
    """A randomly wired net: convolutions of random width, sums and joins of random earlier maps."""
    random = np.random.default_rng(seed)
    net = Net((size, size))
    maps = [net.conv(net.image, int(random.integers(2, 17)), 1)]
    unread = {maps[0]}
    for _ in range(count):
        source = maps[int(random.integers(max(0, len(maps) - 5), len(maps)))]
        twins = [m for m in maps if m != source and net.shapes[m] == net.shapes[source]]
        if twins and random.random() < 0.5:
            made = net.add(source, twins[-1])
            unread -= {twins[-1]}
        else:
            made = net.conv(source, int(random.integers(1, 9)) * 2, 1)
        unread = (unread - {source}) | {made}
        maps.append(made)
    total = net.conv(maps[-1], 4, 1)
    for one in sorted(unread - {maps[-1]}):
        total = net.add(total, net.conv(one, 4, 1))
    return net.finish(net.pooled(total))


def _all_orders(model: TfliteModel) -> Iterator[tuple[int, ...]]:
    makers = {i: place for place, o in enumerate(model.operators) for i in o.outputs}
    needed = [{makers[i] for i in o.inputs if i in makers} for o in model.operators]

    def extend(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == len(needed):
            yield done
        for place, first in enumerate(needed):
            if place not in done and first <= {*done}:
                yield from extend((*done, place))

    yield from extend(())


def _peak(model: TfliteModel, places: tuple[int, ...]) -> int:
    operators = tuple(model.operators[place] for place in places)
    return alive_at_once(replace(model, operators=operators), "tflite_micro")


@pytest.mark.parametrize("seed", (0, 1, 2, 3, 5, 6, 8))
def test_the_best_of_all_orders(seed: int) -> None:
    data = wired(seed, 4)
    model = parse_model(data)
    peaks = [_peak(model, places) for places in _all_orders(model)]
    assert len(peaks) > 1
    assert _peak(model, best_order(model, "tflite_micro")) == min(peaks)


def test_it_helps_and_every_bit_is_the_same(tmp_path: Path) -> None:
    helped = 0
    for seed in range(10):
        data = wired(seed, 24)
        changed, facts = order(data)
        assert facts.arena_bytes == judged(parse_model(changed), "tflite_micro").arena_bytes
        assert (changed is data) == (facts.moved == 0)
        assert order(data)[0] == changed
        if changed is data:
            assert facts.arena_bytes == facts.arena_bytes_before
            continue
        helped += 1
        assert facts.arena_bytes < facts.arena_bytes_before
        if helped <= 2:
            given = pictures(data)
            assert equal(results(data, tmp_path, given), results(changed, tmp_path, given))
    assert helped >= 4


def test_a_chain_stays_as_it_is() -> None:
    data = mobile()
    changed, facts = order(data)
    assert changed is data and facts.moved == 0
    assert facts.arena_bytes == judged(parse_model(data), "tflite_micro").arena_bytes


def test_under_litert_a_reshape_is_one_buffer() -> None:
    for seed in range(4):
        data = wired(seed, 20)
        changed, facts = order(data, "litert")
        assert facts.arena_bytes == judged(parse_model(changed), "litert").arena_bytes
        assert facts.arena_bytes <= facts.arena_bytes_before


def test_two_thousand_operators_end_soon() -> None:
    data = wired(3, 1500, size=2)
    count = len(parse_model(data).operators)
    assert 1700 < count < 2600
    begin = time.process_time()
    best_order(parse_model(data), "tflite_micro")
    assert time.process_time() - begin < 6


def test_what_reads_before_it_is_made_is_refused() -> None:
    edit = Edit(mobile())
    edit.graph.operators.reverse()
    with pytest.raises(StageError, match="which nothing before it makes"):
        order(edit.packed())
