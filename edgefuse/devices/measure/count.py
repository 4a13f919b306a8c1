"""What the counting plugin of the emulator noted, as instructions of invokes and of operators.

Each line is a kind of mark and the number of instructions until then (``runner/count.c``). An
operator of the interpreter lies between two marks of the runner's; XNNPACK's lie between two
readings of the clock. The runner itself reads the clock just before and just after the former.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefuse.errors import ToolError

BEGIN, END, OPERATOR_BEGIN, OPERATOR_END, CLOCK = 1, 2, 3, 4, 5
Mark = tuple[int, int]


@dataclass(frozen=True)
class Operator:
    """One operator as the runtime ran it: its own name for it, and what it took."""

    name: str
    instructions: int


def _marks(text: str) -> list[Mark]:
    marks = []
    for line in text.splitlines():
        kind, _, count = line.partition(" ")
        if not (kind.isdigit() and count.isdigit()):
            raise ToolError(f"the counting plugin wrote {line[:40]!r}")
        marks.append((int(kind), int(count)))
    return marks


def invokes(text: str) -> list[int]:
    """Instructions of every counted invoke, in order."""
    counts, begin = [], None
    for kind, count in _marks(text):
        if kind == BEGIN:
            begin = count
        elif kind == END and begin is not None:
            counts.append(count - begin)
            begin = None
    return counts


def operators(text: str, events: Sequence[Mapping[str, Any]]) -> tuple[Operator, ...]:
    """The operators of the last counted invoke, in the order they ran.

    Args:
        text: the plugin's lines.
        events: the runner's ``operators`` of that invoke: those of a delegate come, all together,
            after the delegate has run, numbered from 0.

    Returns:
        Nothing when marks and events do not add up: an operator that runs in several pieces.
    """
    marks = _marks(text)
    first = max((k for k, mark in enumerate(marks) if mark[0] == BEGIN), default=len(marks))
    inside = list(itertools.takewhile(lambda mark: mark[0] != END, marks[first + 1 :]))
    found: list[Operator] = []
    waiting = list(events)
    for piece in _pieces(inside):
        count = 1 if piece[0][0] == OPERATOR_BEGIN else len(piece) - 1
        told, waiting = waiting[:count], waiting[count:]
        if len(told) < count or any(
            ("delegate_us" in event) != (piece[0][0] == CLOCK) for event in told
        ):
            return ()
        ends = [piece[-1]] if count == 1 and piece[0][0] == OPERATOR_BEGIN else piece[1:]
        begin = piece[0][1]
        for event, (_, end) in zip(told, ends):
            found.append(Operator(str(event["name"]), end - begin))
            begin = end
    return () if waiting else tuple(found)


def _pieces(marks: Sequence[Mark]) -> Iterator[list[Mark]]:
    """Each operator of the interpreter with its marks, each delegate with its clock's readings."""
    clocks: list[Mark] = []
    k = 0
    while k < len(marks):
        if marks[k][0] != OPERATOR_BEGIN:
            clocks.append(marks[k])
            k += 1
            continue
        if clocks[:-1]:  # The last one is the runner's own.
            yield clocks[:-1]
        clocks = []
        end = k + 1
        while end < len(marks) and marks[end][0] != OPERATOR_END:
            end += 1
        yield list(marks[k : end + 1])
        k = end + 2  # The runner's own reading follows.
    if clocks:
        yield clocks
