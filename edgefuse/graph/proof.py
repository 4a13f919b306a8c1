"""Prove every application of every pass, and find the one that is wrong.

After each pass that fired: the graph is valid ONNX; values that both graphs have kept their type
and shape; on every probe the model answers as it did before, within the pass's own tolerance. A
pass that raises, that breaks the graph, that changes the numbers or that finds no end is a defect.
It is then replayed one application at a time, from the graph before it, until the wrong one is
known; :mod:`edgefuse.graph.reproduce` cuts that out of the model and saves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from edgefuse.errors import EdgefuseError, ParityError, StageError
from edgefuse.graph.normalise import drop_dead, prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.rule import Context, Match, Pass, Verdict
from edgefuse.graph.snapshot import Snapshot
from edgefuse.graph.values import Array, describe, module_path
from edgefuse.graph.verify import Feed, check_structure, scaled_tolerance
from edgefuse.parity import difference

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

Kind = Literal["raised", "endless", "invalid", "values", "numbers"]
Outputs = Sequence[Mapping[str, Array]]
NOISE_SEED = 21
NOISES = 16
WIDEST_NOISE = 1e-3
SAYS: Mapping[Kind, str] = {
    "raised": "raised an exception",
    "endless": "never comes to an end",
    "invalid": "broke the graph",
    "values": "changed the type or shape of a value",
    "numbers": "changed the numbers",
}


@dataclass(frozen=True)
class Failure:
    """What is wrong: the kind, in words, and the place in the outputs."""

    kind: Kind
    text: str
    where: str = ""


@dataclass(frozen=True)
class Application:
    """One rewrite, or the look at one node that raised.

    Attributes:
        nodes: names of the nodes, as they are called in the graph before it.
        described: the same with their operators, for messages.
        module: torch module path of the first one.
    """

    nodes: tuple[str, ...]
    described: str
    module: str

    @classmethod
    def at(cls, nodes: Sequence[ir.Node]) -> Application:
        names = tuple(str(node.name) for node in nodes)
        shown = ", ".join(describe(node) for node in nodes[:4])
        more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
        module = next((path for node in nodes if (path := module_path(node))), "")
        return cls(names, shown + more, module)


class Raised(Exception):
    """A pass raised: not an error of the user's, so none of :mod:`edgefuse.errors`.

    Attributes:
        done: how many applications had succeeded since the pass was last proven.
    """

    def __init__(self, name: str, error: Exception, application: Application, done: int) -> None:
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
        super().__init__(text)
        self.name = name
        self.failure = Failure("raised", text)
        self.application = application
        self.done = done


class Watched:
    """A pass that records what it applies, tells what it raises, and may be stopped early."""

    def __init__(self, original: Pass, *, limit: int | None = None, skipped: bool = False) -> None:
        """Watch one pass.

        Args:
            limit: it matches nothing after so many applications.
            skipped: it is only asked where it would fire; there it may raise.
        """
        self.original = original
        self.applied: list[Application] = []
        self.entry = replace(original, match=self._match, rewrite=self._rewrite)
        self._limit = limit
        self._skipped = skipped

    def _match(self, node: ir.Node, context: Context) -> Verdict:
        if self._limit is not None and len(self.applied) >= self._limit:
            return None
        try:
            return self.original.match(node, context)
        except Exception as error:
            if self._skipped:
                return None
            raise self._raised(error, Application.at([node])) from error

    def _rewrite(self, found: Match, builder: GraphBuilder) -> None:
        application = Application.at(found.nodes)
        try:
            self.original.rewrite(found, builder)
        except Exception as error:
            raise self._raised(error, application) from error
        self.applied.append(application)

    def _raised(self, error: Exception, application: Application) -> Raised:
        return Raised(self.original.name, error, application, len(self.applied))


def judge(
    before: Snapshot,
    after: Snapshot,
    expected: Outputs,
    feeds: Sequence[Feed],
    tolerance: float,
    noise: float,
) -> tuple[Failure | None, float, Outputs]:
    """Compare a graph with the one before it.

    Args:
        expected: the outputs of ``before`` on the feeds.
        tolerance: in float32; scaled to the types of the graph.
        noise: of the graph, from :func:`noise_of`. A rewrite that rounds otherwise (a tolerance
            above 0) may differ by :data:`NOISES` of it.

    Returns:
        What is wrong if anything is, the largest relative error, and the new outputs.
    """
    try:
        check_structure(after.proto)
    except StageError as error:
        return Failure("invalid", error.message), 0.0, ()
    if text := before.difference_of_values(after):
        return Failure("values", text), 0.0, ()
    try:
        outputs = after.run(feeds)
    except EdgefuseError as error:
        return Failure("invalid", error.message), 0.0, ()
    limit = scaled_tolerance(tolerance, before.dtypes)
    if tolerance > 0:
        limit = max(limit, min(NOISES * noise, WIDEST_NOISE))
    try:
        found = difference(zip(expected, outputs), max_relative_error=limit)
    except ParityError as error:
        return Failure("numbers", error.message, error.where), 0.0, ()
    return None, found.max_rel_to_peak, outputs


def noise_of(state: Snapshot, feeds: Sequence[Feed], expected: Outputs) -> float:
    """How far one rounding of the inputs moves the outputs, relative to their peak.

    A network may amplify a rounding a thousandfold (one with random weights and many gates does).
    What is below that says nothing about a rewrite.
    """
    import numpy as np

    random = np.random.default_rng(NOISE_SEED)
    moved = [
        {
            name: value * (1 + np.finfo(value.dtype).eps * random.choice([-1, 1], value.shape))
            if np.issubdtype(value.dtype, np.floating)
            else value
            for name, value in feed.items()
        }
        for feed in feeds
    ]
    rounded = [{n: v.astype(feed[n].dtype) for n, v in m.items()} for m, feed in zip(moved, feeds)]
    try:
        return difference(zip(expected, state.run(rounded))).max_rel_to_peak
    except ParityError:
        return 0.0


def failure_of(
    proto: onnx.ModelProto,
    passes: Sequence[Pass],
    feeds: Sequence[Feed],
    *,
    fold_size_limit_bytes: int,
    limit: int | None = None,
) -> Failure | None:
    """Run passes on a graph and prove the result as a whole; what is wrong, if anything is.

    Args:
        limit: each pass is stopped after so many applications.
    """
    model = prepare(proto)
    before = Snapshot.of(model)
    expected = before.run(feeds)
    noise = noise_of(before, feeds, expected)
    watched = [Watched(entry, limit=limit).entry for entry in passes]
    try:
        run_passes(model, passes=watched, fold_size_limit_bytes=fold_size_limit_bytes)
    except Raised as raised:
        return raised.failure
    except StageError as error:
        return Failure("endless", error.message)
    tolerance = sum(entry.tolerance for entry in passes)
    return judge(before, Snapshot.of(model), expected, feeds, tolerance, noise)[0]


def replayed(
    state: Snapshot, entry: Pass, applications: int, fold_size_limit_bytes: int
) -> Snapshot:
    """The graph after so many applications of a pass to ``state``."""
    model = prepare(state.whole())
    watched = Watched(entry, limit=applications).entry
    with suppress(StageError):  # a pass without an end: stopped at the same application
        run_passes(model, passes=[watched], fold_size_limit_bytes=fold_size_limit_bytes)
    drop_dead(model)
    return Snapshot.of(model)


def first_application(state: Snapshot, entry: Pass, fold_size_limit_bytes: int) -> Application:
    """Where a pass would fire first on ``state``; it must fire somewhere."""
    model = prepare(state.whole())
    watched = Watched(entry, limit=1)
    run_passes(model, passes=[watched.entry], fold_size_limit_bytes=fold_size_limit_bytes)
    return watched.applied[0]
