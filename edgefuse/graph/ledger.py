"""What every pass did and did not do, and why: the record that users read.

Plain frozen data, JSON with sorted keys and no time or path in it: the same model gives the same
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class LedgerEntry:
    """One answer of one pass.

    Attributes:
        pass_name: the pass.
        verdict: fired (the graph changed) or refused (a candidate was left alone).
        module: torch module path of the anchor node, like ``features.0.1``; empty when unknown.
        nodes: names of the nodes concerned.
        reason: why it was refused; empty when it fired.
        remedy: what the user can do; may be empty.
        intermediate_bytes_saved: bytes of tensors that no longer pass through memory.
        launches_saved: operators that no longer run.
    """

    pass_name: str
    verdict: Literal["fired", "refused"]
    module: str
    nodes: tuple[str, ...]
    reason: str = ""
    remedy: str = ""
    intermediate_bytes_saved: int = 0
    launches_saved: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "pass": self.pass_name,
            "verdict": self.verdict,
            "module": self.module,
            "nodes": list(self.nodes),
            "reason": self.reason,
            "remedy": self.remedy,
            "intermediate_bytes_saved": self.intermediate_bytes_saved,
            "launches_saved": self.launches_saved,
        }


@dataclass(frozen=True)
class Ledger:
    """Every entry, in the order of the passes and of the graph."""

    entries: tuple[LedgerEntry, ...] = ()

    def fired(self, pass_name: str) -> int:
        """How often a pass fired."""
        return sum(e.verdict == "fired" for e in self.entries if e.pass_name == pass_name)

    def refused(self, pass_name: str) -> tuple[LedgerEntry, ...]:
        """The refusals of a pass on the finished graph."""
        return tuple(e for e in self.entries if e.pass_name == pass_name and e.verdict == "refused")

    @property
    def intermediate_bytes_saved(self) -> int:
        return sum(e.intermediate_bytes_saved for e in self.entries)

    @property
    def launches_saved(self) -> int:
        return sum(e.launches_saved for e in self.entries)

    def to_json(self) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self.entries]
