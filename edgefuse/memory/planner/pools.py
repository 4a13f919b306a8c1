"""Several memories: which buffer lies in which, each memory planned by itself.

Problem: a microcontroller has a small fast memory and a large slow one. What does not fit the fast
one has to lie elsewhere, and each byte there costs time whenever it is touched.

Rule: all buffers begin in the first pool. While what is alive there at once exceeds its capacity,
the buffer goes on to the next pool that takes off most of the excess for each byte moved, a byte
counting as often as it is touched (once for its making and once for each reader). Then the pool is
planned; where no plan is found at its capacity though the bytes alive would fit, one more buffer
goes. What left a pool is planned in the next one in the same way.

Each pool's arena is a plan of its own, checked and with its own bound. The choice of buffers is
greedy: ``proven`` speaks of an arena, not of the traffic.

Scope: what is computed. Weights lie in flash, as read-only bytes without a lifetime: pass them as a
pool's ``reserved_bytes`` when they share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgefuse.errors import StageError
from edgefuse.memory.arena import Live, aligned, peak
from edgefuse.memory.planner.buffers import refuse_bad_alignment, refuse_bad_buffers
from edgefuse.memory.planner.plan import EFFORT, TIME_LIMIT_S, Plan, plan


@dataclass(frozen=True)
class Pool:
    """A memory.

    Attributes:
        name: like ``SRAM``.
        capacity_bytes: of the whole memory.
        reserved_bytes: not for buffers: weights, stacks.
        alignment: bytes, a power of two.
    """

    name: str
    capacity_bytes: int
    reserved_bytes: int = 0
    alignment: int = 1

    @property
    def free_bytes(self) -> int:
        """For buffers: a multiple of the alignment."""
        return (self.capacity_bytes - self.reserved_bytes) // self.alignment * self.alignment


@dataclass(frozen=True)
class Pools:
    """Where every buffer lies.

    Attributes:
        of: the pool of each buffer, by name.
        plans: of each pool, by its name, in the order given.
        moved_bytes: bytes touched outside the first pool in one run.
    """

    of: Mapping[str, str]
    plans: Mapping[str, Plan]
    moved_bytes: int


def plan_pools(
    buffers: Sequence[Live],
    pools: Sequence[Pool],
    *,
    uses: Mapping[str, int] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    effort: int = EFFORT,
) -> Pools:
    """Plan several memories.

    Args:
        buffers: names are unique.
        pools: in order of preference.
        uses: how often each buffer is touched in one run; 2 where it is not told (made and read).
        time_limit_s, effort: of each pool's :func:`~edgefuse.memory.planner.plan.plan`.

    Raises:
        StageError: bad buffers or pools; buffers that no pool can hold, with the largest named.
    """
    refuse_bad_buffers(buffers)
    _refuse_bad_pools(pools)
    touched = {buffer.name: (uses or {}).get(buffer.name, 2) for buffer in buffers}
    waiting = list(buffers)
    of: dict[str, str] = {}
    plans: dict[str, Plan] = {}
    for place, pool in enumerate(pools):
        last = place == len(pools) - 1
        kept, gone = _fitting(waiting, pool, touched, last)
        while True:
            try:
                made = plan(
                    kept,
                    alignment=pool.alignment,
                    capacity=pool.free_bytes,
                    time_limit_s=time_limit_s,
                    effort=effort,
                )
                break
            except StageError:
                if last:
                    raise
                # What is alive fits, but no plan was found: one more buffer goes.
                most = max(kept, key=lambda b: (b.size_bytes, b.name))
                kept = [buffer for buffer in kept if buffer is not most]
                gone.append(most)
        plans[pool.name] = made
        of |= {buffer.name: pool.name for buffer in kept}
        order = {buffer.name: index for index, buffer in enumerate(buffers)}
        waiting = sorted(gone, key=lambda b: order[b.name])
    outside = [b for b in buffers if of[b.name] != pools[0].name]
    return Pools(of, plans, sum(b.size_bytes * touched[b.name] for b in outside))


def _fitting(
    buffers: Sequence[Live], pool: Pool, touched: Mapping[str, int], last: bool
) -> tuple[list[Live], list[Live]]:
    """What stays, so that no more is alive at once than the pool holds; what goes on."""
    kept = list(buffers)
    gone: list[Live] = []
    while True:
        excess = _excess(kept, pool)
        if not excess:
            return kept, gone
        if last:
            most, step = peak(kept, pool.alignment)
            alive = sorted(
                (b for b in kept if b.first <= step <= b.last),
                key=lambda b: (-b.size_bytes, b.name),
            )
            names = ", ".join(f"{b.name} ({b.size_bytes} bytes)" for b in alive[:3])
            raise StageError(
                f"{most} bytes are alive at step {step} in {pool.name}, the last pool, which has "
                f"{pool.free_bytes} bytes free; the largest are {names}",
                hint="give a larger pool, or make these tensors smaller: tiling, a smaller input",
                where=pool.name,
            )

        def worth(buffer: Live, excess: dict[int, int] = excess) -> tuple[float, int, str]:
            """Excess that goes with a buffer, for each byte that is touched elsewhere."""
            size = aligned(buffer.size_bytes, pool.alignment)
            span = (step for step in excess if buffer.first <= step <= buffer.last)
            relief = sum(min(size, excess[step]) for step in span)
            price = buffer.size_bytes * max(touched[buffer.name], 1)
            return relief / price if price else 0.0, -buffer.size_bytes, buffer.name

        chosen = max(kept, key=worth)
        kept = [buffer for buffer in kept if buffer is not chosen]
        gone.append(chosen)


def _excess(buffers: Sequence[Live], pool: Pool) -> dict[int, int]:
    """By step at which a buffer begins: bytes alive beyond what the pool holds, where there are."""
    found = {}
    for step in sorted({buffer.first for buffer in buffers}):
        alive = sum(
            aligned(b.size_bytes, pool.alignment) for b in buffers if b.first <= step <= b.last
        )
        if alive > pool.free_bytes:
            found[step] = alive - pool.free_bytes
    return found


def _refuse_bad_pools(pools: Sequence[Pool]) -> None:
    if not pools:
        raise StageError("there is no pool", hint="name at least one memory and its bytes")
    names = [pool.name for pool in pools]
    for pool in pools:
        refuse_bad_alignment(pool.alignment)
        problem = ""
        if names.count(pool.name) > 1:
            problem = "occurs twice"
        elif pool.reserved_bytes < 0 or pool.capacity_bytes < pool.reserved_bytes:
            problem = f"has {pool.capacity_bytes} bytes, {pool.reserved_bytes} of them reserved"
        if problem:
            raise StageError(
                f"pool {pool.name!r} {problem}",
                hint="a pool has a name of its own, and room for what is reserved in it",
                where=pool.name,
            )
