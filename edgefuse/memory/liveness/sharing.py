"""What may share its place in an arena with what: runtimes differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sharing:
    """How a runtime lays out its arena.

    Attributes:
        alignment: bytes; every buffer is rounded up to a multiple.
        keeps_inputs: whether model inputs keep their place to the end, never written over.
        reshapes: whether a reshape's output is its input's buffer.
        elementwise: whether an element-wise operator writes over an input that nobody else reads.
        keeps_unread: whether what nobody reads keeps its place to the end.
    """

    alignment: int
    keeps_inputs: bool
    reshapes: bool
    elementwise: bool
    keeps_unread: bool = False
