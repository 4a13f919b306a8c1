"""Whose arena decides whether a rewrite helped.

Problem: the same file needs different arenas under different runtimes, so that a rewrite that helps
one can harm another. Each rewrite is judged by the arena of the runtime that will run it.

Also here: the bytes that a model's operators read and write, which a rewrite may save where it
leaves the arena as it is. Left alone: weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from edgefuse.memory.arena import Live, peak
from edgefuse.memory.arenas.litert import predicted_arena
from edgefuse.memory.arenas.tflite_micro import predicted_head
from edgefuse.memory.liveness.sharing import Sharing
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
    """The arena of a model: tflite-micro's head, or LiteRT's arena with its built-in kernels.

    Raises:
        StageError: its memory cannot be planned.
    """
    arena = predicted_head(model) if runtime == "tflite_micro" else predicted_arena(model)
    return Judged(arena.arena_bytes, arena.bound_bytes, arena.peak_step, arena.buffers)


def sharing_of(runtime: Runtime) -> Sharing:
    """How a runtime lays out its arena."""
    return TFLITE_MICRO if runtime == "tflite_micro" else replace(LITERT, alignment=1)


def alive_at_once(model: TfliteModel, runtime: Runtime) -> int:
    """The bound alone, without scratch, which is quick: no arena of ``runtime`` is smaller."""
    return peak(live_buffers(model, sharing_of(runtime)))[0]


def bytes_moved(model: TfliteModel) -> int:
    """What all operators of one invoke read and write, without constants."""
    return sum(
        tensor.nbytes for operator in model.operators for tensor in model.activations_of(operator)
    )
