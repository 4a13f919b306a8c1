"""Run passes and prove each one as soon as it has fired; tell exactly where a wrong one is wrong.

A defect ends the run: the message names the pass, the nodes and the torch module of the first wrong
application, and where the smallest graph on which it is still wrong was saved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.errors import EdgefuseError, ParityError, StageError
from edgefuse.graph.ledger import Ledger
from edgefuse.graph.pipeline import Observer, run_passes
from edgefuse.graph.proof import (
    SAYS,
    Application,
    Failure,
    Outputs,
    Raised,
    Watched,
    failure_of,
    first_application,
    judge,
    noise_of,
    replayed,
)
from edgefuse.graph.reproduce import COMMAND, save, smallest
from edgefuse.graph.rule import Pass
from edgefuse.graph.snapshot import Snapshot
from edgefuse.graph.verify import Feed
from edgefuse.parity import difference

if TYPE_CHECKING:
    import onnx_ir as ir

log = logging.getLogger("edgefuse")


def run_proven(
    model: ir.Model,
    passes: Sequence[Pass],
    sample: Feed,
    probe: Feed,
    *,
    skip: Sequence[str] = (),
    fold_size_limit_bytes: int,
    reproducer: Path | None = None,
    observe: Observer,
) -> tuple[Ledger, Mapping[str, float]]:
    """Run passes on a normalised model, in place.

    Args:
        sample: a real sample to prove each pass on.
        probe: a random one; left out where the model has no finite answer to it.
        reproducer: the folder that a defect is saved in; None saves nothing.
        observe: called after each pass that fired and is proven.

    Returns:
        The ledger, and the largest relative error of each pass that fired.

    Raises:
        StageError, ParityError: a pass is wrong.
    """
    proof = _Proof(
        model, sample, probe, fold_size_limit_bytes=fold_size_limit_bytes, reproducer=reproducer
    )

    def prove(entry: Pass, fired: int) -> None:
        proof.check(entry.name)
        observe(entry, fired)

    with proof.located():
        _, ledger = run_passes(
            model,
            passes=proof.watch(passes, skip),
            skip=skip,
            fold_size_limit_bytes=fold_size_limit_bytes,
            observe=prove,
        )
    return ledger, proof.errors


class _Proof:
    """Watches the passes of one run: holds the graph before the next one, and its outputs."""

    def __init__(
        self,
        model: ir.Model,
        sample: Feed,
        probe: Feed,
        *,
        fold_size_limit_bytes: int,
        reproducer: Path | None = None,
    ) -> None:
        self.errors: dict[str, float] = {}
        self._model = model
        self._fold_limit = fold_size_limit_bytes
        self._folder = reproducer
        self._state = Snapshot.of(model)
        self._feeds, self._outputs = _answered(self._state, sample, probe)
        self._noise = noise_of(self._state, self._feeds, self._outputs)
        self._watched: dict[str, Watched] = {}
        self._fired: list[str] = []
        self._told: EdgefuseError | None = None

    def watch(self, passes: Sequence[Pass], skip: Sequence[str]) -> list[Pass]:
        """The passes as they are to be run."""
        self._watched = {p.name: Watched(p, skipped=p.name in skip) for p in passes}
        return [watched.entry for watched in self._watched.values()]

    def check(self, name: str) -> None:
        """Prove what a pass has just done.

        Raises:
            StageError, ParityError: it is wrong; the message names the first wrong application.
        """
        watched = self._watched[name]
        tolerance = watched.original.tolerance
        after = Snapshot.of(self._model)
        failure, error, outputs = judge(
            self._state, after, self._outputs, self._feeds, tolerance, self._noise
        )
        if failure is not None:
            number = self._first_wrong(watched, failure)
            raise self._defect([watched], failure, watched.applied[number - 1], number - 1)
        self.errors[name] = max(self.errors.get(name, 0.0), error)
        self._state, self._outputs = after, outputs
        self._fired.append(name)
        watched.applied.clear()

    @contextmanager
    def located(self) -> Iterator[None]:
        """Turn what a pass raises, and passes without an end, into the error of a defect.

        Raises:
            StageError: as :meth:`check`.
        """
        try:
            yield
        except Raised as raised:
            watched = self._watched[raised.name]
            raise self._defect(
                [watched], raised.failure, raised.application, raised.done
            ) from raised.__cause__
        except StageError as error:
            if error is self._told:
                raise
            failure = Failure("endless", error.message)
            running = [w for w in self._watched.values() if w.applied]
            if running:
                done = len(running[0].applied) - 1
                last = running[0].applied[-1]
                raise self._defect(running[:1], failure, last, done) from error
            names = sorted(
                set(self._fired[-2 * len(self._watched) :]), key=list(self._watched).index
            )
            cycle = [self._watched[name] for name in names]
            raise self._defect(cycle, failure, None, 0) from error

    def _first_wrong(self, watched: Watched, failure: Failure) -> int:
        """Number of the first application, from 1, after which the graph is wrong: by bisection."""
        state = self._state.whole()
        low, high = 1, len(watched.applied)
        while low < high:
            middle = (low + high) // 2
            found = failure_of(
                state,
                [watched.original],
                self._feeds,
                fold_size_limit_bytes=self._fold_limit,
                limit=middle,
            )
            low, high = (low, middle) if found else (middle + 1, high)
        return low

    def _defect(
        self,
        watched: Sequence[Watched],
        failure: Failure,
        application: Application | None,
        done: int,
    ) -> EdgefuseError:
        """The error of a defect, its reproducer saved."""
        passes = [w.original for w in watched]
        names = ", ".join(p.name for p in passes)
        subject = f"pass {names}" if len(passes) == 1 else f"passes {names}"
        place = f" at {application.described}" if application else ""
        if application and application.module:
            place += f" (torch module {application.module})"
        saved = "" if self._folder is None else self._save(passes, failure, application, done)
        kind = ParityError if failure.kind == "numbers" else StageError
        self._told = kind(
            f"{subject} {SAYS[failure.kind]}{place}: {failure.text}{saved}",
            hint=f"add {passes[0].name} to fuse.skip, and report this"
            + (" with the saved reproducer" if self._folder else ""),
            where=failure.where,
        )
        return self._told

    def _save(
        self,
        passes: Sequence[Pass],
        failure: Failure,
        application: Application | None,
        done: int,
    ) -> str:
        """Where the reproducer is; never an error of its own, which would hide the defect."""
        assert self._folder is not None
        limit = self._fold_limit
        try:
            state = self._state
            if done:
                state = replayed(state, passes[0], done, limit)
            if application is None:
                application = first_application(state, passes[0], limit)
            case = smallest(
                state, passes, application, self._feeds, kind=failure.kind,
                fold_size_limit_bytes=limit,
            )  # fmt: skip
            save(self._folder, case, passes, failure, application, limit)
        except Exception as error:
            log.exception("no reproducer could be saved")
            return f"; no reproducer could be saved ({type(error).__name__}: {error})"
        return f"; reproducer: {self._folder} ({COMMAND} {self._folder})"


def _answered(state: Snapshot, sample: Feed, probe: Feed) -> tuple[list[Feed], Outputs]:
    """The feeds to prove passes on, and the outputs: noise alone may have no finite answer.

    Raises:
        ParityError: the answer to the real sample is not finite, before any pass.
    """
    outputs = state.run([sample])
    difference([(outputs[0], outputs[0])], what="before any pass")
    try:
        answer = state.run([probe])
        difference([(answer[0], answer[0])])
    except EdgefuseError:
        return [sample], outputs
    return [probe, sample], [*answer, *outputs]
