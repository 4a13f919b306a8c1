"""tflite-micro in a process of its own: ``PYTHON -I tflite_micro_worker.py``, a job on stdin.

It runs in a private environment and imports nothing but the standard library, NumPy and
tflite-micro. A job, one line of JSON::

    {"file": PATH, "arena_bytes": N, "outputs": N,
     "feeds": NPZ, "results": NPZ, "answer": JSON}

``feeds`` holds ``SAMPLE/INPUT`` (places in the file's list of inputs), ``results`` gets
``SAMPLE/OUTPUT``. The allocator's report goes to standard error.

tflite-micro reuses the input's memory: inputs are set before every invoke. With an arena that is
too small it raises, and sometimes crashes: the caller takes either for a refusal.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from pathlib import Path
from typing import Any


def _resident_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def work(job: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    from tflite_micro import runtime

    with np.load(job["feeds"]) as held:
        feeds = {name: held[name] for name in held.files}
    before = _resident_bytes("VmRSS")
    interpreter = runtime.Interpreter.from_file(job["file"], arena_size=job["arena_bytes"])
    samples = sorted({int(name.partition("/")[0]) for name in feeds})
    inputs = sorted({int(name.partition("/")[2]) for name in feeds})
    results = {}
    for sample in samples:
        for place in inputs:
            interpreter.set_input(feeds[f"{sample}/{place}"], place)
        interpreter.invoke()
        for place in range(job["outputs"]):
            results[f"{sample}/{place}"] = np.array(interpreter.get_output(place))
    growth = max(0, _resident_bytes("VmHWM") - before)
    interpreter.print_allocations()
    np.savez(job["results"], **results)
    return {"peak_rss_growth_bytes": growth}


if __name__ == "__main__":
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    asked = json.loads(sys.stdin.readline())
    Path(asked["answer"]).write_text(json.dumps(work(asked)), "utf-8")
