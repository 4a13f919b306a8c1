"""The report document: what a run did, as data. ``schema: 1``; HTML and the table render it.

The fields of its part ``quantisation`` are listed in :mod:`edgefuse.report.quantisation`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse import __version__
from edgefuse.artifact import digest_bytes, digest_json
from edgefuse.bundle import evidence
from edgefuse.errors import DeviceUnavailable
from edgefuse.keys import code_digest, versions
from edgefuse.report.arenas import arenas
from edgefuse.report.quantisation import quantisation
from edgefuse.store import write_changed

if TYPE_CHECKING:
    from edgefuse.plan import Job
    from edgefuse.runner import Outcome, Result

_PACKAGES = (
    "ai-edge-litert", "ai-edge-quantizer", "numpy", "onnx", "onnx-ir", "onnx2tf", "onnxruntime",
    "onnxscript", "tensorflow", "tflite-runtime", "torch",
)  # fmt: skip
_VERDICTS = {0: "pass", 1: "fail", 4: "inconclusive"}


def build(job: Job, result: Result, command: str, complete: bool, out: Path) -> dict[str, Any]:
    """The document of a finished run.

    Args:
        complete: whether every stage of the recipe was asked for (no ``--until``).
        out: the output folder.
    """
    error = result.error
    stopped = isinstance(error, DeviceUnavailable) or result.exit_code not in _VERDICTS
    verdict = "error" if stopped else _VERDICTS[result.exit_code]
    if verdict == "pass" and not complete:
        verdict = "incomplete"
    document: dict[str, Any] = {
        "schema": 1,
        "edgefuse": __version__,
        "recipe": job.recipe.name,
        "description": job.recipe.description,
        "verdict": verdict,
        "exit_code": result.exit_code,
        "target": job.target.name,
        "error": error
        and {
            "kind": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "where": error.where,
        },
        "warnings": list(result.warnings),
        "stages": [_stage(outcome) for outcome in result.outcomes],
        "gates": [_gate(o) for o in result.outcomes if o.stage.gate and o.evidence],
        "fusion": _fusion(result.outcomes),
        "quantisation": quantisation(job.recipe, result.outcomes, out),
        "arenas": arenas(job, result.outcomes),
        "memory": _evidence_of(result.outcomes, "shrink"),
        "gpu": _evidence_of(result.outcomes, "lower"),
        "parity": [
            {"stage": o.stage.name, **o.evidence["parity"]}
            for o in result.outcomes
            if "parity" in o.evidence
        ],
        "artifacts": [
            {
                "file": o.file,
                "kind": o.artifact.kind,
                "stage": o.stage.name,
                "sha256": o.artifact.sha256,
                "bytes": o.artifact.path.stat().st_size,
            }
            for o in result.outcomes
            if o.artifact is not None and o.file is not None
        ],
        "permissions": [
            *evidence.permissions(job.recipe),
            *evidence.waived(job.recipe.gates, job.target.name),
        ],
        "environment": versions(_PACKAGES),
        "command": command,
    }
    return document


def _stage(outcome: Outcome) -> dict[str, Any]:
    artifact = outcome.artifact
    return {
        "name": outcome.stage.name,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 3) if outcome.status in ("ran", "failed") else None,
        "sha256": artifact.sha256 if artifact else None,
        "key": artifact.key if artifact else None,
        "kind": artifact.kind if artifact else None,
        "file": outcome.file,
        "bytes": artifact.path.stat().st_size if artifact else None,
        "summary": str(outcome.evidence.get("summary", "")),
    }


def _gate(outcome: Outcome) -> dict[str, Any]:
    fields = ("verdict", "target", "runtime", "provenance", "checks", "figures")
    return {
        "name": outcome.stage.name.removeprefix("gate_"),
        "reused": outcome.status == "reused",
        **{name: outcome.evidence[name] for name in fields},
    }


def _fusion(outcomes: list[Outcome]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for outcome in outcomes:
        for name in (
            "operators_before", "operators_after", "operators_tflite", "passes", "ledger", "saved",
            "contract", "operators", "intermediate_bytes", "peak_bytes",
        ):  # fmt: skip
            if name in outcome.evidence:
                merged[name] = outcome.evidence[name]
        if outcome.artifact is not None and outcome.artifact.kind == "plan":
            merged["buckets"] = [_bucket(row) for row in outcome.evidence["buckets"]]
        if "trace" in outcome.evidence and "ledger" in merged:
            merged["ledger"] = _ended(merged["ledger"], outcome.evidence["trace"])
    return merged


def _evidence_of(outcomes: list[Outcome], stage: str) -> dict[str, Any]:
    """What a stage tried, kept and proved; empty when it did not run to its end."""
    made = next((o for o in outcomes if o.stage.name == stage), None)
    return dict(made.evidence) if made is not None and made.artifact is not None else {}


def _bucket(row: Mapping[str, Any]) -> dict[str, Any]:
    """One shape bucket: launches at each level, predicted times, what was merged and why."""
    return {
        "bucket": row["bucket"],
        "unfused": row["unfused"]["launches"],
        "groups": row["before"]["launches"],
        "kernels": len(row["kernels"]),
        "groups_us": row["before"]["time_us"],
        "kernels_us": row["after"]["time_us"],
        "decisions": [
            {key: d[key] for key in ("candidate", "producer", "taken", "saved_us", "reason")}
            for d in row["decisions"]
        ],
    }


def _ended(ledger: list[dict[str, Any]], trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ledger with the int8 operators in which each entry ended."""
    ends = {node["node"]: node["ends_in"] for node in trace["nodes"]}
    return [{**entry, "ends_in": ends.get(entry["node"], [])} for entry in ledger]


def write(document: Mapping[str, Any], out: Path) -> None:
    """Write report.json and report.html, and what it says of a bundle to evidence.json.

    Raises:
        StoreError: full disk, missing permission.
    """
    data = _json(document)
    write_changed(out / "report.json", data)
    _write_page(document, digest_bytes(data), out / "report.html")
    bundle = next((a for a in document["artifacts"] if a["kind"] == "bundle"), None)
    if bundle is not None:
        judged = {k: document[k] for k in ("verdict", "gates", "parity", "permissions")}
        evidence.record(out, bundle["sha256"], document["recipe"], document["target"], judged)


def _write_page(document: Mapping[str, Any], digest: str, path: Path) -> None:
    """Render the page, unless it was made of this very document by this very code."""
    mark = f"<!-- {digest_json([digest, code_digest('edgefuse.report.html')])} -->\n".encode()
    with contextlib.suppress(OSError):
        if path.read_bytes().endswith(mark):
            return
    from edgefuse.report.html import render

    write_changed(path, render(document).encode() + mark)


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
