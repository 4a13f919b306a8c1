"""Greedy plans: one buffer after the other, each into a gap that the earlier ones leave.

Eight orders, three rules: the lowest gap that is large enough; the tightest one; or from the bottom
up, whatever can lie lowest comes next. By falling size into the tightest gap is what LiteRT does,
into the lowest what tflite-micro does, so that no plan from here is worse than theirs. These passes
reach the lower bound on nearly every inference graph; the search stops at the first that does.
"""

from __future__ import annotations

import time
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from edgefuse.memory.planner.sections import Ints, Sections

Rule = Literal["lowest", "tightest", "stacked"]
_RULES: tuple[Rule, ...] = ("lowest", "tightest", "stacked")


def best_greedy(problem: Sections, enough: int, deadline: float) -> tuple[Ints, int, str]:
    """Offsets in units, their height, and the pass that made them.

    Args:
        problem: the buffers.
        enough: a height at which no further pass is made.
        deadline: of ``time.monotonic``; the two passes by size are made whatever the time is.
    """
    best: tuple[Ints, int, str] | None = None
    near = _neighbours(problem)
    for name, order in _orders(problem).items():
        for rule in _RULES:
            if best and (best[1] <= enough or (name != "size" and time.monotonic() > deadline)):
                return best
            if rule == "stacked":
                offset = _stack(problem, near, order)
            else:
                offset = _place(problem, near, order, tightest=rule == "tightest")
            height = int((offset + problem.size).max())
            if best is None or height < best[1]:
                best = offset, height, f"greedy by {name}, {rule}"
    assert best is not None, "there is at least one order"
    return best


def _orders(problem: Sections) -> dict[str, Ints]:
    """Indices in the order of placing; what is equal keeps the order of the buffers."""
    size, lifetime = problem.size, problem.lifetime
    span = problem.stop - problem.start
    pressure = problem.pressure()
    highest = np.array(
        [pressure[a:b].max() for a, b in zip(problem.start, problem.stop, strict=True)], np.int64
    )
    area = size.astype(float) * lifetime
    return {
        "size": np.lexsort((problem.start, -size)),
        "area": np.lexsort((-size, -area)),
        "lifetime": np.lexsort((-size, -lifetime)),
        "start": np.lexsort((-size, problem.start)),
        "end": np.lexsort((-size, -problem.stop)),
        "pressure": np.lexsort((-size, -highest)),
        "pressure and area": np.lexsort((-area, -highest)),
        "sections": np.lexsort((-size, -span)),
    }


def _neighbours(problem: Sections) -> list[list[int]]:
    """For each buffer those that are alive at the same time, itself left out."""
    start, stop = problem.start, problem.stop
    near = []
    for index, (begin, end) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        meets = (start < end) & (stop > begin)
        meets[index] = False
        near.append(np.flatnonzero(meets).tolist())
    return near


def _place(problem: Sections, near: list[list[int]], order: Ints, *, tightest: bool) -> Ints:
    # Lists: neighbours are few, and an array costs more to make than to read.
    sizes = problem.size.tolist()
    offset, top = [0] * len(sizes), [-1] * len(sizes)
    for index in order.tolist():
        size, free, best, room = sizes[index], 0, -1, -1
        for begin, end in sorted([(offset[k], top[k]) for k in near[index] if top[k] >= 0]):
            gap = begin - free
            if gap >= size and (best < 0 or gap < room):
                best, room = free, gap
                if not tightest:
                    break
            if end > free:
                free = end
        offset[index] = free if best < 0 else best
        top[index] = offset[index] + size
    return np.array(offset, np.int64)


def _stack(problem: Sections, near: list[list[int]], order: Ints) -> Ints:
    """Bottom up: what can lie lowest comes next, of equal ones by ``order``."""
    sizes = problem.size.tolist()
    rank = np.argsort(order).tolist()
    lowest, placed = [0] * len(sizes), [False] * len(sizes)
    waiting = [(0, place, index) for index, place in enumerate(rank)]
    heapify(waiting)
    while waiting:
        offset, _, index = heappop(waiting)
        if placed[index] or offset != lowest[index]:
            continue
        placed[index] = True
        top = offset + sizes[index]
        for other in near[index]:
            if not placed[other] and lowest[other] < top:
                lowest[other] = top
                heappush(waiting, (top, rank[other], other))
    return np.array(lowest, np.int64)
