"""Breaches of a recipe's contract: what was promised, what the int8 file holds, where it was lost.

A fusion is lost at one of four hops: ``export`` (the exported graph holds no candidate), ``fuse``
(a pass refused it, or is skipped), ``convert`` (the float file computes it in several operators),
``quantize`` (the int8 file does).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefuse.recipe.fusion import Contract
from edgefuse.tflite.contract import Row
from edgefuse.tflite.inspect import WEIGHTED

HOPS: Mapping[str, str] = {
    "export": "export: source to ONNX",
    "fuse": "fuse: unfused to fused ONNX",
    "convert": "convert: fused ONNX to float TFLite",
    "quantize": "quantize: float to int8 TFLite",
}


_NO_MODULES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Breach:
    """One promise that the final file does not keep.

    Attributes:
        key: the contract's key, dotted.
        found, promised: how many there are, and should be.
        module: torch module of what was lost, its node where the graph knows no module; empty when
            no one place is to blame.
        hop: a key of :data:`HOPS`; empty when no one place is to blame.
        reason, remedy: as for users; the remedy may be empty.
    """

    key: str
    found: int
    promised: int
    module: str = ""
    hop: str = ""
    reason: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.key} is {self.found}, the contract says {self.promised}"
        if not self.hop:
            return f"{text}: {self.reason}" if self.reason else text
        place = f"{self.module} was " if self.module else ""
        return f"{text}: {place}lost at {HOPS[self.hop]}: {self.reason}"


def told(found: Sequence[Breach]) -> str:
    """All breaches in words: the first of each key, and how many more there are of it."""
    by_key: dict[str, list[Breach]] = {}
    for breach in found:
        by_key.setdefault(breach.key, []).append(breach)
    return "; ".join(
        f"{same[0]}" + (f" (and {len(same) - 1} more)" if len(same) > 1 else "")
        for same in by_key.values()
    )


def breaches(
    contract: Contract,
    *,
    ledger: Sequence[Mapping[str, Any]],
    rows: Iterable[Row],
    landed: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    float_labels: Sequence[str],
    modules: Mapping[str, str] = _NO_MODULES,
) -> list[Breach]:
    """Every breach, in the contract's order.

    Args:
        ledger: of the fuse stage, as JSON.
        rows: of :func:`edgefuse.tflite.contract.check_contract`.
        landed: labels of int8 operators by node of the fused graph, from the trace.
        labels: of all int8 operators, ``CONV_2D#3``.
        float_labels: of those that compute in float.
        modules: torch modules by node of the fused graph.
    """
    judged = {row.group: row for row in rows}
    found = [
        b
        for name, least in contract.fused.items()
        for b in _fused(name, least, ledger, judged, landed)
    ]
    homes = {
        label.split("+")[0]: modules.get(node) or node
        for node, ends_in in landed.items()
        for label in ends_in
    }
    for code, wanted in contract.operators.items():
        held = [label for label in labels if label.split("#")[0] == code]
        if len(held) != wanted:
            reason = _homes(held, homes) if len(held) > wanted else ""
            found.append(Breach(f"contract.operators.{code}", len(held), wanted, reason=reason))
    most = contract.max_float_operators
    if most is not None and len(float_labels) > most:
        reason = _homes(float_labels, homes)
        key = "contract.max_float_operators"
        found.append(Breach(key, len(float_labels), most, reason=reason))
    return found


def _homes(labels: Sequence[str], homes: Mapping[str, str]) -> str:
    """``TRANSPOSE#34 in avgpool, ...``: where operators that should not be there come from."""
    told = [f"{x} in {homes[x]}" if x in homes else f"{x} between nodes" for x in labels[:4]]
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return ", ".join(told) + more


def _fused(
    name: str,
    least: int,
    ledger: Sequence[Mapping[str, Any]],
    judged: Mapping[str, Row],
    landed: Mapping[str, Sequence[str]],
) -> Iterator[Breach]:
    entries = [e for e in ledger if e["pass"] == name]
    fired = [e for e in entries if e["status"] == "fired"]
    lost = [b for e in fired if (b := _lost(e, judged, landed)) is not None]
    kept = len(fired) - len(lost)
    if kept >= least:
        return
    refused = [
        (_place(e), "fuse", str(e["reason"]), str(e["remedy"]))
        for e in entries
        if e["status"] == "refused"
    ]
    reasons = lost + refused or [("", "export", "the exported graph holds no candidate", "")]
    for module, hop, reason, remedy in reasons:
        yield Breach(f"contract.fused.{name}", kept, least, module, hop, reason, remedy)


def _place(entry: Mapping[str, Any]) -> str:
    return str(entry["module"] or entry["node"] or next(iter(entry["nodes"]), ""))


def _lost(
    entry: Mapping[str, Any], judged: Mapping[str, Row], landed: Mapping[str, Sequence[str]]
) -> tuple[str, str, str, str] | None:
    """Module, hop, reason and remedy of a fusion that was lost on the way to TFLite."""
    node, module = str(entry["node"]), _place(entry)
    if (row := judged.get(node)) is not None:
        return None if row.ok else (module, row.hop, row.reason, "")
    operators = landed.get(node, ())
    weighted = any(label.split("#")[0] in WEIGHTED for label in operators)
    if entry["level"] == "kernel" or weighted or not node:
        return None
    return module, "convert", f"no operator of the float file computes what {node!r} does", ""
