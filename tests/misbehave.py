"""A worker for tests: does what the job says."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from edgefuse.child import serve
from edgefuse.errors import SourceError


def work(job: dict[str, Any]) -> dict[str, Any]:
    match job["do"]:
        case "sleep":
            time.sleep(60)
        case "raise":
            raise SourceError("bad file", hint="another file", where="x.tflite")
        case "crash":
            print("last words", file=sys.stderr)
            os._exit(7)
        case "silent":
            os._exit(0)
        case "print":
            print("noise on standard output")
    return {"answer": job["do"]}


if __name__ == "__main__":
    serve(work)
