"""Parts of a document, any of which may be missing or of another kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def rows(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The mappings listed under ``key``; empty when the part is missing or null."""
    value = document.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under ``key``; empty when the part is missing or null."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}
