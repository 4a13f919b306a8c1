"""Evidence beside a bundle, as a run would have left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgefuse.artifact import digest_file
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
