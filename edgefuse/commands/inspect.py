"""``plan``, ``why`` and ``show``: look at a recipe and the store, change nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgefuse.artifact import digest_file
from edgefuse.errors import UsageError
from edgefuse.job import make_job
from edgefuse.keys import differences
from edgefuse.plan import Selection, make_plan
from edgefuse.store import Damaged, Store, default_root

#: Records of the store by the SHA-256 of what they made.
_Records = dict[str, list[dict[str, Any]]]


def plan_rows(
    recipe: Path, settings: Sequence[str], target: str | None, selection: Selection
) -> list[dict[str, Any]]:
    """One row a stage: name, status (cached, run, depends), why, key, the last run's seconds."""
    job = make_job(recipe, settings, target)
    rows = []
    for step in make_plan(job, selection):
        latest = job.store.latest(step.stage.name, job.recipe.name)
        rows.append(
            {
                "stage": step.stage.name,
                "status": step.status,
                "why": step.why,
                "key": step.key,
                "last_seconds": round(latest["seconds"], 1) if latest else None,
                "summary": step.stage.summary,
            }
        )
    return rows


def plan_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        took = f" (last: {row['last_seconds']} s)" if row["last_seconds"] is not None else ""
        why = f" - {row['why']}" if row["why"] else ""
        lines.append(f"{row['stage']:<14} {row['status']:<8}{took}{why}")
    waiting = [r["last_seconds"] for r in rows if r["status"] != "cached"]
    if not waiting:
        lines.append("everything is cached")
    elif all(seconds is not None for seconds in waiting):
        lines.append(f"about {sum(waiting):.0f} s to run")
    return lines


def why_rows(recipe: Path, settings: Sequence[str], target: str | None) -> list[dict[str, Any]]:
    """One row a stage: what differs between its last stored run and what would run now."""
    job = make_job(recipe, settings, target)
    rows = []
    for step in make_plan(job):
        latest = job.store.latest(step.stage.name, job.recipe.name)
        changes: list[dict[str, Any]] = []
        if step.status == "run" and latest is not None:
            changes = [
                {"what": path, "was": old, "is": new}
                for path, old, new in differences(latest["parts"], step.parts)
            ]
        state = "never run" if latest is None and step.status == "run" else step.why
        rows.append(
            {
                "stage": step.stage.name,
                "status": step.status,
                "reason": "" if step.status == "cached" else state,
                "changes": changes,
            }
        )
    return rows


def why_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        reason = f": {row['reason']}" if row["reason"] and not row["changes"] else ""
        lines.append(f"{row['stage']:<14} {row['status']}{reason}")
        lines += [
            f"    {change['what']}: {_short(change['was'])} -> {_short(change['is'])}"
            for change in row["changes"]
        ]
    return lines


def _short(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return value[:12]
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def lineage(artifact: str) -> dict[str, Any]:
    """The tree of records that made an artifact.

    Args:
        artifact: a published file, or (the head of) its SHA-256.

    Raises:
        UsageError: nothing in the store made it.
    """
    store = Store(default_root())
    path = Path(artifact)
    if path.is_file():
        wanted = digest_file(path)
    elif re.fullmatch(r"[0-9a-f]{8,64}", artifact):
        wanted = artifact
    else:
        raise UsageError(
            f"{artifact}: no such file", hint="give a file of an output folder, or a SHA-256"
        )
    records = _records(store)
    found = next((r for sha256, r in sorted(records.items()) if sha256.startswith(wanted)), None)
    if found is None:
        raise UsageError(
            f"{artifact}: the store at {store.root} has no record of {wanted[:12]}",
            hint="the file was changed or made elsewhere, or EDGEFUSE_CACHE names another store",
        )
    # Recipes may make the same bytes in other ways; a published file's name begins with its own.
    own = [r for r in found if path.is_file() and re.match(rf"{r['recipe']}[._]", path.name)]
    return _tree(max(own, key=lambda r: len(r["recipe"]), default=found[-1]), records)


def _records(store: Store) -> _Records:
    """The intact records of every stored artifact, by SHA-256, the newest one last."""
    records: _Records = {}
    paths = (store.root / "entries").glob("*/*.json")
    for path in sorted(paths, key=lambda p: (p.stat().st_mtime_ns, p.name)):
        try:
            record = store.entry(path.parent.name, path.stem)
        except Damaged:
            continue
        records.setdefault(record["sha256"], []).append({"stage": path.parent.name, **record})
    return records


def _tree(record: dict[str, Any], records: _Records) -> dict[str, Any]:
    parents: dict[str, Any] = {}
    for stage, sha256 in record["parents"].items():
        made = records.get(sha256, [])
        own = [r for r in made if r["recipe"] == record["recipe"]] or made
        parents[stage] = _tree(own[-1], records) if own else {"sha256": sha256}
    shown = ("stage", "recipe", "kind", "sha256", "key", "seconds")
    return {
        **{name: record[name] for name in shown},
        "tools": record["parts"]["tools"],
        "config": record["parts"]["config"],
        "samples": record["parts"]["samples"],
        "summary": record["evidence"].get("summary", ""),
        "parents": parents,
    }


def lineage_lines(tree: dict[str, Any], depth: int = 0) -> list[str]:
    indent = "  " * depth
    if "stage" not in tree:
        return [f"{indent}{tree['sha256'][:12]} (its record is gone)"]
    tools = ", ".join(f"{name} {version}" for name, version in sorted(tree["tools"].items()))
    lines = [
        f"{indent}{tree['stage']} {tree['kind']} {tree['sha256'][:12]} "
        f"({tree['recipe']}, {tree['seconds']:.1f} s)",
        f"{indent}  {tree['summary']}",
        f"{indent}  with {tools}",
    ]
    for parent in tree["parents"].values():
        lines += lineage_lines(parent, depth + 1)
    return lines
