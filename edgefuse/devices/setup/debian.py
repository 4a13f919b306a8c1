"""Debian packages unpacked into a folder: no root, and nothing of the system is changed.

Problem: an emulator and the libraries of a foreign architecture are packages of the distribution;
installing them takes root and, for some, a foreign architecture enabled in dpkg. So apt works here
on a state of its own, in which nothing is installed: it finds the packages and all that they depend
on, down to the C library, verifies them against the distribution's signed index, and ``dpkg-deb``
unpacks them. The result depends on no library of the system.

Scope: the user's own apt sources, keys and proxies. The versions are those of the index on that
day and are recorded in ``packages.json``. Left alone: maintainer scripts are not run, so
what they would make (caches, alternatives) is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgefuse.devices.setup.foreign import program, run, said
from edgefuse.devices.setup.piece import is_whole, make_piece
from edgefuse.errors import FetchError, ToolError

RECORD = "packages.json"
_REMEDY = "this needs a Debian or Ubuntu system, whose packages it unpacks"
_UPDATE_TIMEOUT_S = 300
_DOWNLOAD_TIMEOUT_S = 900
_UNPACK_TIMEOUT_S = 120
# Hooks of the user's configuration belong to the system's own state.
_SETTINGS = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
"""


@dataclass(frozen=True)
class Packages:
    """What is unpacked together.

    Attributes:
        name: of its folder, with a digest of the rest.
        packages: as apt takes them, ``name`` or ``name:architecture``.
        foreign: Debian's name of a second architecture, ``armhf``; empty when none is needed.
        unwanted: patterns, relative to the folder, of what is removed after unpacking.
    """

    name: str
    packages: tuple[str, ...]
    foreign: str = ""
    unwanted: tuple[str, ...] = ("usr/share/doc", "usr/share/man", "usr/share/locale")

    def folder(self, prepared: Path) -> Path:
        digest = hashlib.sha256(repr((self.packages, self.foreign, self.unwanted)).encode())
        return prepared / "debian" / f"{self.name}-{digest.hexdigest()[:16]}"


def check(wanted: Packages, prepared: Path) -> None:
    """Refuse at once what :func:`make_packages` would find missing.

    Raises:
        ToolError: apt or dpkg is missing, and is needed.
    """
    if not is_whole(wanted.folder(prepared)):
        program("apt-get", _REMEDY)
        program("dpkg-deb", _REMEDY)


def make_packages(wanted: Packages, prepared: Path) -> Iterator[str]:
    """Unpack them where they are not there yet; yields a line for each thing done.

    Raises:
        ToolError: apt or dpkg is missing, or fails on what it got.
        FetchError: the package index or a package cannot be had.
    """

    def fill(folder: Path) -> Iterator[str]:
        apt = program("apt-get", _REMEDY)
        dpkg = program("dpkg-deb", _REMEDY)
        state = folder / ".apt"
        options = _options(state, wanted.foreign)
        yield f"{wanted.name}: reading the package index"
        done = run([apt, *options, "-qq", "update"], _UPDATE_TIMEOUT_S)
        unread = said(done.stdout, "E: ") if done.returncode else ""
        if unread:
            yield f"{wanted.name}: a source could not be read, going on with the others: {unread}"
        yield f"{wanted.name}: downloading {', '.join(wanted.packages)}"
        command = [apt, *options, "-qq", "-y", "--no-install-recommends", "--download-only"]
        done = run([*command, "install", *wanted.packages], _DOWNLOAD_TIMEOUT_S)
        if done.returncode:
            raise _unreachable(wanted, unread or said(done.stdout, "E: "))
        files = sorted((state / "cache" / "archives").glob("*.deb"))
        versions = _unpack(dpkg, files, folder)
        _remove(folder, (*wanted.unwanted, ".apt"))
        text = json.dumps(versions, indent=1, sort_keys=True)
        (folder / RECORD).write_text(text + "\n", "utf-8")
        yield f"{wanted.name}: unpacked {len(versions)} packages"

    yield from make_piece(wanted.folder(prepared), fill)


def versions(wanted: Packages, prepared: Path) -> dict[str, str]:
    """Version by package of what lies there."""
    record: dict[str, str] = json.loads((wanted.folder(prepared) / RECORD).read_text("utf-8"))
    return record


def _options(state: Path, foreign: str) -> list[str]:
    """A state of apt's own, empty, in a new folder."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()
    (state / "settings").write_text(_SETTINGS, "utf-8")
    options = [f"--config-file={state / 'settings'}"]
    for key, value in {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::State::extended_states": state / "extended_states",
        "Dir::Cache": state / "cache",
        "Dir::Cache::archives": state / "cache" / "archives",
        "Dir::Log": state,
        "APT::Sandbox::User": "root",
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Debug::NoLocking": "true",
    }.items():
        options += ["-o", f"{key}={value}"]
    if foreign:
        options += ["-o", f"APT::Architectures::={foreign}"]
    return options


def _unpack(dpkg: str, files: Sequence[Path], folder: Path) -> dict[str, str]:
    found = {}
    for file in files:
        wanted = "${Package}:${Architecture} ${Version}"
        for command in (
            [dpkg, "--show", f"--showformat={wanted}", str(file)],
            [dpkg, "--extract", str(file), str(folder)],
        ):
            done = run(command, _UNPACK_TIMEOUT_S)
            if done.returncode:
                raise ToolError(f"{file.name} cannot be unpacked: {said(done.stdout)}")
            if "--show" in command:
                name, _, version = done.stdout.strip().partition(" ")
                found[name] = version
    return found


def _remove(folder: Path, patterns: Sequence[str]) -> None:
    import shutil

    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _unreachable(wanted: Packages, reason: str) -> FetchError:
    hint = "check the network and apt's sources and proxy: `apt-get update` must work"
    if wanted.foreign:
        hint += f"; the sources must carry {wanted.foreign} too"
    return FetchError(f"{wanted.name}: apt-get: {reason}", hint=hint)
