"""What every pass did and did not do, and why: the record that users read.

Plain frozen data, JSON with sorted keys and no time or path in it: the same model gives the same
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class LedgerEntry:
    """One answer of one pass.

    Attributes:
        pass_name: the pass.
        status: fired (the graph changed) or refused (a candidate was left alone).
        module: torch module path of the anchor node, like ``features.0.1``; empty when unknown.
        nodes: names of the nodes concerned.
        reason: why it was refused; empty when it fired.
        remedy: what the user can do; may be empty.
        saved_bytes: bytes of tensors that no longer pass through memory.
        saved_launches: operators that no longer run.
        node: name of the node of the finished graph that holds what was rewritten; empty when
            nothing is left of it, or when it was refused.
        level: graph (weights folded, operators removed) or kernel (a group); empty when refused.
    """

    pass_name: str
    status: Literal["fired", "refused"]
    module: str
    nodes: tuple[str, ...]
    reason: str = ""
    remedy: str = ""
    saved_bytes: int = 0
    saved_launches: int = 0
    node: str = ""
    level: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "pass": self.pass_name,
            "status": self.status,
            "module": self.module,
            "nodes": list(self.nodes),
            "reason": self.reason,
            "remedy": self.remedy,
            "saved_bytes": self.saved_bytes,
            "saved_launches": self.saved_launches,
            "node": self.node,
            "level": self.level,
        }

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> LedgerEntry:
        """The inverse of :meth:`to_json`."""
        fields = {key: value for key, value in entry.items() if key not in ("pass", "nodes")}
        return LedgerEntry(pass_name=entry["pass"], nodes=tuple(entry["nodes"]), **fields)


@dataclass(frozen=True)
class Ledger:
    """Every entry, in the order of the passes and of the graph."""

    entries: tuple[LedgerEntry, ...] = ()

    def fired(self, pass_name: str) -> int:
        """How often a pass fired."""
        return sum(e.status == "fired" for e in self.entries if e.pass_name == pass_name)

    def refused(self, pass_name: str) -> tuple[LedgerEntry, ...]:
        """The refusals of a pass on the finished graph."""
        return tuple(e for e in self.entries if e.pass_name == pass_name and e.status == "refused")

    @property
    def saved_bytes(self) -> int:
        return sum(e.saved_bytes for e in self.entries)

    @property
    def saved_launches(self) -> int:
        return sum(e.saved_launches for e in self.entries)

    def to_json(self) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self.entries]
