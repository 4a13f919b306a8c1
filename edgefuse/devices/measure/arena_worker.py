"""One memory measurement in a fresh process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgefuse.child import serve
from edgefuse.devices.measure.arena import arena_tensors, span_bytes
from edgefuse.devices.measure.bench_worker import random_feeds


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Arena span and growth of resident memory, in bytes, over loading and one invoke."""
    from edgefuse.tflite.runtime import load_runtime, open_model

    load_runtime(job["runtime"])
    before = _status_bytes("VmRSS")
    model = open_model(Path(job["file"]), job["runtime"], kernels="builtin")
    model.feed(random_feeds(model.signature, 0))
    model.invoke()
    growth = max(0, _status_bytes("VmHWM") - before)
    blocks = {}
    for tensor in arena_tensors(model.source):
        place = model.address(tensor.index)
        if place is not None:
            blocks[tensor.index] = place
    scratch = []
    for index in model.scratch():
        place = model.address(index)
        if place is not None and place[1]:
            scratch.append(place)
    return {"measured_bytes": span_bytes(blocks, scratch), "peak_rss_growth_bytes": growth}


if __name__ == "__main__":
    serve(measure)
