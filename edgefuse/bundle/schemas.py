"""Reading the JSON documents of a bundle: what is of another schema is refused in one message.

Every document that travels with a bundle carries ``schema``, a whole number. A document of a newer
schema may mean something that this version does not know of, so it is refused and not read as far
as it goes. One of an older schema lacks what is asked of it today, and is refused as well.
"""

from __future__ import annotations

import json
from typing import Any

from edgefuse.errors import UsageError

# Beside a bundle, in the same folder.
EVIDENCE = "evidence.json"
SIGNATURE = "signature.json"


def json_bytes(data: Any) -> bytes:
    """A document as it is written: for people and for comparing, equal data gives equal bytes.

    Raises:
        ValueError: for NaN or infinity.
    """
    text = json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def read_document(data: bytes, schema: int, what: str, where: str) -> dict[str, Any]:
    """A JSON object of exactly this schema.

    Args:
        what: the document's name in messages.
        where: its place in messages.

    Raises:
        UsageError: not a JSON object, or of another schema.
    """
    try:
        document = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UsageError(
            f"no readable {what}", where=where, hint="use the folder that `edgefuse run` wrote"
        )
    found = document.get("schema")
    if not isinstance(found, int) or isinstance(found, bool) or found < schema:
        raise UsageError(
            f"{what} has schema {found!r}, this edgefuse reads {schema}",
            where=where,
            hint="an older edgefuse wrote it: run the recipe again",
        )
    if found > schema:
        raise UsageError(
            f"{what} has schema {found}, this edgefuse reads up to {schema}",
            where=where,
            hint="a newer edgefuse wrote it: install that one",
        )
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two equal keys readers would choose differently."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key occurs twice")
    return made
