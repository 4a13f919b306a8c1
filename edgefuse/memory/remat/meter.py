"""Peak bytes of a training step, the same on every run.

    peak = max over the step's allocations and releases, in order, of their running sum

Counted is what the step itself takes from torch's allocator above what was held when it began:
activations, gradients of parameters that had none, temporaries. Parameters, the optimiser's state
and the inputs lie outside. The events are those of torch's profiler on the CPU. Left out: what a
library takes past torch's allocator (oneDNN's scratch, a few KB to a few MB a convolution),
fragmentation, and other devices.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_MARK = "edgefuse mark: "
# What the profiler's library says of itself whatever it is told.
_CHATTER = re.compile(
    rb"^(?:(?:USDT|STAGE|INFO):|.*before the profiling started).*\n?", re.MULTILINE
)


@dataclass(frozen=True)
class Levels:
    """Bytes above those at the beginning of a step.

    Attributes:
        peak_bytes: the most.
        end_bytes: what the step leaves behind.
        marks: (name, bytes then, the most since the mark before), in order.
    """

    peak_bytes: int
    end_bytes: int
    marks: tuple[tuple[str, int, int], ...]


def mark(name: str) -> None:
    """Note the bytes held at this point of a step that :func:`levels` watches."""
    import torch

    with torch.profiler.record_function(_MARK + name):
        pass


def peak_bytes(step: Callable[[], object]) -> int:
    """The peak of one call of ``step`` on the CPU, above what was held before it."""
    return levels(step).peak_bytes


def levels(step: Callable[[], object]) -> Levels:
    """Watch one call of ``step`` on the CPU."""
    import torch

    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    )
    with _silent(), _uncollected(), profiler:
        step()
    events = [
        (event.start_ns(), event.name(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]" or event.name().startswith(_MARK)
    ]
    held = peak = since = 0
    marks = []
    for _, name, size in sorted(events, key=lambda event: event[0]):
        if name == "[memory]":
            held += size
            peak, since = max(peak, held), max(since, held)
        else:
            marks.append((name.removeprefix(_MARK), held, since))
            since = held
    return Levels(peak, held, tuple(marks))


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: it comes when it likes, and would free what it finds."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _silent() -> Iterator[None]:
    """Take the profiler's chatter out of what this process writes to standard error meanwhile."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            if said := _CHATTER.sub(b"", caught.read()):
                os.write(2, said)
