"""The log of one command: log records and Python warnings go there, and nowhere else."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from edgefuse.store import raise_disk_error

_MAX_LOG_BYTES = 10_000_000


class _LogFile(logging.FileHandler):
    """A log that falls silent when its disk is full: the run itself reports that."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def logged(path: Path, command: str) -> Iterator[None]:
    """Write the log while the block runs; a log that grew too large starts anew.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        if path.is_file() and path.stat().st_size > _MAX_LOG_BYTES:
            path.unlink()
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise_disk_error(error, path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    kept = list(root.handlers)
    root.handlers = [handler]
    logging.getLogger("edgefuse").setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.getLogger("edgefuse").info("%s", command)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = kept
        handler.close()
