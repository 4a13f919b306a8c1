"""Whether a .tflite file from elsewhere can be opened at all: tried in a child process.

Problem: the runtime trusts what a file says of itself. One flipped bit in an offset or a shape, and
it reads elsewhere in memory, which ends the process without a word. So a file that this program did
not make is unpacked, opened and run once where that does no harm. Left alone: what it computes.
"""

from __future__ import annotations

from pathlib import Path

from edgefuse.child import call
from edgefuse.errors import EdgefuseError, SourceError, ToolError

_TIMEOUT_S = 120.0


def require_intact(path: Path, log: Path) -> None:
    """Open and run a file in a child process; ``log`` takes what the runtime says.

    Raises:
        SourceError: it ends the runtime's process, or cannot be unpacked.
        EdgefuseError: as opening it raises.
    """
    try:
        call("edgefuse.tflite.intact_worker", {"file": str(path.absolute())}, log, _TIMEOUT_S)
    except ToolError as error:
        if "ended with code" not in error.message and "ran longer" not in error.message:
            raise
        raise SourceError(
            f"the runtime does not survive this file: {error.message}",
            where=str(path),
            hint="the file is damaged: make it again",
        ) from None
    except EdgefuseError as error:
        error.where = error.where or str(path)
        raise
