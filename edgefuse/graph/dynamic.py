"""Dynamic fusion: which fused groups become one kernel, chosen from the actual shapes.

Problem: whether two neighbouring groups should be one kernel depends on the shapes and on the
machine. One launch and one intermediate tensor are saved; work may be done several times, and
fewer tiles may be left than there are cores. Candidates, all exact:

- *depthwise into projection*: a depthwise convolution whose only reader is a 1x1 convolution:
  ``p(d(x))`` in one kernel, ``d`` computed once for each tile of output channels;
- *prologue*: a pointwise group or a normalisation over the last axis, read by one MatMul, Gemm or
  1x1 convolution as its operand: as above;
- *duplicated*: a pointwise group whose every reader can compute it on the way, as operand, in its
  epilogue, or as one more pointwise operator: each reader computes it and reads its inputs again.

Choice: of all candidates the one that :mod:`edgefuse.graph.kernel` predicts to save most is taken,
the figures are taken anew, until none saves anything. Greedy, and equal inputs give equal plans.

A candidate that ``refuse`` has a reason against is not taken, whatever it saves.

Left alone: results that are outputs of the model or are read through a view; convolutions with a
window as readers, since neighbouring tiles would compute the same elements again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from edgefuse.graph.cost import Balance, Cost, kernels, total
from edgefuse.graph.flops import POINTWISE
from edgefuse.graph.kernel import USUAL_TILE, Estimate, Group, Tile, estimate, group
from edgefuse.graph.values import same_shape

if TYPE_CHECKING:
    import onnx_ir as ir

Kernels: TypeAlias = tuple[tuple[str, ...], ...]
DEPTHWISE, PROLOGUE, DUPLICATED = "depthwise into projection", "prologue", "duplicated"


@dataclass(frozen=True)
class Decision:
    """One candidate, taken or left.

    Attributes:
        candidate: which of the three.
        producer: name of the group that would move.
        readers: names of the groups that would compute it.
        saved_us: what the model predicts; negative when apart is faster.
        reason: the figures, in words.
    """

    candidate: str
    producer: str
    readers: tuple[str, ...]
    taken: bool
    saved_us: float
    reason: str


@dataclass(frozen=True)
class Plan:
    """The kernels of one bucket.

    Attributes:
        bucket: its label.
        kernels: names of the groups of each kernel, in the order of the kernels' last groups; a
            group may be in several.
        before, after: the sum of the kernels' costs, one group a kernel and as planned.
        before_us, after_us: predicted times.
        decisions: in graph order of the producers.
    """

    bucket: str
    kernels: Kernels
    before: Cost
    after: Cost
    before_us: float
    after_us: float
    decisions: tuple[Decision, ...]

    def to_json(self) -> dict[str, Any]:
        """As evidence and reports show it."""
        return {
            "bucket": self.bucket,
            "kernels": [list(names) for names in self.kernels],
            "before": {**self.before.to_json(), "time_us": _round(self.before_us)},
            "after": {**self.after.to_json(), "time_us": _round(self.after_us)},
            "decisions": [
                {
                    "candidate": d.candidate,
                    "producer": d.producer,
                    "readers": list(d.readers),
                    "taken": d.taken,
                    "saved_us": _round(d.saved_us),
                    "reason": d.reason,
                }
                for d in self.decisions
            ],
        }


def plan_kernels(
    model: ir.Model,
    balance: Balance,
    *,
    bucket: str = "",
    tile: Tile = USUAL_TILE,
    float_bytes: int | None = None,
    refuse: Callable[[Kernels], str] = lambda _: "",
) -> Plan:
    """Choose the kernels of a fused model at its static shapes.

    Args:
        model: its groups spelt out, from :func:`edgefuse.graph.shapes.at_shapes` or ``spelt_out``.
        bucket: a label for the plan.
        float_bytes: bytes of a floating-point element on the machine, where not the model's.
        refuse: why these kernels must not be, in words; empty when they may.

    Raises:
        StageError: a shape or type is not known.
    """
    return _Planner(model, balance, tile, float_bytes, refuse).plan(bucket)


def one_group_a_kernel(
    model: ir.Model, *, bucket: str = "", float_bytes: int | None = None
) -> Plan:
    """The plan without a balance: nothing is chosen, and no time is predicted."""
    groups = [group(name, nodes) for name, nodes in kernels(model).items()]
    nothing = Balance(0.0, 1.0, 1.0)
    cost = total(estimate(g, {}, nothing, USUAL_TILE, float_bytes).cost for g in groups)
    return Plan(bucket, tuple((g.name,) for g in groups), cost, cost, 0.0, 0.0, ())


@dataclass(frozen=True, eq=False)
class _Candidate:
    kind: str
    producer: Group
    readers: tuple[tuple[Group, bool], ...]


class _Planner:
    """The kernels as they stand: by root, the groups computed on the way and how."""

    def __init__(
        self,
        model: ir.Model,
        balance: Balance,
        tile: Tile,
        float_bytes: int | None,
        refuse: Callable[[Kernels], str],
    ) -> None:
        self._balance, self._tile, self._float_bytes = balance, tile, float_bytes
        self._refuse = refuse
        self._groups = [group(name, nodes) for name, nodes in kernels(model).items()]
        self._rank = {g: place for place, g in enumerate(self._groups)}
        self._of = {node: g for g in self._groups for node in g.nodes}
        self._inner: dict[Group, dict[Group, bool]] = {g: {} for g in self._groups}
        self._known: dict[tuple[Any, ...], Estimate] = {}

    def plan(self, bucket: str) -> Plan:
        before = [self._estimate(g, {}) for g in self._groups]
        taken: list[Decision] = []
        while True:
            weighed = [(c, self._weigh(c)) for c in self._candidates()]
            best = self._best(weighed)
            if best is None:
                break
            candidate, decision = best
            self._inner = self._taken(candidate)
            taken.append(decision)
        after = [self._estimate(root, inner) for root, inner in self._inner.items()]
        decisions = taken + [decision for _, decision in weighed]
        places = {g.name: place for g, place in self._rank.items()}
        return Plan(
            bucket,
            self._kernels(self._inner),
            total(e.cost for e in before),
            total(e.cost for e in after),
            sum(e.time_s for e in before) * 1e6,
            sum(e.time_s for e in after) * 1e6,
            tuple(sorted(decisions, key=lambda d: places[d.producer])),
        )

    def _best(
        self, weighed: list[tuple[_Candidate, Decision]]
    ) -> tuple[_Candidate, Decision] | None:
        """The candidate that saves most and is not refused; refusals are entered in ``weighed``."""
        good = [place for place, (_, decision) in enumerate(weighed) if decision.taken]
        for place in sorted(good, key=lambda place: -weighed[place][1].saved_us):
            candidate, decision = weighed[place]
            reason = self._refuse(self._kernels(self._taken(candidate)))
            if not reason:
                return candidate, decision
            refused = replace(decision, taken=False, reason=f"{decision.reason}; refused: {reason}")
            weighed[place] = candidate, refused
        return None

    def _kernels(self, made: Mapping[Group, Mapping[Group, bool]]) -> Kernels:
        return tuple(
            (*(g.name for g in sorted(inner, key=self._rank.__getitem__)), root.name)
            for root, inner in made.items()
        )

    def _estimate(self, root: Group, inner: Mapping[Group, bool]) -> Estimate:
        key = (root, frozenset(inner.items()))
        if key not in self._known:
            ordered = {g: inner[g] for g in sorted(inner, key=self._rank.__getitem__)}
            self._known[key] = estimate(root, ordered, self._balance, self._tile, self._float_bytes)
        return self._known[key]

    def _candidates(self) -> Iterator[_Candidate]:
        for producer in self._inner:
            if producer.kind in ("depthwise", "pointwise", "rowwise") and (
                found := self._candidate(producer)
            ):
                yield found

    def _candidate(self, producer: Group) -> _Candidate | None:
        """How every reader could compute the producer on the way; None when one cannot."""
        result = producer.result
        if result is None or result.is_graph_output():
            return None
        readers: dict[Group, bool] = {}
        for root, inner in self._inner.items():
            if root is producer:
                continue
            for part in (root, *inner):
                way = _way(producer, part, result)
                if way == "":
                    continue
                if way is None:
                    return None
                of_operand = way == "operand" or inner.get(part, False)
                readers[root] = readers.get(root, False) or of_operand
        users = {self._of.get(use.node) for use in result.uses()} - {producer}
        if not readers or None in users:
            return None
        if len(readers) > 1 and producer.kind != "pointwise":
            return None
        if len(readers) > 1:
            kind = DUPLICATED
        else:
            kind = DEPTHWISE if producer.kind == "depthwise" else PROLOGUE
        return _Candidate(kind, producer, tuple(readers.items()))

    def _merged(self, candidate: _Candidate, root: Group, of_operand: bool) -> dict[Group, bool]:
        """What a reader would compute on the way."""
        moved = (candidate.producer, *self._inner[candidate.producer])
        inner = dict(self._inner[root])
        return inner | {g: of_operand or inner.get(g, False) for g in moved}

    def _weigh(self, candidate: _Candidate) -> Decision:
        producer = candidate.producer
        apart = [self._estimate(producer, self._inner[producer])]
        together = []
        for root, of_operand in candidate.readers:
            apart.append(self._estimate(root, self._inner[root]))
            together.append(self._estimate(root, self._merged(candidate, root, of_operand)))
        saved_us = (sum(e.time_s for e in apart) - sum(e.time_s for e in together)) * 1e6
        return Decision(
            candidate.kind,
            producer.name,
            tuple(root.name for root, _ in candidate.readers),
            saved_us > 0,
            saved_us,
            _reason(saved_us, apart, together, self._balance),
        )

    def _taken(self, candidate: _Candidate) -> dict[Group, dict[Group, bool]]:
        """The kernels with a candidate taken."""
        made = dict(self._inner)
        for root, of_operand in candidate.readers:
            made[root] = self._merged(candidate, root, of_operand)
        del made[candidate.producer]
        return made


def _way(producer: Group, reader: Group, result: ir.Value) -> str | None:
    """How a group may compute the producer: ``operand``, ``element``; None: not at all.

    Empty when the group does not read the result.
    """
    nodes = [node for node in reader.nodes if any(v is result for v in node.inputs)]
    if not nodes:
        return ""
    product = next((n for n in reader.nodes if n.op_type not in POINTWISE), None)
    if product is not None and reader.kind == "projection" and nodes == [product]:
        once = [v is result for v in product.inputs].count(True) == 1
        by_axis = {"depthwise": ("Conv",), "rowwise": ("MatMul", "Gemm")}
        allowed = by_axis.get(producer.kind, (product.op_type,))
        fits = once and result is reader.operand and product.op_type in allowed
        return "operand" if fits else None
    if producer.kind != "pointwise" or any(n.op_type not in POINTWISE for n in nodes):
        return None
    if not all(same_shape(result, v) for n in nodes for v in n.outputs):
        return None
    if reader.kind == "pointwise":
        return "element"
    if product is None or reader.kind not in ("projection", "matrix", "depthwise"):
        return None
    place = reader.nodes.index(product)
    if all(reader.nodes.index(n) > place for n in nodes):
        return "element"
    return "operand" if reader.kind == "projection" else None


def _reason(
    saved_us: float, apart: list[Estimate], together: list[Estimate], balance: Balance
) -> str:
    parts = " + ".join(_words(e, balance) for e in apart)
    whole = " + ".join(_words(e, balance) for e in together)
    one = "one kernel" if len(together) == 1 else f"{len(together)} kernels"
    verdict = f"saves {saved_us:.3g} us" if saved_us > 0 else f"costs {-saved_us:.3g} us more"
    return f"{one}: {whole}; {len(apart)} kernels apart: {parts}; together {verdict}"


def _words(e: Estimate, balance: Balance) -> str:
    """One kernel's figures: ``8.6 us (memory 2.0, compute 6.6, operand 5 times, 245 tiles)``."""
    share = min(1.0, e.tiles / balance.parallel_tiles)
    busy = f", {e.tiles} tiles for {balance.parallel_tiles} cores" if share < 1 else ""
    again = f", operand {e.recompute} times" if e.recompute > 1 else ""
    memory = e.cost.memory_s(balance) * 1e6 / share
    compute = e.cost.compute_s(balance) * 1e6 / share
    launch = e.cost.launches * balance.launch_s * 1e6
    return (
        f"{e.time_s * 1e6:.3g} us (launch {launch:.3g}, memory {memory:.3g}, "
        f"compute {compute:.3g}{again}{busy})"
    )


def _round(figure: float) -> float:
    """Four significant digits."""
    return float(f"{figure:.4g}")
