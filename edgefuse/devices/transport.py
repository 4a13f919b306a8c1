"""What a way to reach a device must offer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Installed:
    """Where a bundle lies now.

    Attributes:
        release: the unpacked bundle's folder.
        current: the link that programs on the device open.
        previous: SHA-256 of the bundle that was current before; empty when there was none.
        changed: whether anything had to be done.
    """

    release: Path
    current: Path
    previous: str
    changed: bool


class Transport(Protocol):
    """Installs bundles. Idempotent; a failure at any moment leaves ``current`` as it was."""

    def install(self, bundle: Path, sha256: str, destination: Path) -> Installed: ...
