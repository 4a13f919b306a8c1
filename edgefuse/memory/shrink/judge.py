"""Whose arena decides whether a rewrite helped.

Problem: the same file needs different arenas under different runtimes, so that a rewrite that helps
one can harm another. Each rewrite is judged by the arena of the runtime that will run it.

Also here: the bytes that a model's operators read and write, which a rewrite may save where it
leaves the arena as it is. Left alone: weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgefuse.memory.arena import Live, peak
from edgefuse.memory.arenas.tflite_micro import predicted_head
from edgefuse.memory.liveness.tflite import LITERT, TFLITE_MICRO, live_buffers

if TYPE_CHECKING:
    from edgefuse.tflite.read import TfliteModel

Runtime = Literal["tflite_micro", "litert"]


@dataclass(frozen=True)
class Judged:
    """An arena as foretold: ``bound_bytes`` are alive at once at the operator ``peak_step``."""

    arena_bytes: int
    bound_bytes: int
    peak_step: int
    buffers: tuple[Live, ...]


def judged(model: TfliteModel, runtime: Runtime) -> Judged:
    """The arena of a model. Under LiteRT the bytes alive at once: its planner adds what it cannot
    place better.

    Raises:
        StageError: its memory cannot be planned.
    """
    if runtime == "tflite_micro":
        head = predicted_head(model)
        most, step = peak(head.buffers)
        return Judged(head.arena_bytes, most, step, head.buffers)
    buffers = live_buffers(model, LITERT)
    most, step = peak(buffers)
    return Judged(most, most, step, buffers)


def alive_at_once(model: TfliteModel, runtime: Runtime) -> int:
    """The bound alone, which is quick: no arena of ``runtime`` is smaller."""
    return peak(live_buffers(model, TFLITE_MICRO if runtime == "tflite_micro" else LITERT))[0]


def bytes_moved(model: TfliteModel) -> int:
    """What all operators of one invoke read and write, without constants."""
    return sum(
        tensor.nbytes for operator in model.operators for tensor in model.activations_of(operator)
    )
