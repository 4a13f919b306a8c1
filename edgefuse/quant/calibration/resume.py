"""Calibration that goes on where it was interrupted: its state in one file.

::

    <folder>/<key>.calibration    one line of JSON, then the counts of all tensors, zlib

The key is the SHA-256 of the model's bytes, the sample set's digest, what the ranges shall be
(the convergence report depends on it) and the version of the statistics. The file is whole or not
there; it names its key and its own digest, and one that does not fit is dropped with a warning.
Histograms are integers and merge exactly: a calibration that goes on ends with the bits of one
that was never interrupted.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import digest_bytes, digest_file, digest_json
from edgefuse.store import write_atomically

if TYPE_CHECKING:
    from edgefuse.quant.calibration.calibrate import TensorStatistics
    from edgefuse.quant.calibration.convergence import Convergence

#: To be raised when statistics, their sampling or this file change.
_VERSION = 1


@dataclass(frozen=True)
class Resume:
    """Where the state lies, and when it is saved.

    Attributes:
        folder: outlives the run; the state is of no use once the product is made.
        key: see :func:`resume_key`.
        warn: told of a state that is dropped.
        every_s: seconds between two saves, at the end of a block of samples.
    """

    folder: Path
    key: str
    warn: Callable[[str], None]
    every_s: float = 5.0

    @property
    def path(self) -> Path:
        return self.folder / f"{self.key}.calibration"

    def save(
        self, done: int, statistics: Sequence[TensorStatistics], convergence: Convergence | None
    ) -> None:
        """Write the state after ``done`` feeds, whole or not at all.

        Raises:
            StoreError: full disk, missing permission.
        """
        counts = b"".join(s.histogram.counts.astype("<i8").tobytes() for s in statistics)
        packed = zlib.compress(counts, 1)
        record = {
            "key": self.key,
            "done": done,
            "tensors": [_record(s) for s in statistics],
            "convergence": None if convergence is None else convergence.to_json(),
            "counts": digest_bytes(packed),
        }
        head = json.dumps({"digest": digest_json(record), "record": record})
        write_atomically(self.path, head.encode() + b"\n" + packed)

    def restore(
        self, statistics: Sequence[TensorStatistics], convergence: Convergence | None
    ) -> int:
        """Put a saved state into empty statistics; the number of feeds that it stands for."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            return self._dropped(str(error.strerror))
        head, _, packed = data.partition(b"\n")
        try:
            whole = json.loads(head)
            record = whole["record"]
            sound = (
                whole["digest"] == digest_json(record)
                and record["counts"] == digest_bytes(packed)
                and record["key"] == self.key
            )
            if not sound:
                return self._dropped("it is damaged, or of another calibration")
            names = [tensor["name"] for tensor in record["tensors"]]
            reported = record["convergence"] is not None
            if names != [s.name for s in statistics] or reported != (convergence is not None):
                return self._dropped("it is of another calibration")
            _fill(statistics, record["tensors"], zlib.decompress(packed))
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            return self._dropped(f"it is damaged ({error})")
        if convergence is not None:
            convergence.take(record["convergence"])
        return int(record["done"])

    def _dropped(self, why: str) -> int:
        self.warn(f"the saved state of an interrupted calibration is not used: {why} ({self.path})")
        with suppress(OSError):
            self.path.unlink()
        return 0


def resume_key(model: Path, samples_digest: str, ranges: Any) -> str:
    """The name of a calibration: 64 hex digits.

    Args:
        samples_digest: of the sample set, order included.
        ranges: JSON; the options that decide the ranges of a convergence report.
    """
    parts = [digest_file(model), samples_digest, ranges, _VERSION]
    return digest_json({"calibration": parts})


def _record(statistics: TensorStatistics) -> dict[str, Any]:
    histogram, ranks = statistics.histogram, statistics.ranks
    return {
        "name": statistics.name,
        "limit": histogram.limit,
        "minimum": histogram.minimum,
        "maximum": histogram.maximum,
        "ranks": None if ranks is None else ranks.least.tolist(),
    }


def _fill(
    statistics: Sequence[TensorStatistics], records: Sequence[dict[str, Any]], counts: bytes
) -> None:
    import numpy as np

    table = np.frombuffer(counts, "<i8").astype(np.int64).reshape(len(statistics), -1)
    for found, record, row in zip(statistics, records, table):
        found.histogram.limit = float(record["limit"])
        found.histogram.minimum = float(record["minimum"])
        found.histogram.maximum = float(record["maximum"])
        found.histogram.counts[:] = row
        if found.ranks is not None:
            found.ranks.least[:] = record["ranks"]
