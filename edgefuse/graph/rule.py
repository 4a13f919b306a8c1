"""What a fusion pass is: pattern, check, rewrite, as plain frozen data.

Problem: a rewrite that silently does not happen costs speed or leaves a float operator in an int8
graph. So a pass answers for every candidate node with a :class:`Match`, with a :class:`Refusal`
that says why, or with ``None`` when the node is no candidate at all.

Scope: one pass a file in ``edgefuse/passes``, registered under the file's name. Order is derived
from ``phase`` and ``after`` (:mod:`edgefuse.graph.pipeline`). Modules of passes import onnx_ir and
numpy inside functions only, so that listing the catalogue stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.registry import Registry

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

Phase = Literal["normalise", "fold", "fuse", "clean"]
PHASES: tuple[Phase, ...] = ("normalise", "fold", "fuse", "clean")
ANY = "*"


@dataclass(frozen=True)
class Context:
    """What a check may read beside the graph.

    Attributes:
        opset: version of the default operator set.
        fold_size_limit_bytes: no constant larger than this is made.
    """

    opset: int
    fold_size_limit_bytes: int


@dataclass(frozen=True)
class Match:
    """A place where the rewrite is legal.

    Attributes:
        nodes: the nodes that take part, in graph order; the last one's place is the rewrite's.
        data: what the check found out and the rewrite needs.
    """

    nodes: tuple[ir.Node, ...]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """A candidate that is left alone.

    Attributes:
        reason: one sentence that names the offending node, value or attribute.
        nodes: names of the nodes concerned, the anchor first.
        remedy: what the user can do about it; empty when nothing need be done.
    """

    reason: str
    nodes: tuple[str, ...]
    remedy: str = ""


Verdict = Match | Refusal | None


@dataclass(frozen=True)
class Pass:
    """A fusion pass.

    Attributes:
        name: the file's name, verb_object.
        summary: one line for the catalogue.
        phase: passes run by phase, in the order of ``PHASES``.
        anchors: operator types of which every node is a candidate; ``(ANY,)`` for all.
        match: the check; pure.
        rewrite: changes the graph through the builder; only called with a fresh match.
        after: passes of the same or an earlier phase that must have run before.
        tolerance: largest error of the rewritten model, relative to the largest |output|, in
            float32; 0.0 for rewrites that only change structure.
        instead_of: passes that would have done better with the same anchor: where this one fires,
            their refusals stay in the ledger, for they say what was lost.
        example: ONNX text of a graph on which it fires, shown in the catalogue before and after
            (:mod:`edgefuse.graph.example`).
    """

    name: str
    summary: str
    phase: Phase
    anchors: tuple[str, ...]
    match: Callable[[ir.Node, Context], Verdict]
    rewrite: Callable[[Match, GraphBuilder], None]
    after: tuple[str, ...] = ()
    tolerance: float = 0.0
    instead_of: tuple[str, ...] = ()
    example: str = ""


PASSES: Registry[Pass] = Registry("edgefuse.passes")
