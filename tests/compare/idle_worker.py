"""A worker for tests: answers at once, or misbehaves as its first job says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from edgefuse.child import serve_all
from edgefuse.errors import SourceError

held: dict[str, Any] = {}


def work(job: dict[str, Any]) -> dict[str, Any]:
    if job["do"] == "prepare":
        held.update(job)
    crash = "crash" if job["do"] == "prepare" else "crash later"
    if held["behaviour"] == crash:
        print("last words", file=sys.stderr)
        os._exit(7)
    if held["behaviour"] == "raise":
        raise SourceError("cannot", where="here")
    if held["behaviour"] == "see":
        return {"unavailable": "sees " + os.environ["CUDA_VISIBLE_DEVICES"]}
    if held["behaviour"] == "lack":
        return {"unavailable": "no compiler"}
    if job["do"] == "prepare":
        print("noise on standard output")
        return {"operators": 1, "fusions": {}, "versions": {}, "note": ""}
    with Path(held["turns"]).open("a") as turns:
        turns.write(f"{os.getpid()}\n")
    return {"ms": [1.0] * job["invokes"], "cpu_ms": [1.0] * job["invokes"]}


if __name__ == "__main__":
    serve_all(work)
