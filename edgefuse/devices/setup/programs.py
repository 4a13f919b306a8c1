"""The runner built for boards, and the counting plugin built for this machine's emulator.

The runner is C of ours, a few hundred lines, and needs the C library of a board alone: it opens the
runtime by path. It is built with Zig's C compiler, a wheel that holds clang and the C libraries of
every architecture: against glibc 2.28, so that boards since 2018 run it. Of its 411 MB the 239 MB
that these targets need are unpacked.

The name of each folder holds a digest of the sources, so that a newer edgefuse builds anew.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgefuse.devices.runner_client import SOURCES
from edgefuse.devices.setup.foreign import program, run, said
from edgefuse.devices.setup.piece import is_whole, make_piece, require_piece
from edgefuse.devices.setup.wheels import Wheel, make_wheel
from edgefuse.errors import ToolError

_TIMEOUT_S = 300
_ZIG = Wheel(
    "ziglang",
    "0.17.1",
    "manylinux_2_12_x86_64",
    "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
)
_NO_CC = "install a C compiler: apt-get install gcc libc6-dev"
_FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra")
_GLIBC: Mapping[str, str] = {
    "aarch64": "aarch64-linux-gnu.2.28",
    "armv7": "arm-linux-gnueabihf.2.28",
    "x86_64": "x86_64-linux-gnu.2.28",
}
_OTHER_LIBRARIES = ("darwin", "freebsd", "mingw", "musl", "netbsd", "openbsd", "wasi")
_HEADERS = ("any-linux", "generic-glibc", "aarch64-linux-", "arm-linux-", "x86-linux-")


def runner_folder(prepared: Path, architecture: str) -> Path:
    """Where the built runner lies, or would lie."""
    names = ("runner.c", "tflite.h", "operators.h")
    return (
        prepared
        / "runners"
        / f"{architecture}-{_digest(_GLIBC[architecture], _ZIG.sha256, *names)}"
    )


def runner(prepared: Path, architecture: str, target: str) -> Path:
    """The built runner.

    Raises:
        DeviceUnavailable: it is not built, with the command that builds it.
    """
    folder = runner_folder(prepared, architecture)
    return require_piece(folder, "the runner is", target) / "edgefuse-runner"


def make_runner(prepared: Path, architecture: str) -> Iterator[str]:
    """Build it where it is not there yet; yields a line for each thing done.

    Raises:
        FetchError: the compiler cannot be had.
        ToolError: this machine cannot run it, or it fails.
    """
    folder = runner_folder(prepared, architecture)
    if is_whole(folder):
        return
    yield from make_compiler(prepared)
    zig = _ZIG.folder(prepared) / "ziglang" / "zig"

    def fill(part: Path) -> Iterator[str]:
        yield f"runner for {architecture}: building"
        output = part / "edgefuse-runner"
        with tempfile.TemporaryDirectory(prefix=".zig-", dir=part.parent) as cache:
            command = [
                str(zig),
                "cc",
                "-target",
                _GLIBC[architecture],
                *_FLAGS,
                "-s",
                "-o",
                str(output),
                "runner.c",
                "-ldl",
            ]
            caches = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
            _compile(command, caches)
        output.chmod(0o755)
        yield f"runner for {architecture}: built"

    yield from make_piece(folder, fill)


def make_compiler(prepared: Path) -> Iterator[str]:
    """Zig's C compiler, unpacked; yields a line for each thing done."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ToolError(
            f"runners are built on Linux x86-64, not on {platform.system()} {platform.machine()}",
            hint="set up on such a machine and copy the folder `devices` of the cache",
        )
    yield from make_wheel(_ZIG, prepared, keep=_needed)
    zig = _ZIG.folder(prepared) / "ziglang" / "zig"
    if not os.access(zig, os.X_OK):
        zig.chmod(0o755)


def plugin_folder(prepared: Path) -> Path:
    """Where the counting plugin lies, or would lie."""
    return prepared / "runners" / f"plugin-{_digest('count.c')}"


def check_plugin(prepared: Path) -> None:
    """Refuse at once what :func:`make_plugin` would find missing: a C compiler, if it is needed."""
    if not is_whole(plugin_folder(prepared)):
        program("cc", _NO_CC)


def make_plugin(prepared: Path) -> Iterator[str]:
    """Build it with this machine's C compiler, where it is not there yet."""

    def fill(part: Path) -> Iterator[str]:
        cc = program("cc", _NO_CC)
        output = part / "count.so"
        _compile([cc, *_FLAGS, "-fPIC", "-shared", "-o", str(output), "count.c"], {})
        yield "counting plugin: built"

    yield from make_piece(plugin_folder(prepared), fill)


def _compile(command: list[str], settings: Mapping[str, str]) -> None:
    done = run(command, _TIMEOUT_S, settings=settings, folder=SOURCES)
    if done.returncode:
        name = Path(command[0]).name
        raise ToolError(f"{name} cannot build: {said(done.stdout, 'error: ')}")


def _digest(*parts: str) -> str:
    """Of how something is built: names of sources stand for their content."""
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for part in parts:
        source = SOURCES / part
        digest.update((source.read_bytes() if source.is_file() else part.encode()) + b"\0")
    return digest.hexdigest()[:16]


def _needed(member: str) -> bool:
    """Which of the compiler's files building a C program for Linux and glibc needs."""
    parts = member.split("/")
    if parts[:3] == ["ziglang", "lib", "libc"] and len(parts) > 4:
        if parts[3] == "include":
            return parts[4].startswith(_HEADERS)
        return parts[3] not in _OTHER_LIBRARIES
    return not member.startswith(
        ("ziglang/lib/libcxx", "ziglang/lib/libtsan", "ziglang/lib/libunwind", "ziglang/doc")
    )
