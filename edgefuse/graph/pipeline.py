"""Order the passes and run each to its fixed point, in graph order, until nothing fires.

Order: phase by phase; inside a phase a pass runs once every pass it names in ``after`` has run,
ties by name. A pass runs only while those before it in its phase find nothing more, and a phase
only once the one before has come to rest: no group is built around what could still be folded.
The whole sequence is repeated until one round fires nothing, so a finished graph is a fixed point
of every pass. Refusals are those of that last round, and those that another pass settled for
(``instead_of``). A pass that is skipped changes nothing; where it would have fired when its turn
came first is recorded as a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from edgefuse.errors import StageError
from edgefuse.graph.builder import GraphBuilder, producers
from edgefuse.graph.ledger import Ledger, LedgerEntry
from edgefuse.graph.normalise import drop_dead, infer_shapes
from edgefuse.graph.rule import ANY, PASSES, PHASES, Context, Match, Pass, Refusal
from edgefuse.graph.values import module_path, origin

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_ROUNDS = 20
UNDO_HINT = "two passes undo each other: skip passes one by one to find them, and report it"
SKIP_REMEDY = "take the pass out of fuse.skip"
Observer = Callable[[Pass, int], None]


def ordered(passes: Mapping[str, Pass]) -> list[Pass]:
    """Passes in the order they run.

    Raises:
        ValueError: an unknown pass or a later phase in ``after``, or a cycle.
    """
    for entry in passes.values():
        for earlier in entry.after:
            if earlier not in passes:
                raise ValueError(f"{entry.name} runs after {earlier!r}, which does not exist")
            if PHASES.index(passes[earlier].phase) > PHASES.index(entry.phase):
                raise ValueError(f"{entry.name} runs after {earlier!r}, which is of a later phase")
    done: list[Pass] = []
    for phase in PHASES:
        waiting = {name: p for name, p in sorted(passes.items()) if p.phase == phase}
        while waiting:
            free = [p for p in waiting.values() if not any(a in waiting for a in p.after)]
            if not free:
                raise ValueError(f"the passes {sorted(waiting)} wait for each other")
            done.append(free[0])
            del waiting[free[0].name]
    return done


def ordered_passes() -> list[Pass]:
    """Every registered pass, in the order they run."""
    return ordered(PASSES.all())


def run_passes(
    model: ir.Model,
    *,
    skip: Sequence[str] = (),
    fold_size_limit_bytes: int = 1 << 22,
    passes: Sequence[Pass] | None = None,
    observe: Observer | None = None,
) -> tuple[ir.Model, Ledger]:
    """Run every pass on a normalised model, in place.

    Args:
        model: from :func:`edgefuse.graph.normalise.prepare`.
        skip: names of passes not to run.
        fold_size_limit_bytes: no constant larger than this is made.
        passes: what to run, in order; None for every registered pass.
        observe: called after a pass that fired in a round, with the number of times.

    Raises:
        StageError: when the passes find no fixed point.
    """
    if passes is None:
        passes = ordered_passes()
    context = Context(int(model.opset_imports.get("", 1)), fold_size_limit_bytes)
    run = _Run(GraphBuilder(model), context, frozenset(skip), observe)
    phases = [list(group) for _, group in groupby(passes, key=lambda p: p.phase)]
    for _ in range(MAX_ROUNDS):
        before = len(run.fired)
        refused: list[LedgerEntry] = []
        for phase in phases:
            refused += run.phase(phase, refused)
        if len(run.fired) == before:
            kept = run.would + run.settled + refused
            return model, Ledger(tuple(_sorted(passes, _placed(run.fired, model) + kept)))
    raise StageError(f"the passes still change the graph after {MAX_ROUNDS} rounds", hint=UNDO_HINT)


@dataclass
class _Run:
    """The passes at work on one model, and what they have answered so far."""

    builder: GraphBuilder
    context: Context
    skip: frozenset[str]
    observe: Observer | None
    fired: list[LedgerEntry] = field(default_factory=list)
    settled: list[LedgerEntry] = field(default_factory=list)
    would: list[LedgerEntry] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _version: int = 0
    _rested: dict[str, tuple[int, list[LedgerEntry]]] = field(default_factory=dict)
    _candidates: _Candidates = field(default_factory=lambda: _Candidates())

    def phase(self, passes: Sequence[Pass], earlier: Sequence[LedgerEntry]) -> list[LedgerEntry]:
        """Run a phase until none fires, from its first pass again after each that did.

        Args:
            earlier: the refusals of the phases before.

        Returns:
            The refusals that stand at the end.
        """
        rounds = MAX_ROUNDS * len(passes)
        for _ in range(rounds):
            refused: list[LedgerEntry] = []
            for entry in passes:
                if entry.name in self.skip:
                    self._skip(entry)
                    continue
                done, refusals = self._to_rest(entry)
                if done:
                    self._settle(entry, done, [*earlier, *refused])
                    break
                refused += refusals
            else:
                return refused
        raise StageError(f"the passes still change the graph after {rounds} rounds", hint=UNDO_HINT)

    def _to_rest(self, entry: Pass) -> tuple[list[LedgerEntry], list[LedgerEntry]]:
        """What the pass does now; its last refusals where the graph is still as it left it."""
        version, refusals = self._rested.get(entry.name, (-1, []))
        if version == self._version:
            return [], refusals
        done, refusals = _to_fixed_point(entry, self.builder, self.context, self._candidates)
        self._version += bool(done)
        if not done:
            self._rested[entry.name] = self._version, refusals
        return done, refusals

    def _skip(self, entry: Pass) -> None:
        if entry.name not in self._seen:
            self._seen.add(entry.name)
            self.would += _would_fire(
                entry, self._candidates.of(entry, self.builder.model), self.context
            )

    def _settle(self, entry: Pass, done: list[LedgerEntry], refused: list[LedgerEntry]) -> None:
        """Record what a pass did, keep the refusals it stands in for, tidy the graph."""
        model = self.builder.model
        self.fired += done
        taken = {name for e in done for name in e.nodes}
        rivals = [e for e in refused if e.pass_name in entry.instead_of]
        self.settled += [e for e in rivals if e.nodes[0] in taken]
        drop_dead(model)
        self._candidates.forget()
        if _shapes_missing(model):
            infer_shapes(model)
        if self.observe is not None:
            self.observe(entry, len(done))


def _sorted(passes: Sequence[Pass], entries: list[LedgerEntry]) -> list[LedgerEntry]:
    rank = {p.name: i for i, p in enumerate(passes)}
    return sorted(entries, key=lambda e: (rank[e.pass_name], e.status))


def _would_fire(entry: Pass, nodes: Sequence[ir.Node], context: Context) -> list[LedgerEntry]:
    """Where a skipped pass would have fired, as refusals: what is missed is accounted for."""
    found = []
    for node in nodes:
        if isinstance(verdict := entry.match(node, context), Match):
            names = tuple(str(n.name) for n in verdict.nodes)
            refusal = Refusal("the recipe skips this pass (fuse.skip)", names, SKIP_REMEDY)
            found.append(_refused(entry, verdict.nodes[0], refusal))
    return found


def _placed(fired: Sequence[LedgerEntry], model: ir.Model) -> list[LedgerEntry]:
    """The entries with the node of the finished graph that holds what they rewrote."""
    import onnx_ir as ir

    holder = {
        name: str(node.name)
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        for name in origin(node)[0]
    }
    return [
        replace(entry, node=next((holder[n] for n in entry.nodes if n in holder), ""))
        for entry in fired
    ]


def _to_fixed_point(
    entry: Pass, builder: GraphBuilder, context: Context, candidates: _Candidates
) -> tuple[list[LedgerEntry], list[LedgerEntry]]:
    """Sweep the graph until the pass fires nowhere: what fired, and the last sweep's refusals."""
    fired: list[LedgerEntry] = []
    for _ in range(MAX_ROUNDS):
        before = len(fired)
        refused: list[LedgerEntry] = []
        for node in candidates.of(entry, builder.model):
            if node.graph is None:
                continue
            verdict = entry.match(node, context)
            if isinstance(verdict, Match):
                fired.append(_fire(entry, verdict, builder))
            elif isinstance(verdict, Refusal):
                refused.append(_refused(entry, node, verdict))
        if len(fired) == before:
            return fired, refused
        candidates.forget()
    raise StageError(f"pass {entry.name} still changes the graph after {MAX_ROUNDS} sweeps")


class _Candidates:
    """The standard nodes of a model, subgraphs included, in graph order; walked once a change."""

    def __init__(self) -> None:
        self._nodes: list[ir.Node] | None = None

    def of(self, entry: Pass, model: ir.Model) -> list[ir.Node]:
        """Those that the pass anchors on."""
        import onnx_ir as ir

        if self._nodes is None:
            every = ir.traversal.RecursiveGraphIterator(model.graph)
            self._nodes = [node for node in every if node.domain == ""]
        if ANY in entry.anchors:
            return list(self._nodes)
        return [node for node in self._nodes if node.op_type in entry.anchors]

    def forget(self) -> None:
        """The graph has changed."""
        self._nodes = None


def _shapes_missing(model: ir.Model) -> bool:
    """Whether a type, a shape or an extent is open: it may be known by now."""
    import onnx_ir as ir

    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    values = [v for node in nodes for v in node.outputs if v.name]
    return any(
        v.shape is None or v.dtype is None or not all(isinstance(d, int) for d in v.shape)
        for v in values
    )


def _fire(entry: Pass, match: Match, builder: GraphBuilder) -> LedgerEntry:
    names = tuple(name for node in match.nodes for name in origin(node)[0])
    module = module_path(match.nodes[0])
    launches, saved = builder.launches_saved, builder.bytes_saved
    behind = [producer for node in match.nodes for producer in producers(node)]
    entry.rewrite(match, builder)
    builder.remove_unread(behind)
    return LedgerEntry(
        pass_name=entry.name,
        status="fired",
        module=module,
        nodes=names,
        saved_bytes=builder.bytes_saved - saved,
        saved_launches=builder.launches_saved - launches,
        level="kernel" if entry.phase == "fuse" else "graph",
    )


def _refused(entry: Pass, node: ir.Node, refusal: Refusal) -> LedgerEntry:
    return LedgerEntry(
        pass_name=entry.name,
        status="refused",
        module=module_path(node),
        nodes=tuple(dict.fromkeys((str(node.name), *refusal.nodes))),
        reason=refusal.reason,
        remedy=refusal.remedy,
    )
