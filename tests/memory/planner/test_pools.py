"""Several memories: what goes where, and what is refused."""

from __future__ import annotations

import random

import pytest

from edgefuse.errors import StageError
from edgefuse.memory.arena import Live, peak
from edgefuse.memory.planner.check import faults
from edgefuse.memory.planner.plan import plan
from edgefuse.memory.planner.pools import Pool, Pools, plan_pools

CHAIN = [
    Live("a", 100, 0, 1),
    Live("b", 400, 1, 2),
    Live("c", 300, 2, 3),
    Live("d", 50, 3, 4),
]


def holds(buffers: list[Live], pools: list[Pool], made: Pools) -> None:
    """Every buffer in one pool, no overlap, and nothing past a capacity."""
    assert set(made.of) == {buffer.name for buffer in buffers}
    for pool in pools:
        inside = [buffer for buffer in buffers if made.of[buffer.name] == pool.name]
        found = made.plans[pool.name]
        assert faults(inside, found.offsets, found.arena_bytes, pool.alignment) == []
        assert found.arena_bytes <= pool.capacity_bytes - pool.reserved_bytes


def test_all_in_the_first_where_it_fits() -> None:
    pools = [Pool("SRAM", 700), Pool("DRAM", 10**6)]
    made = plan_pools(CHAIN, pools)
    holds(CHAIN, pools, made)
    assert set(made.of.values()) == {"SRAM"} and made.moved_bytes == 0
    assert made.plans["SRAM"].arena_bytes == 700 and made.plans["SRAM"].proven
    assert made.plans["DRAM"].arena_bytes == 0


def test_the_cheapest_relief_goes() -> None:
    """Of b and c, alive together, each alone is enough at 600: the smaller one is cheaper."""
    pools = [Pool("SRAM", 600), Pool("DRAM", 10**6)]
    made = plan_pools(CHAIN, pools)
    holds(CHAIN, pools, made)
    assert [name for name, pool in made.of.items() if pool == "DRAM"] == ["c"]
    assert made.moved_bytes == 2 * 300
    # Unless it is read much more often.
    made = plan_pools(CHAIN, pools, uses={"c": 9})
    assert [name for name, pool in made.of.items() if pool == "DRAM"] == ["b"]
    assert made.moved_bytes == 2 * 400


def test_reserved_bytes_and_alignment() -> None:
    pools = [Pool("SRAM", 800, reserved_bytes=90, alignment=16), Pool("DRAM", 640, alignment=64)]
    made = plan_pools(CHAIN, pools)
    holds(CHAIN, pools, made)
    # 400 + 304 bytes, rounded up, fit into 704 of the 710.
    assert made.plans["SRAM"].arena_bytes == 704
    assert "DRAM" in plan_pools(CHAIN, [Pool("SRAM", 800, 100, 16), pools[1]]).of.values()


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        (
            [Pool("SRAM", 300), Pool("DRAM", 350)],
            "in DRAM, the last pool, which has 350 bytes",
        ),
        ([], "there is no pool"),
        ([Pool("SRAM", 1), Pool("SRAM", 1)], "pool 'SRAM' occurs twice"),
        ([Pool("SRAM", 10, 11)], "has 10 bytes, 11 of them reserved"),
        ([Pool("SRAM", 10, alignment=3)], "alignment 3 is no power of two"),
    ],
)
def test_what_is_refused(pools: list[Pool], message: str) -> None:
    with pytest.raises(StageError) as caught:
        plan_pools([*CHAIN, Live("e", 360, 0, 4)], pools)
    assert message in caught.value.message
    assert caught.value.hint
    if "last pool" in message:
        assert "e (360 bytes)" in caught.value.message


def test_random_instances() -> None:
    """Nothing overlaps, nothing is lost, and nothing is moved that need not be."""
    moved = 0
    for seed in range(150):
        rng = random.Random(seed)
        buffers = []
        for index in range(rng.randint(2, 30)):
            first = rng.randrange(12)
            buffers.append(Live(str(index), rng.randint(1, 999), first, first + rng.randrange(4)))
        whole = plan(buffers, effort=1000).arena_bytes
        pools = [
            Pool("SRAM", max(1, whole * rng.choice((3, 6, 9, 10)) // 10), alignment=1),
            Pool("PSRAM", max(1, whole // 3), alignment=1),
            Pool("DRAM", 10**6, alignment=64),
        ]
        made = plan_pools(buffers, pools, effort=1000)
        holds(buffers, pools, made)
        assert made.plans["SRAM"].bound_bytes <= pools[0].capacity_bytes
        if pools[0].capacity_bytes >= whole:
            assert made.moved_bytes == 0
        elif peak(buffers)[0] > pools[0].capacity_bytes:
            assert made.moved_bytes > 0
            moved += 1
    assert moved > 80
