"""A scripted way to this machine: it drops, truncates and delays by its script."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from devices.transports.boards import make_target
from edgefuse.devices.transport import BLOCK, COMMAND_S, Completed, ConnectionCut
from edgefuse.devices.transports.local import Local


@dataclass
class Script:
    """What goes wrong.

    Attributes:
        at: number of the operation that the connection is cut in, from 0; None: never.
        when: before it is done; after it was done, so that only the answer is lost; half: as after,
            but of a write only half of the bytes have arrived.
        comes_back: whether the operations after that go through again.
        delay_s: of each operation.
    """

    at: int | None = None
    when: Literal["before", "after", "half"] = "before"
    comes_back: bool = False
    delay_s: float = 0.0


class Faulty:
    """As transport ``local``, by a script. ``done`` counts operations."""

    def __init__(self, script: Script, root: Path = Path("/nowhere/else")) -> None:
        self.script = script
        self.done = 0
        self._inner = Local(make_target(root, "local"))
        self.where = "faulty"

    def run(self, argv: Sequence[str], *, timeout_s: float = COMMAND_S) -> Completed:
        cut = self._begin()
        if cut:
            if self.script.when != "before":
                self._inner.run(argv, timeout_s=timeout_s)
            raise ConnectionCut("the connection was cut", where=self.where)
        return self._inner.run(argv, timeout_s=timeout_s)

    def write(self, source: Path, destination: str, offset: int) -> None:
        cut = self._begin()
        if cut and self.script.when == "half":
            with TemporaryDirectory() as folder:
                part = Path(folder) / "part"
                data = source.read_bytes()
                half = offset + (len(data) - offset) // 2
                part.write_bytes(data[: half + BLOCK // 3])
                self._inner.write(part, destination, offset)
        elif not cut or self.script.when == "after":
            self._inner.write(source, destination, offset)
        if cut:
            raise ConnectionCut("the connection was cut", where=self.where)

    def read(self, path: str, limit: int) -> bytes:
        if self._begin():
            raise ConnectionCut("the connection was cut", where=self.where)
        return self._inner.read(path, limit)

    def _begin(self) -> bool:
        """Whether the connection is cut in this operation."""
        time.sleep(self.script.delay_s)
        number, self.done = self.done, self.done + 1
        if self.script.at is None or number < self.script.at:
            return False
        return number == self.script.at or not self.script.comes_back
