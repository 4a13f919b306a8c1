"""Wheels of other architectures, and tools that come as wheels: downloaded, checked, unpacked.

The user's own package index is asked, through pip, whose configuration is honoured; a constraints
file is set aside because version and SHA-256 stand here. A wheel is an archive: nothing in it is
run by unpacking, and no member is written outside the folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgefuse.devices.setup.foreign import run, said
from edgefuse.devices.setup.piece import make_piece
from edgefuse.errors import FetchError

_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Wheel:
    """One wheel.

    Attributes:
        package, version: as the index knows it.
        platform: pip's name of the platform it is for.
        sha256: of the file.
        python: of which CPython, ``3.11``; empty when it is for any.
    """

    package: str
    version: str
    platform: str
    sha256: str
    python: str = ""

    def folder(self, prepared: Path) -> Path:
        return prepared / "wheels" / f"{self.package}-{self.version}-{self.sha256[:16]}"


LITERT_AARCH64 = Wheel(
    "ai-edge-litert",
    "2.1.0",
    "manylinux_2_27_aarch64",
    "92b24d2507fccf5680c26e712c156266dcf64a892df3921dd42f4a7d26527462",
    "3.11",
)
TFLITE_RUNTIME_AARCH64 = Wheel(
    "tflite-runtime",
    "2.14.0",
    "manylinux_2_34_aarch64",
    "ce9fa5d770a9725c746dcbf6f59f3178233b3759f09982e8b2db8d2234c333b0",
    "3.11",
)
TFLITE_RUNTIME_ARMV7 = Wheel(
    "tflite-runtime",
    "2.14.0",
    "manylinux_2_34_armv7l",
    "c4e66a74165b18089c86788400af19fa551768ac782d231a9beae2f6434f7949",
    "3.11",
)


def make_wheel(
    wheel: Wheel, prepared: Path, *, keep: Callable[[str], bool] = lambda name: True
) -> Iterator[str]:
    """Download and unpack it where it is not there yet; yields a line for each thing done.

    Args:
        keep: which members are unpacked, by their path in the wheel.

    Raises:
        FetchError: pip cannot get it, or gets other bytes than the pinned ones.
    """
    name = f"{wheel.package} {wheel.version}"

    def fill(folder: Path) -> Iterator[str]:
        yield f"{name}: downloading"
        arrived = folder / ".wheel"
        file = _download(wheel, arrived)
        found = _digest(file)
        if found != wheel.sha256:
            raise FetchError(
                f"{name}: {file.name} has SHA-256 {found}, expected {wheel.sha256}",
                hint="nothing was unpacked: use an index that mirrors the original wheels",
            )
        _unpack(file, folder, keep)
        shutil.rmtree(arrived)
        yield f"{name}: unpacked"

    yield from make_piece(wheel.folder(prepared), fill)


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-input"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--platform", wheel.platform, "-d", str(folder)]
    if wheel.python:
        command += ["--python-version", wheel.python, "--implementation", "cp"]
    command += [f"{wheel.package}=={wheel.version}"]
    done = run(command, _TIMEOUT_S, settings={"PIP_CONSTRAINT": os.devnull})
    files = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode or len(files) != 1:
        raise FetchError(
            f"{wheel.package} {wheel.version}: pip download: {said(done.stdout, 'ERROR: ')}",
            hint="check the network, proxy and pip settings; the index must hold the wheel for "
            f"{wheel.platform}",
        )
    return files[0]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _unpack(file: Path, folder: Path, keep: Callable[[str], bool]) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                path = PurePosixPath(member.filename)
                if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                    raise FetchError(f"{file.name} would write outside its folder: {path}")
                if keep(member.filename):
                    archive.extract(member, folder)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise FetchError(f"{file.name} cannot be unpacked: {error}") from error
