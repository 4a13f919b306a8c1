"""All rows measured in one window of time: each in its own process, in turns.

Problem: the speed of a machine drifts by more than the difference that is asked for. So every row
lives in a process of its own, loaded and warmed up before the first is timed, and in each round
every row runs one short burst while the others wait:
ratio = median over rounds of (the base's median in the round / the row's median in the round).

Scope: the order turns by one place each round and runs backwards in every second one, so that no
row always follows the same other. A burst that takes long ends early: slow rows have fewer samples.
Left alone: CPU affinity and frequency.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgefuse.child import Conversation, conversing
from edgefuse.compare.rows import Row
from edgefuse.errors import EdgefuseError, ToolError
from edgefuse.stage import Progress

WORKER = "edgefuse.compare.worker"
BURST_S = 0.2
_POLL_S = 0.05
_PREPARE_LIMIT_S = 900.0
_BURST_LIMIT_S = 120.0
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "1",
    "PYTHONHASHSEED": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


@dataclass(frozen=True)
class Task:
    """Something to be made ready in a child: a row, or what a row needs first.

    Attributes:
        name: of the row, or of the file that it makes.
        module: the worker's.
        job: its first job.
        log: where its standard error goes.
        folder: its working folder; None for ours.
        after: the task that must have succeeded before it; empty for none.
    """

    name: str
    module: str
    job: Mapping[str, Any]
    log: Path
    folder: Path | None = None
    after: str = ""


@dataclass
class Measured:
    """What became of a row.

    Attributes:
        status: ``measured``; ``unavailable`` here, which is no failure; ``error``.
        reason: why it was not measured.
        answer: operators, fusions, versions, note.
        bursts_ms: times in milliseconds, [round][invocation].
        cpu_ms: CPU time of all threads in each of these, in milliseconds.
    """

    row: Row
    status: Literal["measured", "unavailable", "error"] = "measured"
    reason: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)
    bursts_ms: list[list[float]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def fail(self, error: EdgefuseError) -> None:
        self.status, self.reason = "error", error.message
        if error.where:
            self.reason += f" ({error.where})"


def order_of(count: int, turn: int) -> list[int]:
    """Places in the order of a round: the first moves on by one, every second goes backwards."""
    step = -1 if turn % 2 else 1
    return [(turn + step * k) % count for k in range(count)]


def run(
    rows: Sequence[Measured],
    tasks: Sequence[Task],
    *,
    rounds: int,
    invokes: int,
    scratch: Path,
    prepared: Progress,
    measured: Progress,
) -> None:
    """Prepare all tasks, then time the rows among them; fills in ``rows``.

    Args:
        rows: those of status ``measured`` have a task of their name.
        tasks: in the order to start.
        scratch: a folder that is removed afterwards, for what tools keep between runs.
        prepared, measured: progress of the two parts.
    """
    by_name = {m.row.name: m for m in rows}
    environment = {**_ONE_THREAD, "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor")}
    with ExitStack() as children:
        ready: dict[str, Conversation] = {}
        running: dict[str, tuple[Conversation, float]] = {}
        waiting, done, failed = list(tasks), set[str](), dict[str, EdgefuseError]()

        def end(name: str, error: EdgefuseError | None) -> None:
            done.add(name)
            if error is not None:
                failed[name] = error
                if name in by_name:
                    by_name[name].fail(error)
            prepared(len(done), len(tasks), name)

        while waiting or running:
            for task in [t for t in waiting if t.after in failed]:
                waiting.remove(task)
                end(task.name, failed[task.after])
            for task in [t for t in waiting if not t.after or t.after in done]:
                if len(running) >= min(2, os.cpu_count() or 1):
                    break
                waiting.remove(task)
                talk = children.enter_context(
                    conversing(task.module, task.log, folder=task.folder, environment=environment)
                )
                talk.tell(task.job)
                running[task.name] = talk, time.monotonic()
            for name, (talk, begun) in list(running.items()):
                try:
                    answer = talk.hear(_POLL_S)
                    if answer is None and time.monotonic() - begun > _PREPARE_LIMIT_S:
                        raise ToolError(f"not ready after {_PREPARE_LIMIT_S:g} s")
                except EdgefuseError as error:
                    talk.stop()
                    del running[name]
                    end(name, error)
                    continue
                if answer is None:
                    continue
                del running[name]
                if name not in by_name:
                    talk.stop()
                elif "unavailable" in answer:
                    talk.stop()
                    by_name[name].status = "unavailable"
                    by_name[name].reason = answer["unavailable"]
                else:
                    ready[name] = talk
                    by_name[name].answer = answer
                end(name, None)
        _measure([(by_name[n], ready[n]) for n in by_name if n in ready], rounds, invokes, measured)


def _measure(
    pairs: Sequence[tuple[Measured, Conversation]],
    rounds: int,
    invokes: int,
    progress: Progress,
) -> None:
    job = {"do": "burst", "invokes": invokes, "limit_s": BURST_S}
    for turn in range(rounds):
        for place in order_of(len(pairs), turn):
            row, talk = pairs[place]
            if row.status != "measured":
                continue
            try:
                answer = talk.ask(job, _BURST_LIMIT_S)
            except EdgefuseError as error:
                talk.stop()
                row.fail(error)
                continue
            row.bursts_ms.append(answer["ms"])
            row.cpu_ms += answer["cpu_ms"]
        progress(turn + 1, rounds, "rounds")
