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
from collections.abc import Iterator, Mapping, Sequence
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
_AT_ONCE = 2
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
        environment: added to what every task is started with.
    """

    name: str
    module: str
    job: Mapping[str, Any]
    log: Path
    folder: Path | None = None
    after: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


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

    def ready(self, answer: Mapping[str, Any]) -> None:
        """Take the worker's first answer."""
        if "unavailable" in answer:
            self.status, self.reason = "unavailable", answer["unavailable"]
        else:
            self.answer = answer

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
        preparation = _Preparation(children, environment, list(tasks))
        while preparation.unfinished:
            preparation.start()
            for name, outcome in preparation.ended():
                if isinstance(outcome, EdgefuseError) and name in by_name:
                    by_name[name].fail(outcome)
                elif name in by_name:
                    by_name[name].ready(outcome)
                prepared(len(preparation.done), len(tasks), name)
        there = [m for m in rows if m.status == "measured"]
        pairs = [(m, preparation.talks[m.row.name]) for m in there]
        _measure(pairs, rounds, invokes, measured)


class _Preparation:
    """The tasks on their way to ready, two at a time.

    Attributes:
        done: names of the tasks that ended, well or not.
        talks: their children, by name; those that failed are stopped.
    """

    def __init__(
        self, children: ExitStack, environment: Mapping[str, str], tasks: list[Task]
    ) -> None:
        self.done: set[str] = set()
        self.talks: dict[str, Conversation] = {}
        self._children, self._environment, self._waiting = children, environment, tasks
        self._running: dict[str, float] = {}
        self._failed: dict[str, EdgefuseError] = {}

    @property
    def unfinished(self) -> bool:
        return bool(self._waiting or self._running)

    def start(self) -> None:
        """Start what may start, as far as there are CPUs."""
        for task in list(self._waiting):
            if len(self._running) >= min(_AT_ONCE, os.cpu_count() or 1):
                return
            if task.after in self._failed or (task.after and task.after not in self.done):
                continue
            self._waiting.remove(task)
            environment = {**self._environment, **task.environment}
            talk = self._children.enter_context(
                conversing(task.module, task.log, folder=task.folder, environment=environment)
            )
            talk.tell(task.job)
            self.talks[task.name] = talk
            self._running[task.name] = time.monotonic()

    def ended(self) -> Iterator[tuple[str, Any]]:
        """Tasks that have ended since, with their answers or errors."""
        for task in [t for t in self._waiting if t.after in self._failed]:
            self._waiting.remove(task)
            yield self._end(task.name, self._failed[task.after])
        for name, begun in list(self._running.items()):
            try:
                outcome: Any = self.talks[name].hear(_POLL_S)
                if outcome is None and time.monotonic() - begun > _PREPARE_LIMIT_S:
                    raise ToolError(f"not ready after {_PREPARE_LIMIT_S:g} s")
            except EdgefuseError as error:
                outcome = error
            if outcome is not None:
                del self._running[name]
                yield self._end(name, outcome)

    def _end(self, name: str, outcome: Any) -> tuple[str, Any]:
        self.done.add(name)
        if isinstance(outcome, EdgefuseError):
            self._failed[name] = outcome
            if name in self.talks:
                self.talks[name].stop()
        return name, outcome


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
