"""One process of a latency measurement: ``python -m edgefuse.devices.measure.bench_worker``.

Loads every file in an interpreter of its own, warms up, then runs each once a round. The order
goes through all permutations, starting elsewhere in every process: with a plain rotation each file
would always follow the same other one and inherit its caches.
"""

from __future__ import annotations

import itertools
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.artifact import Signature
from edgefuse.child import serve


def random_feeds(signature: Signature, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Seeded input in each tensor's own dtype: normal for floats, uniform for integers."""
    random = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for spec in signature.inputs:
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            feeds[spec.name] = random.standard_normal(spec.shape).astype(dtype)
        elif dtype.kind in "iu" and spec.quantization is not None:
            limits = np.iinfo(dtype)
            feeds[spec.name] = random.integers(
                limits.min, limits.max, spec.shape, dtype, endpoint=True
            )
        else:
            feeds[spec.name] = np.zeros(spec.shape, dtype)
    return feeds


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Times in milliseconds, ``times_ms[file][round]``, and how often the process lost its CPU."""
    from edgefuse.tflite.runtime import open_model

    models = []
    for place, path in enumerate(job["files"]):
        model = open_model(Path(path), job["runtime"], job["threads"], job["kernels"])
        if job.get("feeds"):
            with np.load(job["feeds"][place]) as held:
                model.feed(dict(held))
        else:
            model.feed(random_feeds(model.signature, job["seed"]))
        models.append(model)
    orders = list(itertools.permutations(range(len(models))))
    for _ in range(job["warmup"]):
        for model in models:
            model.invoke()
    times = [[0.0] * job["rounds"] for _ in models]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    for turn in range(job["rounds"]):
        for place in orders[(turn + job["process"]) % len(orders)]:
            invoke = models[place].invoke
            start = time.perf_counter_ns()
            invoke()
            times[place][turn] = (time.perf_counter_ns() - start) / 1e6
    lost = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    return {"times_ms": times, "preempted": lost}


if __name__ == "__main__":
    serve(measure)
