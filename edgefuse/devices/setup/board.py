"""What runs a LiteRT model on a board behind ssh or adb: the runner, its library, and theirs.

On ordinary Linux the runner and the runtime's library are enough. Android's own C library cannot
load what was built for Linux boards, so the C library that they were built for goes over too, with
its loader. Only aarch64: no other build of LiteRT for Linux boards has the C API.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgefuse.devices.setup import debian, programs, wheels
from edgefuse.devices.setup.debian import Packages
from edgefuse.devices.setup.piece import require_piece, together
from edgefuse.errors import UsageError
from edgefuse.target import Target

LOADER = "ld-linux-aarch64.so.1"
AARCH64 = Packages(
    "aarch64",
    ("qemu-user", "libc6-arm64-cross", "libstdc++6-arm64-cross", "libgcc-s1-arm64-cross"),
    unwanted=("usr/share", "usr/bin/qemu-[b-z]*", "usr/bin/qemu-alpha"),
)
GUEST = "usr/aarch64-linux-gnu"
_LIBRARIES = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
    *("libstdc++.so.6", "libgcc_s.so.1"),
)


def make_board_files(target: Target, prepared: Path) -> Iterator[str]:
    """Prepare :func:`board_files`; yields a line for each thing done."""
    _check(target)
    works = [
        wheels.make_wheel(wheels.LITERT_AARCH64, prepared),
        programs.make_runner(prepared, "aarch64"),
    ]
    if target.transport == "adb":
        works.append(debian.make_packages(AARCH64, prepared))
    yield from together(works)


def board_files(target: Target, prepared: Path) -> dict[str, Path]:
    """Files by their name on the board: ``edgefuse-runner``, ``libLiteRt.so``; for adb also the
    C library's, with its loader :data:`LOADER`.

    Raises:
        UsageError: there is no runtime for the board's architecture or version.
        DeviceUnavailable: not prepared, with the command that does it.
    """
    _check(target)
    wheel = wheels.LITERT_AARCH64.folder(prepared)
    files = {
        "edgefuse-runner": programs.runner(prepared, "aarch64", target.name),
        "libLiteRt.so": require_piece(wheel, "its runtime is", target.name)
        / "ai_edge_litert"
        / "libLiteRt.so",
    }
    if target.transport == "adb":
        root = require_piece(AARCH64.folder(prepared), "its C library is", target.name)
        for name in (LOADER, *_LIBRARIES):
            files[name] = (root / GUEST / "lib" / name).resolve()
    return files


def _check(target: Target) -> None:
    version = wheels.LITERT_AARCH64.version
    if target.architecture != "aarch64" or target.runtime_version not in (None, version):
        raise UsageError(
            f"{target.name}: the runner has LiteRT {version} for aarch64 only, not "
            f"{target.runtime_version or version} for {target.architecture}",
            hint="give `python`, the path of a Python on the board that has the runtime",
        )
