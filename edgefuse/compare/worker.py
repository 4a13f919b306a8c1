"""One row of a comparison in a process of its own: ``python -m edgefuse.compare.worker``.

Its first job prepares the model and answers with what runs in it; each later job is one burst of
timed invocations. Between bursts it waits on its pipe and takes no CPU. The first invocation of a
burst is not counted: other rows have just used the caches.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edgefuse.child import serve_all
from edgefuse.compare.prepared import Prepared, Request, Unavailable
from edgefuse.errors import EdgefuseError, ToolError

if TYPE_CHECKING:
    from edgefuse.compare.prepared import Feed

_WARM_UP = 3
_invoke: Callable[[], object]


def work(job: dict[str, Any]) -> dict[str, Any]:
    """One job: ``prepare`` or ``burst``.

    Raises:
        ToolError: whatever the foreign library raised.
    """
    try:
        return _prepare(job) if job["do"] == "prepare" else _burst(job["invokes"], job["limit_s"])
    except EdgefuseError:
        raise
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        raise ToolError(f"{type(error).__name__}: {text}") from error


def _prepare(job: Mapping[str, Any]) -> dict[str, Any]:
    """Load the model, run every sample for its outputs, warm up on the first.

    Job: ``family``; ``request``; ``feeds`` an .npz of ``SAMPLE/INPUT``; ``results`` the .npz to
    write, of ``SAMPLE/OUTPUT``. Reply: as :class:`Prepared`, or ``unavailable``.
    """
    import numpy as np

    global _invoke
    found = _load(job["family"], Request(**job["request"]), feeds := _feeds(job["feeds"]))
    if isinstance(found, Unavailable):
        return {"unavailable": found.reason}
    results = {
        f"{sample}/{name}": value
        for sample, feed in enumerate(feeds)
        for name, value in found.outputs(feed).items()
    }
    np.savez(job["results"], **results)
    _invoke = found.bind(feeds[0])
    for _ in range(_WARM_UP):
        _invoke()
    return {
        "operators": found.operators,
        "fusions": found.fusions,
        "versions": dict(found.versions),
        "note": found.note,
        "device": found.device,
    }


def _load(family: str, request: Request, feeds: list[Feed]) -> Prepared | Unavailable:
    if family.startswith("cuda_"):
        from edgefuse.compare.cuda_rows import prepare
    elif family == "torch":
        from edgefuse.compare.torch_rows import prepare
    elif family == "onnxruntime":
        from edgefuse.compare.onnxruntime_rows import prepare
    elif family == "openvino":
        from edgefuse.compare.openvino_rows import prepare
    elif family == "tensorflow":
        from edgefuse.compare.tensorflow_rows import prepare
    else:
        from edgefuse.compare.litert_rows import prepare
    return prepare(request, feeds[0])


def _feeds(path: str) -> list[Feed]:
    import numpy as np

    samples: dict[int, dict[str, Any]] = {}
    with np.load(path) as file:
        for key in file.files:
            sample, _, name = key.partition("/")
            samples.setdefault(int(sample), {})[name] = file[key]
    return [samples[index] for index in sorted(samples)]


def _burst(invokes: int, limit_s: float) -> dict[str, Any]:
    """Wall and CPU time of up to ``invokes`` invocations, in milliseconds, fewer once ``limit_s``
    has passed."""
    invoke = _invoke
    invoke()
    wall_ms: list[float] = []
    cpu_ms: list[float] = []
    begin = now = time.perf_counter_ns()
    while len(wall_ms) < invokes and (not wall_ms or now - begin < limit_s * 1e9):
        cpu, start = time.process_time_ns(), time.perf_counter_ns()
        invoke()
        now = time.perf_counter_ns()
        wall_ms.append((now - start) / 1e6)
        cpu_ms.append((time.process_time_ns() - cpu) / 1e6)
    return {"ms": wall_ms, "cpu_ms": cpu_ms}


if __name__ == "__main__":
    serve_all(work)
