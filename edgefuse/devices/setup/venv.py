"""Private virtual environments: foreign Python programs with libraries that ours must not share.

Problem: tflite-micro wants NumPy 2, edgefuse's other tools want NumPy 1; and what judges a model
must be the same program tomorrow. So each tool gets an environment of its own, with every package
pinned to a version and to the SHA-256 of its wheels, all of which stand in our source.

Scope: wheels from the user's own package index, through pip, whose configuration (index, proxy,
certificates) is honoured; a constraints file is set aside because the pins say more. An environment
is made under a temporary name, its modules are imported once, and it is renamed: a half-made one is
never used. It is used without the network from then on. Left alone: edgefuse's own environment.

What is there is usable only while the Python that it was made with is: when that moved or changed,
the links in it are dead, :func:`interpreter` says so and the next setup makes it anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgefuse.errors import DeviceUnavailable, FetchError, ToolError
from edgefuse.store import disk_error, is_disk_error

PIP_TIMEOUT_S = 1800
_PROVE_TIMEOUT_S = 120
_MARKER = "edgefuse.json"


@dataclass(frozen=True)
class Pin:
    """One package at one version; ``sha256`` lists the wheels that are accepted for it."""

    package: str
    version: str
    sha256: tuple[str, ...]

    @property
    def line(self) -> str:
        """As pip's requirements file has it."""
        return " ".join(
            [f"{self.package}=={self.version}", *(f"--hash=sha256:{h}" for h in self.sha256)]
        )


@dataclass(frozen=True)
class Environment:
    """What an environment holds.

    Attributes:
        name: of its folder, and in messages.
        pins: every package, dependencies included: nothing else is installed.
        proves: modules that must be importable before it counts as made.
    """

    name: str
    pins: tuple[Pin, ...]
    proves: tuple[str, ...]

    @property
    def requirements(self) -> str:
        return "".join(f"{pin.line}\n" for pin in self.pins)

    @property
    def versions(self) -> str:
        """For people: ``numpy 2.2.6, flatbuffers 25.12.19``."""
        return ", ".join(f"{pin.package} {pin.version}" for pin in self.pins)

    def folder(self, prepared: Path) -> Path:
        """Where it lies: another list of pins or another Python lies elsewhere."""
        digest = hashlib.sha256(self.requirements.encode()).hexdigest()[:16]
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        return prepared / "venvs" / f"{self.name}-{digest}-{python}"


def make_environment(wanted: Environment, prepared: Path) -> Iterator[str]:
    """Make it where it is not there and whole; yields a line for each thing done.

    Raises:
        FetchError: pip cannot get the wheels, or their hashes differ from the pins.
        ToolError: what was installed cannot be imported.
        StoreError: the folder cannot be written.
    """
    folder = wanted.folder(prepared)
    with _locked(folder):
        broken = (_fault(wanted, folder) or _refusal(wanted, folder)) if folder.exists() else ""
        if folder.exists() and not broken:
            yield f"{wanted.name}: already there ({wanted.versions})"
            return
        if broken:
            yield f"{wanted.name}: {broken}; making it anew"
        try:
            part = Path(tempfile.mkdtemp(prefix=f".part-{folder.name}-", dir=folder.parent))
            _make(wanted, part)
            if folder.exists():
                folder.rename(part.with_name(f"{part.name}-old"))
            part.rename(folder)
        except OSError as error:
            raise _disk(error, folder) from error
        finally:
            _sweep(folder)
        yield f"{wanted.name}: installed {wanted.versions}"


def interpreter(wanted: Environment, prepared: Path, target: str) -> Path:
    """The environment's Python.

    Args:
        target: whose `edgefuse setup` is the remedy.

    Raises:
        DeviceUnavailable: the environment is not there, or its Python is gone.
    """
    folder = wanted.folder(prepared)
    fault = _fault(wanted, folder) if folder.exists() else "not set up"
    if fault:
        raise DeviceUnavailable(
            f"{wanted.name}: {fault}", hint=f"edgefuse setup {target}", where=str(folder)
        )
    return folder / "bin" / "python"


def _fault(wanted: Environment, folder: Path) -> str:
    """Why what lies there cannot be used; empty when it can."""
    python = folder / "bin" / "python"
    try:
        marker = json.loads((folder / _MARKER).read_text("utf-8"))
    except (OSError, ValueError):
        return "its record is missing or damaged"
    if not isinstance(marker, dict):
        return "its record is missing or damaged"
    if marker.get("requirements") != wanted.requirements:
        return "it holds other versions"
    if not python.exists():
        return "the Python that it was made with is gone"
    if str(python.resolve()) != marker.get("python"):
        return "its Python is another one than it was made with"
    return ""


def _make(wanted: Environment, folder: Path) -> None:
    """A whole environment in an empty folder; it may be renamed, as nothing in it is absolute but
    the links to Python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    requirements = folder / "requirements.txt"
    requirements.write_text(wanted.requirements, "utf-8")
    _install(wanted, requirements, packages)
    if refusal := _refusal(wanted, folder):
        raise ToolError(f"{wanted.name}: {refusal}")
    marker = {"requirements": wanted.requirements, "python": str(python.resolve())}
    (folder / _MARKER).write_text(json.dumps(marker, indent=1, sort_keys=True), "utf-8")


def _refusal(wanted: Environment, folder: Path) -> str:
    """Why its modules cannot be imported; empty when they can."""
    imports = "; ".join(f"import {module}" for module in wanted.proves)
    done = _run([str(folder / "bin" / "python"), "-I", "-c", imports], _PROVE_TIMEOUT_S)
    return f"it cannot be loaded: {_last_line(done.stdout)}" if done.returncode else ""


def _install(wanted: Environment, requirements: Path, packages: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--require-hashes"]
    command += ["--target", str(packages), "-r", str(requirements)]
    done = _run(command, PIP_TIMEOUT_S)
    if done.returncode == 0:
        return
    from edgefuse.fetch import without_secrets

    errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR: ")]
    said = without_secrets((errors or [_last_line(done.stdout)])[0].removeprefix("ERROR: "))[:300]
    if "No space left on device" in done.stdout:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "DO NOT MATCH THE HASHES" in done.stdout:
        raise FetchError(
            f"{wanted.name}: the package index serves other bytes than the pinned ones: {said}",
            hint="nothing was installed: use an index that mirrors the original wheels",
        )
    system = f"{os.uname().sysname} {os.uname().machine}"
    raise FetchError(
        f"{wanted.name}: pip cannot install {wanted.versions}: {said}",
        hint="check the network, proxy and pip settings; there must be wheels for Python "
        f"{sys.version_info.major}.{sys.version_info.minor} on {system}",
    )


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    # pip refuses --target beside --user, which some people have in their configuration.
    settings = {"PIP_CONSTRAINT": os.devnull, "PIP_USER": "0"}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **settings},
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{Path(command[0]).name} took longer than {timeout_s:g} s") from None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time makes an environment; the next one finds it made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock").open("w")
    except OSError as error:
        raise _disk(error, folder) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep(folder)
        yield


def _sweep(folder: Path) -> None:
    """Remove what killed processes left; the caller holds the lock."""
    for left in folder.parent.glob(f".part-{folder.name}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _disk(error: OSError, place: Path) -> Exception:
    if is_disk_error(error):
        return disk_error(error, place)
    return ToolError(f"the environment cannot be made: {error.strerror or error}", where=str(place))
