"""Which machine a latency figure belongs to.

A latency verdict may be reused only where it would come out the same: equal CPU model, number of
CPUs, instruction sets that integer kernels choose by, architecture, and runtime version. Load,
temperature and frequency change from minute to minute and are recorded with each measurement
instead.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from edgefuse.artifact import digest_json

CPUINFO = Path("/proc/cpuinfo")
# Instruction sets that XNNPACK and TFLite's kernels are chosen by.
FLAGS = frozenset(
    {
        *("ssse3", "sse4_1", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8"),
        *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_fp16", "amx_int8"),
        *("neon", "asimd", "asimddp", "asimdhp", "fphp", "i8mm", "sve", "sve2", "vfpv4"),
    }
)
INT8_DOT = frozenset({"avx_vnni", "avx_vnni_int8", "avx512_vnni", "amx_int8", "asimddp", "i8mm"})


def _fields(text: str) -> dict[str, str]:
    """The first value of each key of a cpuinfo text."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _cpuinfo() -> dict[str, str]:
    try:
        return _fields(CPUINFO.read_text("utf-8", "replace"))
    except OSError:
        return {}


def cpu_model() -> str:
    """The CPU's name; on ARM its implementer and part numbers."""
    fields = _cpuinfo()
    if "model name" in fields:
        numbers = [fields.get(key, "?") for key in ("cpu family", "model", "stepping")]
        known = "cpu family" in fields
        return fields["model name"] + (f" ({'/'.join(numbers)})" if known else "")
    if "CPU part" in fields:
        return f"ARM {fields.get('CPU implementer', '?')}/{fields['CPU part']}"
    return platform.processor() or platform.machine() or "unknown"


def cpu_flags() -> tuple[str, ...]:
    """The instruction sets of :data:`FLAGS` that this CPU has, sorted."""
    fields = _cpuinfo()
    held = (fields.get("flags") or fields.get("Features") or "").split()
    return tuple(sorted(FLAGS.intersection(held)))


def has_int8_dot_product() -> bool | None:
    """Whether the CPU multiplies and sums int8 in one instruction: without, int8 gains no time.

    None when the system does not tell the CPU's instruction sets.
    """
    fields = _cpuinfo()
    if not (fields.get("flags") or fields.get("Features")):
        return None
    return bool(INT8_DOT.intersection(cpu_flags()))


def governor() -> str:
    """Frequency governor of the first CPU; ``unknown`` when the system does not tell."""
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        return path.read_text().strip() or "unknown"
    except OSError:
        return "unknown"


def temperature_celsius() -> float | None:
    """Of the hottest thermal zone; None when the system does not tell."""
    found = []
    for path in sorted(Path("/sys/class/thermal").glob("thermal_zone*/temp")):
        try:
            found.append(int(path.read_text()) / 1000)
        except (OSError, ValueError):
            continue
    return max(found, default=None)


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fingerprint(runtime_version: str) -> dict[str, Any]:
    """The machine as a dictionary, with ``sha256`` over everything else in it.

    Args:
        runtime_version: distribution and version of the interpreter in use.
    """
    facts: dict[str, Any] = {
        "cpu": cpu_model(),
        "flags": list(cpu_flags()),
        "cpus": _usable_cpus(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "runtime": runtime_version,
    }
    return {**facts, "sha256": digest_json(facts)}
