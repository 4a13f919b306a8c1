"""The programs of a model in one archive: a bucket each, weights that are equal only once.

::

    index.json              buckets in the recipe's order: label, program, weights
    programs/<n>.json       :meth:`edgefuse.cuda.program.Program.to_text`
    weights/<sha256>.bin    :class:`edgefuse.cuda.weights.Weights`
    device/<n>/...          files of :mod:`edgefuse.cuda.deploy`, for a target's architectures

The first bucket is the shape that gates run. Deterministic: equal programs give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgefuse.archive import pack, read_members
from edgefuse.cuda.program import Program, from_text
from edgefuse.cuda.weights import Weights
from edgefuse.errors import StageError

SCHEMA = 1
_AGAIN = "copy it again, or run the recipe that made it"


def write(
    programs: Sequence[tuple[Program, Weights]],
    path: Path,
    device: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write the archive; at least one program. ``device``: further members, below ``device/``."""
    members: dict[str, bytes] = {f"device/{name}": data for name, data in device.items()}
    rows: list[dict[str, Any]] = []
    for place, (program, weights) in enumerate(programs):
        names = {"program": f"programs/{place}.json", "weights": f"weights/{weights.sha256}.bin"}
        members[names["program"]] = program.to_text().encode()
        members[names["weights"]] = weights.data
        rows.append({"bucket": program.bucket, **names})
    index = {"schema": SCHEMA, "buckets": rows}
    members["index.json"] = (json.dumps(index, sort_keys=True, indent=1) + "\n").encode()
    pack(members, path)


def read(path: Path) -> tuple[tuple[Program, Weights], ...]:
    """Programs with their weights, checked.

    Raises:
        StageError: damaged, or of another schema.
    """
    members = read_members(path)
    try:
        index = json.loads(members["index.json"])
        if index["schema"] != SCHEMA:
            raise StageError(f"programs of schema {index['schema']!r}", where=str(path))
        rows = [(members[r["program"]].decode(), r["weights"]) for r in index["buckets"]]
        held = {name: Weights(members[name]) for _, name in rows}
        if not rows:
            raise ValueError("it holds no bucket")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StageError(f"no archive of programs: {error}", where=str(path), hint=_AGAIN) from None
    for name, weights in held.items():
        if name != f"weights/{weights.sha256}.bin":
            raise StageError(f"{name} does not match its SHA-256", where=str(path), hint=_AGAIN)
    found = tuple((from_text(text, str(path)), held[name]) for text, name in rows)
    for program, weights in found:
        if len(weights.data) != program.weights_bytes:
            raise StageError("weights of another length", where=str(path), hint=_AGAIN)
    return found
