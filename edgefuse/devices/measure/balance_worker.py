"""Measures this machine in a process of its own.

Each figure is the best of several repeats, since disturbances only ever slow down. Bandwidth: a
copy between two buffers, each several times the largest cache; bytes read and written count once
each. FLOPs: a float32 matrix product. Overhead: chains of tiny operators in onnxruntime.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.child import serve
from edgefuse.errors import ToolError

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MIB = 1 << 20
_LEAST_BUFFER_BYTES, _MOST_BUFFER_BYTES = 64 * _MIB, 512 * _MIB
_SIDE = 1024
_CHAINS = (64, 1024)
_UNITS = {"K": 1 << 10, "M": _MIB, "G": 1 << 30}


def largest_cache_bytes(folder: Path = CACHES) -> int:
    """Of the first CPU; 0 where the system does not tell."""
    sizes = [0]
    for file in sorted(folder.glob("index*/size")):
        try:
            text = file.read_text().strip()
            sizes.append(int(text[:-1]) * _UNITS[text[-1:]])
        except (OSError, ValueError, KeyError):
            continue
    return max(sizes)


def buffer_bytes(cache_bytes: int) -> int:
    """Four times the largest cache, between 64 and 512 MiB."""
    return min(max(4 * cache_bytes, _LEAST_BUFFER_BYTES), _MOST_BUFFER_BYTES)


def best_s(run: Callable[[], Any], repeats: int) -> float:
    """Least time of one run, after one that is not timed.

    Raises:
        ToolError: the clock did not advance.
    """
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    if min(times) <= 0:
        raise ToolError("the clock did not advance during a measurement")
    return min(times) / 1e9


def bytes_per_s(size: int) -> float:
    source, destination = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    return 2 * size / best_s(lambda: np.copyto(destination, source), 12)


def flops_per_s() -> float:
    left = np.ones((_SIDE, _SIDE), np.float32)
    right, out = left.copy(), left.copy()
    return 2.0 * _SIDE**3 / best_s(lambda: np.matmul(left, right, out=out), 12)


def launch_s(threads: int) -> float:
    from edgefuse.graph.chain import WIDTH, chain_of_tiny_operators
    from edgefuse.graph.verify import Runner

    feed = {"x": np.ones(WIDTH, np.float32)}
    times = []
    for length in _CHAINS:
        runner = Runner(chain_of_tiny_operators(length), threads=threads)
        times.append(best_s(functools.partial(runner, feed), 50))
    return max(times[1] - times[0], 0.0) / (_CHAINS[1] - _CHAINS[0])


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """The figures with a job's ``threads`` threads, and how much of a CPU this process got."""
    size = buffer_bytes(largest_cache_bytes())
    wall, cpu = time.perf_counter(), time.process_time()
    figures = {
        "launch_s": launch_s(job["threads"]),
        "bytes_per_s": bytes_per_s(size),
        "flops_per_s": flops_per_s(),
        "buffer_bytes": size,
    }
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {**figures, "cpu_share": round(min(cpu / wall, 1.0), 2)}


if __name__ == "__main__":
    serve(measure)
