"""Sizes in words: how many bytes an option means, and shares of another size."""

from __future__ import annotations

import re
from typing import Any

from edgefuse.errors import UsageError

_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_MOST_BYTES = 2**63 - 1


def bytes_of(text: str, option: str) -> int:
    """Bytes in words: 524288, 512KiB, 0.5MiB, 2 MB.

    Raises:
        UsageError: no size, or none that an address can tell.
    """
    matched = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(matched[2].upper()) if matched else None
    hint = "give bytes, or a size as 512KiB, 2MiB, 4MB"
    if matched is None or unit is None:
        raise UsageError(f"{option} {text!r} is no size", hint=hint)
    number = matched[1]
    value = int(number) * unit if number.isdigit() else int(float(number) * unit)
    if not 0 < value <= _MOST_BYTES:
        raise UsageError(f"{option} {text!r} is not between 1 byte and 2^63 - 1", hint=hint)
    return value


def size_or_as_given(value: Any) -> Any:
    """A size in words as bytes, for a field of a file that holds bytes; all else as it is.

    Raises:
        ValueError: words that are no size, or true and false.
    """
    if isinstance(value, bool):
        raise ValueError("give bytes, or a size as 512KiB, 2MiB, 4MB")
    if not isinstance(value, str):
        return value
    try:
        return bytes_of(value, "the value")
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from None


def budget_of(text: str, option: str) -> int | float:
    """A size as in :func:`bytes_of`, or a share in (0, 1] as 40%: of what, the option says.

    Raises:
        UsageError: neither.
    """
    matched = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if matched is None:
        try:
            return bytes_of(text, option)
        except UsageError as error:
            raise UsageError(error.message, hint=f"{error.hint}, or a share as 40%") from None
    share = float(matched[1]) / 100
    if not 0 < share <= 1:
        raise UsageError(
            f"{option} {text!r} is no share to keep to", hint="give more than 0%, at most 100%"
        )
    return share
