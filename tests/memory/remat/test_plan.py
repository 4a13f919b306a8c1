"""The planner against all plans there are, on chains small enough to try them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from edgefuse.memory.remat.chain import Around, Block, Item, Keep, Mode, Segment, cost, predict
from edgefuse.memory.remat.plan import least_peak, plan


def chain(seed: int) -> tuple[list[Block], Around]:
    source = random.Random(seed)
    blocks = []
    for place in range(source.randint(1, 4)):
        result, saved = source.randint(1, 9), source.randint(0, 40)
        own = source.random() < 0.3
        plain = Mode("keep", saved, 0 if own else result, saved + source.randint(1, 20),
                     source.randint(1, 20))  # fmt: skip
        modes = [plain]
        if source.random() < 0.5:
            modes.append(Mode("light", saved // 2, plain.output_bytes, plain.forward_bytes,
                              plain.backward_bytes + saved // 3, source.randint(1, 9)))  # fmt: skip
        barred = "it draws random numbers" if source.random() < 0.2 else ""
        blocks.append(
            Block(
                f"b{place}",
                tuple(modes),
                result,
                source.randint(result, 20),
                source.random() < 0.7,
                source.randint(0, 3),
                source.randint(1, 30),
                barred,
                source.randint(0, 2),
                source.random() < 0.2,
            )
        )
    around = Around(*(source.randint(0, 12) for _ in range(3)), source.randint(0, 40))
    return blocks, around


def plans(blocks: list[Block], begin: int, end: int, depth: int) -> Iterator[tuple[Item, ...]]:
    """Every plan of a range, nested up to a depth."""
    if begin == end:
        yield ()
        return
    for mode in range(len(blocks[begin].modes)):
        for rest in plans(blocks, begin + 1, end, depth):
            yield (Keep(begin, mode), *rest)
    for stop in range(begin + 1, end + 1):
        if blocks[stop - 1].kept_because:
            return
        if not depth or blocks[begin].in_place:
            continue
        for inner in plans(blocks, begin, stop, depth - 1):
            for rest in plans(blocks, stop, end, depth):
                yield (Segment(begin, stop, inner), *rest)


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_the_cheapest_of_all_plans(seed: int) -> None:
    blocks, around = chain(seed)
    every = [
        (cost(blocks, items), predict(blocks, items, around))
        for items in plans(blocks, 0, len(blocks), 3)
    ]
    least = least_peak(blocks, around)
    assert least == min(peak for _, peak in every)
    assert plan(blocks, least - 1, around) is None
    highest = max(peak for _, peak in every)
    for budget in sorted({least, (least + highest) // 2, *(peak for _, peak in every)})[:12]:
        found = plan(blocks, budget, around)
        assert found is not None
        assert found.peak_bytes <= budget
        assert found.peak_bytes == predict(blocks, found.items, around)
        assert found.cost == cost(blocks, found.items)
        assert found.cost == min(work for work, peak in every if peak <= budget)
        assert found == plan(blocks, budget, around)


def test_a_long_chain_keeps_to_its_budget() -> None:
    block = Block("b", (Mode("keep", 1_000_003, 40_001, 1_200_000, 700_000),), 40_001, 900_000,
                  True, 501, 10)  # fmt: skip
    blocks = [block] * 16
    whole = predict(blocks, [Keep(place, 0) for place in range(16)])
    costs = []
    for share in (0.9, 0.6, 0.4, 0.2, 0.13):
        found = plan(blocks, int(share * whole))
        assert found is not None and found.peak_bytes <= share * whole
        costs.append(found.cost)
    assert costs == sorted(costs) and costs[0] < 40 < costs[-1]


def test_nesting_reaches_budgets_that_one_level_does_not() -> None:
    block = Block("b", (Mode("keep", 100, 60, 100, 90),), 60, 70, True, 0, 1)
    blocks = [block] * 6
    flat = min(predict(blocks, items) for items in plans(blocks, 0, 6, 1))
    least = least_peak(blocks)
    assert least < flat
    found = plan(blocks, least)
    assert found is not None and found.cost > 6


def test_a_long_chain_of_unequal_blocks_is_planned_quickly() -> None:
    source = random.Random(7)
    blocks = []
    for place in range(20):
        result, saved = source.randint(200_000, 900_000), source.randint(10**6, 9 * 10**6)
        plain = Mode("keep", saved, result, saved + result, saved // 3)
        light = Mode("light", saved // 2, result, saved + result, saved // 2, source.randint(1, 9))
        narrow = Mode("narrow", saved // 9, result, saved, saved, source.randint(9, 20))
        blocks.append(
            Block(f"b{place}", (plain, light, narrow), result, saved // 2, True,
                  source.randint(0, 10**5), source.randint(20, 30))
        )  # fmt: skip
    whole = predict(blocks, [Keep(place, 0) for place in range(20)])
    begin = time.process_time()
    least = least_peak(blocks)
    found = [plan(blocks, budget) for budget in (least * 11 // 10, whole // 2, whole * 4 // 5)]
    assert time.process_time() - begin < 20
    costs = [each.cost for each in found if each is not None]
    assert costs == sorted(costs, reverse=True) and len(costs) == 3
