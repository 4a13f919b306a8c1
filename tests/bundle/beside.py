"""Evidence beside a bundle, as a run would have left it; and bundles tampered with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgefuse.archive import pack, read_members
from edgefuse.artifact import digest_bytes, digest_file
from edgefuse.bundle.evidence import REQUIRED_GATES, SCHEMA


def judged(**changes: Any) -> dict[str, Any]:
    """What a run that passed every gate says of a target."""
    gates = [{"name": name, "verdict": "pass", "reused": False} for name in REQUIRED_GATES]
    return {"verdict": "pass", "gates": gates, "parity": [], "permissions": [], **changes}


def put_evidence(bundle: Path, target: str = "host", **changes: Any) -> Path:
    """Write evidence.json beside a bundle; ``changes`` are of the target's part, or of the whole
    where they name one of its keys."""
    whole = {
        "schema": SCHEMA, "bundle_sha256": digest_file(bundle), "recipe": "net", "targets": None,
    }  # fmt: skip
    outer = {name: changes.pop(name) for name in list(changes) if name in whole}
    whole |= {"targets": {target: judged(**changes)}, **outer}
    path = bundle.with_name("evidence.json")
    path.write_text(json.dumps(whole))
    return path


def repack(bundle: Path, **changes: Any) -> None:
    """Change members (``None`` removes one) and the manifest's keys; hide it from every digest."""
    members = read_members(bundle)
    manifest = json.loads(members.pop("manifest.json"))
    manifest |= changes.pop("manifest", {})
    for name, data in changes.pop("members", {}).items():
        members.pop(name, None)
        if data is not None:
            members[name] = data
    rows = {n: {"sha256": digest_bytes(d), "bytes": len(d)} for n, d in members.items()}
    manifest = {**manifest, "files": rows, **changes}
    pack({**members, "manifest.json": json.dumps(manifest).encode()}, bundle)
    put_evidence(bundle, recipe="net")
