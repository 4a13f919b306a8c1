"""The planner: random instances against greedy and brute force, bad input, planted faults."""

from __future__ import annotations

import random
import time

import pytest

from edgefuse.errors import EdgefuseError
from edgefuse.memory.arena import Live, peak
from edgefuse.memory.planner.check import faults
from edgefuse.memory.planner.pack import pack
from edgefuse.memory.planner.plan import Plan, plan
from edgefuse.memory.planner.sections import sections


def _random_buffers(seed: int, most: int) -> list[Live]:
    """Chains, meshes and bursts, some sizes zero, some far from round."""
    rng = random.Random(seed)
    count, steps = rng.randint(1, most), rng.randint(1, 30)
    largest = rng.choice((3, 20, 4096, 10**6))
    longest = rng.choice((1, 3, steps))
    made = []
    for index in range(count):
        first = rng.randrange(steps)
        size = 0 if rng.random() < 0.03 else rng.randint(1, largest)
        made.append(Live(f"b{index}", size, first, first + rng.randrange(longest)))
    return made


def _by_size(buffers: list[Live], alignment: int) -> int:
    """The arena of greedy-by-size, lowest gap, written here anew."""
    placed: list[tuple[int, int, Live]] = []
    for buffer in sorted(buffers, key=lambda b: -b.size_bytes):
        size = -(-buffer.size_bytes // alignment) * alignment
        at = 0
        for start, stop, other in sorted(placed, key=lambda p: p[0]):
            if other.first <= buffer.last and buffer.first <= other.last:
                if start - at >= size:
                    break
                at = max(at, stop)
        if size:
            placed.append((at, at + size, buffer))
    return max((stop for _, stop, _ in placed), default=0)


def _tight_buffers(seed: int) -> list[Live]:
    """Every step filled to the same height, so that no gap is to spare."""
    rng = random.Random(seed)
    height, steps = rng.randint(5, 9), rng.randint(5, 9)
    made: list[Live] = []
    load = [0] * (steps + 6)
    for first in range(steps):
        while load[first] < height:
            size, more = rng.randint(1, min(4, height - load[first])), rng.randint(0, 4)
            while any(load[step] + size > height for step in range(first, first + more + 1)):
                more -= 1
            made.append(Live(str(len(made)), size, first, first + more))
            for step in range(first, first + more + 1):
                load[step] += size
    return made


def _fits(buffers: list[Live], height: int) -> bool:
    """By brute force: every buffer at every offset."""
    waiting = sorted(buffers, key=lambda b: (b.first, -b.size_bytes))
    at: list[int] = []

    def free(buffer: Live, offset: int) -> bool:
        return not any(
            other.last >= buffer.first
            and offset < place + other.size_bytes
            and place < offset + buffer.size_bytes
            for other, place in zip(waiting, at, strict=False)
        )

    def place_next() -> bool:
        if len(at) == len(waiting):
            return True
        buffer = waiting[len(at)]
        for offset in range(height - buffer.size_bytes + 1):
            if free(buffer, offset):
                at.append(offset)
                if place_next():
                    return True
                at.pop()
        return False

    return place_next()


def test_random_instances() -> None:
    """No overlap, nothing below the bound, never worse than greedy-by-size."""
    proven = 0
    for seed in range(1000):
        buffers = _random_buffers(seed, most=24)
        alignment = (1, 16, 64)[seed % 3]
        made = plan(buffers, alignment=alignment, effort=1000)
        assert faults(buffers, made.offsets, made.arena_bytes, alignment) == [], seed
        assert peak(buffers, alignment)[0] <= made.bound_bytes <= made.arena_bytes, seed
        assert made.arena_bytes <= _by_size(buffers, alignment), seed
        assert made.proven == (made.arena_bytes == made.bound_bytes)
        proven += made.proven
    assert proven >= 990


# Tight instances whose smallest arena is above the bound, which few are.
_ABOVE_THE_BOUND = (2014, 4043, 5237, 5241, 7643, 13487, 15186, 16634)


@pytest.mark.parametrize("seed", _ABOVE_THE_BOUND)
def test_an_arena_above_the_bound_is_proven(seed: int) -> None:
    buffers = _tight_buffers(seed)
    bound = peak(buffers)[0]
    made = plan(buffers)
    assert made.proven
    assert made.bound_bytes == made.arena_bytes == bound + 1
    assert not _fits(buffers, bound)


def test_tight_instances() -> None:
    """What fits by brute force is never called impossible."""
    for seed in range(150):
        buffers = _tight_buffers(seed)
        bound = peak(buffers)[0]
        verdict = pack(sections(buffers, 1), bound, 5000, time.monotonic() + 60).verdict
        if len(buffers) <= 14:
            assert (verdict == "fits") == _fits(buffers, bound), seed
        else:
            assert verdict in {"fits", "unknown"}, seed


def test_equal_input_gives_an_equal_plan() -> None:
    buffers = _tight_buffers(14780)
    first, second = plan(buffers), plan(buffers)
    assert first.offsets == second.offsets
    assert first.method == second.method


def test_zero_sized_buffers_take_no_space() -> None:
    buffers = [Live("none", 0, 0, 9), Live("some", 8, 0, 9), Live("nought", 0, 3, 3)]
    made = plan(buffers, alignment=16)
    assert dict(made.offsets) == {"none": 0, "some": 0, "nought": 0}
    assert (made.arena_bytes, made.proven) == (16, True)
    assert plan([]).arena_bytes == 0
    assert plan(buffers[:1]).proven


def test_sizes_near_the_limit() -> None:
    buffers = [Live("a", 2**62, 0, 1), Live("b", 2**62, 1, 2), Live("c", 2**62, 2, 3)]
    made = plan(buffers)
    assert made.arena_bytes == 2**63
    assert faults(buffers, made.offsets, made.arena_bytes) == []


def test_time_out_is_told() -> None:
    """A search that the clock cut says so, and is no worse than greedy."""
    made = plan(_tight_buffers(14780), time_limit_s=0.0)
    assert made.timed_out or made.proven
    assert made.arena_bytes <= _by_size(_tight_buffers(14780), 1)


@pytest.mark.parametrize(
    ("buffers", "arguments", "message"),
    [
        ([Live("x", -1, 0, 1)], {}, "buffer 'x' has a negative size, -1 bytes"),
        ([Live("x", 2**63, 0, 1)], {}, "more than a 64-bit size can tell"),
        ([Live("x", 4, 3, 2)], {}, "ends at step 2, before it begins at step 3"),
        ([Live("x", 4, 0, 0), Live("x", 4, 1, 1)], {}, "buffer 'x' occurs twice"),
        ([Live("x", 4, 0, 0)], {"capacity": 3}, "4 bytes are alive at once, 3 are there"),
        ([Live("x", 4, 0, 0)], {"alignment": 16, "capacity": 8}, "16 bytes are alive at once"),
        ([Live("x", 4, 0, 0)], {"alignment": 3}, "alignment 3 is no power of two"),
        ([Live("x", 4, 0, 0)], {"alignment": 0}, "alignment 0 is no power of two"),
        (
            [Live("x", 2**63 - 1, 0, 0), Live("y", 2**63 - 2, 0, 0)],
            {},
            "add up to 18446744073709551613 bytes",
        ),
        (_tight_buffers(5237), {"capacity": 6}, "no plan fits 6 bytes"),
    ],
)
def test_bad_input(buffers: list[Live], arguments: dict[str, int], message: str) -> None:
    with pytest.raises(EdgefuseError) as caught:
        plan(buffers, **arguments)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert caught.value.hint


def test_the_checker_finds_every_planted_fault() -> None:
    planted = 0
    for seed in range(20):
        buffers = [b for b in _random_buffers(seed, most=20) if b.size_bytes]
        made = plan(buffers)
        for one in buffers:
            at, arena = dict(made.offsets), made.arena_bytes
            for fault, offset in (("before the arena", -1), ("past the arena", arena)):
                assert any(fault in line for line in _moved(buffers, made, one, offset))
            for other in buffers:
                if one is not other and one.first <= other.last and other.first <= one.last:
                    planted += 1
                    # By one byte from below, by one byte from above, and fully.
                    for offset in (
                        at[other.name] - one.size_bytes + 1,
                        at[other.name] + other.size_bytes - 1,
                        at[other.name],
                    ):
                        lines = _moved(buffers, made, one, offset)
                        assert any(
                            "share" in line and repr(one.name) in line and repr(other.name) in line
                            for line in lines
                        )
            del at[one.name]
            assert faults(buffers, at, arena) == [f"{one.name!r} has no offset"]
    assert planted > 300
    assert faults([], {"ghost": 0}, 0) == ["'ghost' is no buffer"]
    assert faults([Live("x", 1, 0, 0)], {"x": 8}, 9, 16) == ["'x' lies at 8, no multiple of 16"]


def _moved(buffers: list[Live], made: Plan, one: Live, offset: int) -> list[str]:
    return faults(buffers, {**made.offsets, one.name: offset}, made.arena_bytes)
