"""The comparison as data, ``schema: 1``; the table and the page render it.

Fields of a row: ``name``, ``title``, ``status`` (measured, unavailable, error), ``available``,
``reason``, ``ours``, ``operators``, ``fusions``, ``fusion_kinds``, ``p50_ms``, ``p90_ms``,
``ratio_to_eager`` (times as fast as eager; null without eager), ``ratio_to_base``,
``max_relative_error`` (against the base, relative to its largest |output|), ``samples`` (timed
invocations), ``cpu_p50_ms`` (CPU time of all threads), ``cores`` (CPU time over wall time: 1 for
one thread that nobody interrupts), ``versions``, ``note``, ``device`` (the name of the GPU; empty
for the CPU). Of the document: ``base`` is the row that ratios and errors refer to: eager, else the
first that was measured.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefuse import __version__
from edgefuse.compare.interleave import Measured
from edgefuse.compare.rows import EAGER
from edgefuse.devices.measure.bench import quantile
from edgefuse.devices.measure.fingerprint import cpu_model, governor, has_int8_dot_product
from edgefuse.errors import EdgefuseError
from edgefuse.parity import difference

FAILED = 3
# CPU time over wall time of a row alone on one thread is 0.98 to 1.00.
LEAST_CORES, MOST_CORES = 0.9, 1.1


def build(
    recipe: str,
    measured: Sequence[Measured],
    results: Mapping[str, Path],
    *,
    command: str,
    rounds: int,
    invokes: int,
    load: float,
    seconds: float,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The document.

    Args:
        results: row -> the .npz of its outputs, keyed ``SAMPLE/OUTPUT``.
        load: one-minute load average before the first burst.
        seconds: wall time of everything.
    """
    base = _base(measured)
    errors = _errors(base, measured, results)
    rows = [_row(m, base, errors.get(m.row.name)) for m in measured]
    return {
        "schema": 1,
        "edgefuse": __version__,
        "recipe": recipe,
        "command": command,
        "exit_code": FAILED if any(row["status"] == "error" for row in rows) else 0,
        "base": base.row.name if base else None,
        "base_title": base.row.title if base else None,
        "threads": 1,
        "rounds": rounds,
        "invokes": invokes,
        "seconds": round(seconds, 1),
        "machine": {
            "cpu": cpu_model(),
            "cpus": os.cpu_count() or 1,
            "int8_dot_product": has_int8_dot_product(),
            "governor": governor(),
            "load": round(load, 2),
        },
        "warnings": [*warnings, *_doubts(rows)],
        "rows": rows,
    }


def _doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes the times less than they seem: a busy machine, a row on more than one thread.

    Rows on a GPU are left out: how they wait for it says nothing of the machine.
    """
    rows = [row for row in rows if not row["device"]]
    cores = [row["cores"] for row in rows if row["cores"] is not None]
    found = []
    if cores and statistics.median(cores) < LEAST_CORES:
        found.append(
            f"the machine is busy: the rows had {statistics.median(cores):.2f} of a CPU, so times "
            "are too long and ratios inexact; stop other work and repeat"
        )
    for row in rows:
        if (row["cores"] or 0) > MOST_CORES:
            found.append(f"{row['name']} ran on {row['cores']:.2f} CPUs, not on one")
    return found


def _base(measured: Sequence[Measured]) -> Measured | None:
    there = [m for m in measured if m.status == "measured" and m.bursts_ms]
    return next((m for m in there if m.row.name == EAGER), there[0] if there else None)


def _row(found: Measured, base: Measured | None, error: float | None) -> dict[str, Any]:
    times = [t for burst in found.bursts_ms for t in burst]
    there = found.status == "measured"
    fusions: Mapping[str, int] | None = found.answer.get("fusions")
    ratio = _ratio(base, found) if there and base else None
    return {
        "name": found.row.name,
        "title": found.row.title,
        "status": found.status,
        "available": there,
        "reason": found.reason,
        "ours": found.row.ours,
        "operators": found.answer.get("operators"),
        "fusions": None if fusions is None else sum(fusions.values()),
        "fusion_kinds": fusions,
        "p50_ms": round(quantile(times, 0.5), 4) if there else None,
        "p90_ms": round(quantile(times, 0.9), 4) if there else None,
        "ratio_to_eager": ratio if base and base.row.name == EAGER else None,
        "ratio_to_base": ratio,
        "max_relative_error": error,
        "samples": len(times),
        "cpu_p50_ms": round(quantile(found.cpu_ms, 0.5), 4) if there else None,
        "cores": round(sum(found.cpu_ms) / sum(times), 2) if there else None,
        "versions": found.answer.get("versions", {}),
        "note": found.answer.get("note", ""),
        "device": found.answer.get("device", ""),
    }


def _ratio(base: Measured, row: Measured) -> float:
    """How many times as fast as the base, of bursts that are neighbours in time."""
    pairs = zip(base.bursts_ms, row.bursts_ms)
    return round(
        statistics.median(statistics.median(b) / statistics.median(r) for b, r in pairs), 4
    )


def _errors(
    base: Measured | None, measured: Sequence[Measured], results: Mapping[str, Path]
) -> dict[str, float]:
    """Largest relative error of each measured row; a row whose outputs do not fit becomes an
    error."""
    from edgefuse.tflite.feeds import aligned, turned_outputs

    if base is None:
        return {}
    reference = outputs_of(results[base.row.name])
    found = {}
    for row in measured:
        if row.status != "measured":
            continue
        candidate = outputs_of(results[row.row.name])
        if row.row.family in ("litert", "tensorflow"):
            candidate = aligned(candidate, turned_outputs(reference, candidate))
        try:
            pairs = zip(reference, candidate)
            found[row.row.name] = difference(pairs, what=row.row.title).max_rel_to_peak
        except EdgefuseError as error:
            row.fail(error)
    return found


def outputs_of(path: Path) -> list[dict[str, Any]]:
    """Outputs by name, sample by sample."""
    import numpy as np

    samples: dict[int, dict[str, Any]] = {}
    with np.load(path) as file:
        for key in file.files:
            sample, _, name = key.partition("/")
            samples.setdefault(int(sample), {})[name] = file[key]
    return [samples[index] for index in sorted(samples)]
