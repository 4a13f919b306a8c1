"""How every figure of a report is written: quantities with units, and a check's four texts.

The terminal's table and the HTML page share these functions, so that a figure reads the same in
both. A value that is missing or not finite is a dash, never a zero.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
_BINARY = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SUFFIXES = {"percent": "%", "db": "dB", "ms": "ms", "us": "µs", "points": "points", "s": "s"}
_SUFFIXES |= {"bytes": "bytes", "seconds": "s", "ratio": "ratio"}


def finite(value: Any) -> float | None:
    """``value`` as a float when it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def count(value: Any) -> int:
    """``value`` as a whole number; 0 when it is none."""
    number = finite(value)
    return int(number) if number is not None else 0


def printable(value: Any) -> str:
    """Text without control, format-override or lone surrogate characters, on one line."""
    if value is None:
        return ""
    text = " ".join(str(value).split())
    bad = ("Cc", "Cf", "Cs", "Cn")
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in bad else c for c in text
    )


def bytes_text(value: float, digits: int = 2) -> str:
    """Bytes with a binary prefix: 3.61 MiB, 512 bytes."""
    for size, unit in _BINARY:
        if abs(value) >= size:
            return f"{value / size:.{digits}f} {unit}"
    return f"{value:,.0f} bytes" if value == int(value) else f"{value:,.{digits}f} bytes"


def seconds_text(value: Any) -> str:
    """Seconds as people read them: 0.04 s, 12.3 s, 3 min 05 s; a dash when unknown."""
    number = finite(value)
    if number is None:
        return DASH
    if number < 10:
        return f"{number:.2f} s"
    if number < 99.95:
        return f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number_text(value: Any, digits: int = 2) -> str:
    """A plain number: thousands grouped, very small and very large ones in powers of ten."""
    number = finite(value)
    if number is None:
        return printable(value) if value is not None else DASH
    if isinstance(value, int):
        return f"{value:,}"
    if number and (abs(number) < 0.5 * 10**-digits or abs(number) >= 1e9):
        return f"{number:.1e}"
    return f"{number:,.{digits}f}"


def power_text(value: Any) -> str:
    """A small number in powers of ten: 2.4e-06."""
    number = finite(value)
    if number is None:
        return number_text(value)
    return f"{number:.1e}" if number else "0"


def quantity(value: Any, unit: str, digits: int = 2) -> str:
    """A value with its unit: 91.20%, 31.40 dB, 3.61 MiB, 0.42 times."""
    number = finite(value)
    if number is None:
        return number_text(value)
    if unit in ("bytes", "B"):
        return bytes_text(number, digits)
    if unit in ("ratio", "x", TIMES):
        return f"{number_text(number, digits)}{TIMES}"
    if unit == "%":
        return f"{number_text(number, digits)}%"
    return f"{number_text(value, digits)} {printable(unit)}".rstrip()


def unit_of(name: str) -> str:
    """The unit in a figure's path: p90_ms -> ms, top1_percent.int8 -> %; empty when none."""
    ends = (step.rsplit("_", 1)[-1] for step in reversed(name.split(".")))
    return next((_SUFFIXES[end] for end in ends if end in _SUFFIXES), "")


def judged(check: Mapping[str, Any]) -> Any:
    """The number a check is judged by: its bound, or its value when it has no bound."""
    return check.get("value") if check.get("bound") is None else check["bound"]


def margin(check: Mapping[str, Any]) -> float | None:
    """The room between bound and threshold: positive when the check holds."""
    bound, threshold = finite(judged(check)), finite(check.get("threshold"))
    if bound is None or threshold is None:
        return None
    return threshold - bound if str(check.get("comparison")).startswith("<") else bound - threshold


def check_texts(check: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Value, bound, threshold and margin of a check, with its unit.

    Digits are added until bound and threshold read differently, so that 87.998 never shows as
    a failing 88.00.
    """
    unit = str(check.get("unit") or "")
    bound, threshold = judged(check), check.get("threshold")
    digits = 2
    while digits < 6 and bound != threshold:
        if quantity(bound, unit, digits) != quantity(threshold, unit, digits):
            break
        digits += 1
    room = margin(check)
    if room is None:
        room_text = DASH
    else:
        room_text = quantity(abs(room), "points" if unit == "%" else unit, digits)
        room_text = f"{MINUS if room < 0 else '+'}{room_text}"
    limit = quantity(threshold, unit, digits)
    sign = {">=": "≥ ", "<=": "≤ "}.get(str(check.get("comparison")), "")
    sign = sign or f"{printable(check.get('comparison'))} ".lstrip()
    value = quantity(check.get("value"), unit, digits)
    return value, quantity(check.get("bound"), unit, digits), f"{sign}{limit}", room_text


def plural(number: int, noun: str) -> str:
    """``noun`` in the number it needs."""
    if number == 1:
        return noun
    return f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
