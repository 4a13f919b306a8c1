"""Run foreign libraries in a child process that can do no harm and never outlives us.

A worker is a module with ``main()`` that calls :func:`serve`. The parent writes a JSON request
into a private folder and reads a JSON reply; all output of the child goes to the log. The child
dies when its standard input closes, that is when the parent ends in whatever way.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgefuse.errors import ToolError

_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONHASHSEED": "0",
}


def run(
    module: str,
    request: Mapping[str, Any],
    *,
    work: Path,
    log: Path,
    timeout_s: float,
    tick: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run ``python -m module`` in the folder ``work`` and return its reply.

    Args:
        request: handed to the worker as JSON.
        work: private folder; the child's working directory.
        log: file that the child's stdout and stderr are appended to.
        timeout_s: wall-clock limit in seconds.
        tick: called about twice a second with the seconds gone.

    Raises:
        ToolError: the child failed, was killed, or ran out of time.
    """
    name = module.rpartition(".")[2]
    asked, answered = work / "request.json", work / "reply.json"
    asked.write_text(json.dumps(dict(request)))
    answered.unlink(missing_ok=True)
    paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(asked), str(answered)],
            cwd=work,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )
        start = time.monotonic()
        try:
            while process.poll() is None:
                gone = time.monotonic() - start
                if gone > timeout_s:
                    raise ToolError(
                        f"{name} ran longer than {timeout_s:.0f} s and was stopped",
                        hint=f"raise its timeout_s in the recipe; its output is in {log}",
                    )
                if tick:
                    tick(gone)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5 if gone > 1 else 0.05)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
    if not answered.is_file():
        raise ToolError(
            f"{name} ended with code {process.returncode} and no result",
            hint=f"its output is in {log}"
            + ("; it was killed: too little memory?" if process.returncode == -9 else ""),
        )
    reply: dict[str, Any] = json.loads(answered.read_text())
    if "error" in reply:
        raise ToolError(f"{name}: {reply['error']}", hint=f"its output is in {log}")
    return reply


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side: read the request, do the work, write the reply, die with the parent."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    asked, answered = map(Path, sys.argv[1:3])
    try:
        reply = work(json.loads(asked.read_text()))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        reply = {"error": f"{type(error).__name__}: {text}"}
    temporary = answered.with_suffix(".tmp")
    temporary.write_text(json.dumps(reply))
    temporary.replace(answered)


def _die_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)
