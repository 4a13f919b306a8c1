"""Latency of an int8 file against its float file, with the noise of the very measurement.

Problem: on a shared machine milliseconds drift by more than the difference that is asked for. So
both files run interleaved in each of several fresh processes, and the float file runs a second
time against itself (A/A). What is judged is the ratio of neighbours in time; the A/A band stands
beside it in the evidence and shows how large a difference the machine makes of none.

Scope: processes run one after the other, never at once. Left alone: CPU affinity, frequency
governors and boost, which are recorded where readable, never set.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.child import call
from edgefuse.devices.measure.fingerprint import cpu_model, governor, temperature_celsius
from edgefuse.errors import ToolError

if TYPE_CHECKING:
    from edgefuse.tflite.runtime import Runtime

WORKER = "edgefuse.devices.measure.bench_worker"
Times = tuple[tuple[float, ...], ...]


def quantile(values: Sequence[float], fraction: float) -> float:
    """Linear interpolation between order statistics, as NumPy's default."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Conditions:
    """What a latency figure means nothing without.

    Attributes:
        runtime: distribution and version.
        governor: frequency governor of the first CPU, ``unknown`` when unreadable.
        temperature_celsius: of the hottest sensor before the first process; None when unreadable.
        load: one-minute load average before the first process.
        preempted: how often each process lost its CPU while it was timed.
    """

    runtime: str
    kernels: str
    threads: int
    cpu: str
    cpus: int
    governor: str
    temperature_celsius: float | None
    load: float
    preempted: tuple[int, ...]


@dataclass(frozen=True)
class Latency:
    """Times in milliseconds, [process][round]; ``again_ms`` is the float file's second copy."""

    float_ms: Times
    int8_ms: Times
    again_ms: Times
    conditions: Conditions

    @property
    def ratios(self) -> Times:
        """int8 / float of every round, [process][round]."""
        return _divide(self.int8_ms, self.float_ms)

    @property
    def noise_ratios(self) -> Times:
        """The float file against itself, [process][round]."""
        return _divide(self.again_ms, self.float_ms)

    @property
    def process_ratios(self) -> tuple[float, ...]:
        """Median ratio of each process: the independent samples a bound must resample."""
        return tuple(statistics.median(row) for row in self.ratios)

    @property
    def ratio(self) -> float:
        """Median over processes of the processes' median ratios."""
        return statistics.median(self.process_ratios)

    @property
    def ratio_spread(self) -> float:
        """Half the range of the processes' ratios."""
        return (max(self.process_ratios) - min(self.process_ratios)) / 2

    @property
    def noise_band(self) -> float:
        """Farthest from 1 that any process saw the float file against itself."""
        return max(abs(statistics.median(row) - 1) for row in self.noise_ratios)

    def summary(self) -> dict[str, Any]:
        """The figures for evidence: rounded to what is meaningful, with the conditions."""

        def row(times: Times) -> dict[str, float]:
            flat = [t for process in times for t in process]
            return {
                "p50_ms": round(quantile(flat, 0.5), 4),
                "p90_ms": round(quantile(flat, 0.9), 4),
            }

        return {
            "float": row(self.float_ms),
            "int8": row(self.int8_ms),
            "ratio": round(self.ratio, 4),
            "ratio_spread": round(self.ratio_spread, 4),
            "noise_band": round(self.noise_band, 4),
            "process_ratios": [round(value, 4) for value in self.process_ratios],
            "conditions": asdict(self.conditions),
        }


def _divide(upper: Times, lower: Times) -> Times:
    return tuple(tuple(a / b for a, b in zip(up, low)) for up, low in zip(upper, lower))


@dataclass(frozen=True)
class Timed:
    """Times of several files in milliseconds, [file][process][round]."""

    times_ms: tuple[Times, ...]
    conditions: Conditions


def time_files(
    files: Sequence[Path],
    *,
    log: Path,
    runtime: Runtime = "litert",
    kernels: str = "default",
    threads: int = 1,
    processes: int = 5,
    rounds: int = 40,
    warmup: int = 3,
    seed: int = 0,
    feeds: Sequence[Path] = (),
    timeout_s: float = 120.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Timed:
    """Time one invoke of each file, all of them interleaved in each of several processes.

    Args:
        log: the workers' standard error is appended here.
        warmup: untimed rounds at the start of each process.
        feeds: an .npz of each file's inputs; none: seeded random ones.
        timeout_s: limit of one process, in seconds.

    Raises:
        ToolError: a worker failed, ran too long, or the runtime is missing.
        ValueError: fewer than 1 process or round.
    """
    from edgefuse.tflite.runtime import runtime_version

    if processes < 1 or rounds < 1:
        raise ValueError("at least one process and one round")
    version = runtime_version(runtime)
    load = os.getloadavg()[0]
    answers = []
    for process in range(processes):
        if progress is not None:
            progress(process, processes, "latency")
        job = {
            "files": [str(path) for path in files],
            "feeds": [str(path) for path in feeds],
            "runtime": runtime,
            "kernels": kernels,
            "threads": threads,
            "rounds": rounds,
            "warmup": warmup,
            "seed": seed,
            "process": process,
        }
        answers.append(call(WORKER, job, log, timeout_s))
    if progress is not None:
        progress(processes, processes, "latency")
    columns = [tuple(tuple(a["times_ms"][k]) for a in answers) for k in range(len(files))]
    if any(not t > 0 for column in columns for row in column for t in row):
        raise ToolError("the clock did not advance during an invoke", where=str(log))
    conditions = Conditions(
        runtime=version,
        kernels=kernels,
        threads=threads,
        cpu=cpu_model(),
        cpus=os.cpu_count() or 1,
        governor=governor(),
        temperature_celsius=temperature_celsius(),
        load=round(load, 2),
        preempted=tuple(a["preempted"] for a in answers),
    )
    return Timed(tuple(columns), conditions)


def measure_latency(float_file: Path, int8_file: Path, *, log: Path, **options: Any) -> Latency:
    """Both files and the float file once more; ``options`` and errors as :func:`time_files`."""
    timed = time_files((float_file, int8_file, float_file), log=log, **options)
    reference, int8, again = timed.times_ms
    return Latency(reference, int8, again, timed.conditions)
