"""Push, rollback, status and prune on one device, over any transport.

The order of the steps, and why a failure at any of them leaves the device's current version as it
was, is told in :mod:`edgefuse.devices.push.installation`; this module takes them one after another.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.archive import unpack
from edgefuse.artifact import digest_file
from edgefuse.bundle import manifest as manifests
from edgefuse.devices.device import prepared_folder
from edgefuse.devices.program import Board, Program, program_of
from edgefuse.devices.push.device_lock import Lock, Owner, locked
from edgefuse.devices.push.installation import Installation, State
from edgefuse.devices.push.trial import BoardTrial, HostTrial, Trial, read_golden, require_golden
from edgefuse.devices.transport import Transport, digest_there, open_transport, place_of, put
from edgefuse.errors import DeviceUnavailable, EdgefuseError, StageError, UsageError

if TYPE_CHECKING:
    from edgefuse.target import Target

WAIT_S = 60.0
_MARGIN = 1 << 20
_TRIED = "models golden manifest.json"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Parcel:
    """A bundle ready to go.

    Attributes:
        archive: the file.
        sha256: its digest, and its version's name on the device.
        folder: it, unpacked here.
        sums: SHA-256 of each file.
        manifest: its manifest.
    """

    archive: Path
    sha256: str
    folder: Path
    sums: Mapping[str, str]
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class Pushed:
    """How a push or rollback ended."""

    current: str
    previous: str
    changed: bool
    removed: tuple[str, ...] = ()


@contextlib.contextmanager
def opened_bundle(archive: Path, sha256: str) -> Iterator[Parcel]:
    """Unpack a bundle here for as long as it is needed.

    Raises:
        StageError: it is missing, is not the one with this SHA-256, is damaged, would write
            outside its folder, or holds a model with random weights.
    """
    if not archive.is_file():
        raise StageError("no such bundle", where=str(archive))
    found = digest_file(archive)
    if found != sha256:
        raise StageError(
            f"the bundle's SHA-256 is {found}, expected {sha256}",
            hint="it was changed or cut on its way here: build or copy it again",
            where=str(archive),
        )
    with tempfile.TemporaryDirectory(prefix="edgefuse-push-") as made:
        folder = Path(made)
        names = unpack(archive, folder)
        manifest = installable(folder / "manifest.json", f"{archive}: manifest.json")
        if odd := [name for name in names if not name.isprintable() or " " in name[:1]]:
            raise StageError(f"member {odd[0]!r} has no plain name", where=str(archive))
        yield Parcel(archive, sha256, folder, {n: digest_file(folder / n) for n in names}, manifest)


def installable(path: Path, where: str = "") -> dict[str, Any]:
    """A manifest whose model may be installed.

    Args:
        where: its place in messages; the path when empty.

    Raises:
        UsageError: it is of another schema, or incomplete.
        StageError: it cannot be read, or the weights are random.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StageError(f"the bundle has no readable manifest.json: {error}") from error
    manifest = manifests.read_manifest(data, where or str(path))
    weights = manifest["weights"]
    if weights == "random":
        raise StageError(
            "the bundle holds random weights: it is never installed",
            hint="build it from trained weights",
        )
    return manifest


class Deployment:
    """One device. Nothing is reached before a method is called.

    Args:
        transport: another way to it than the target's own, for tests.
        tell: told what is being done, a line each.
    """

    def __init__(
        self, target: Target, *, transport: Transport | None = None, tell: Tell = lambda _: None
    ) -> None:
        self.target = target
        self._tell = tell
        self._transport = transport if transport is not None else open_transport(target)
        self._at = Installation(self._transport, place_of(target))
        self._remote = target.transport != "local"

    @property
    def where(self) -> str:
        return self._at.where

    def state(self) -> State:
        """What lies there.

        Raises:
            DeviceUnavailable: not reached, or of another architecture than the target's.
        """
        state = self._at.state()
        self._at.require_machine(state, self.target.architecture)
        if state.blocked:
            raise StageError(
                "is in the way: not a link made by edgefuse", where=f"{self.where}/current"
            )
        return state

    def plan(self, parcel: Parcel) -> list[str]:
        """What a push would do, found without changing anything."""
        read_golden(parcel.folder, parcel.manifest)
        program, state = self._program(), self.state()
        have = parcel.sha256 in state.releases
        here = have and not self._differences(parcel)
        lines = [f"lock held by {Owner(state.lock).who}"] if state.lock else []
        if not here:
            self._require_room(state, parcel, program)
            size = parcel.archive.stat().st_size / 1e6
            lines += [
                f"upload {parcel.archive.name} ({size:.1f} MB), verify {len(parcel.sums)} files"
            ]
        lines += ["run the golden vectors there"]
        if state.current != parcel.sha256:
            lines += [f"switch from {state.current[:12] or 'nothing'} to {parcel.sha256[:12]}"]
        return lines

    def push(self, parcel: Parcel, *, wait_s: float = WAIT_S) -> Pushed:
        """Install a bundle and make it current.

        Raises:
            DeviceUnavailable: not reached, cut, full, read-only, locked by another push, of
                another architecture, without a runtime.
            StageError: what arrives is damaged, twice; the runtime there refuses the model.
            GateFailed: a golden vector departs there.
        """
        golden = read_golden(parcel.folder, parcel.manifest)
        program, sha256 = self._program(), parcel.sha256
        boot = self.state().boot
        self._at.make()
        with self._locked(boot, wait_s) as lock:
            state = self.state()
            whole = sha256 in state.releases and not self._differences(parcel)
            self._at.sweep(
                lock.owner, "" if whole else sha256, "" if program is None else program.sha256
            )
            if not whole:
                self._require_room(state, parcel, program)
                self._upload(lock, parcel)
            folder = (
                self._at.release_folder(sha256)
                if whole
                else f"{self._at.upload_folder(sha256)}/files"
            )
            trial = self._trial(lock, program, parcel.folder)
            try:
                self._tell(require_golden(trial, folder, golden, self.target.kernels, self.where))
            except EdgefuseError as error:
                if not whole and not isinstance(error, DeviceUnavailable):
                    self._at.sweep(lock.owner)
                raise
            if not whole:
                self._at.release(lock.owner, sha256, parcel.sums["manifest.json"])
            changed = state.current != sha256
            if changed:
                self._at.switch(lock.owner, sha256, state.with_current(sha256))
            return self._ended(lock, state.current, changed or not whole)

    def rollback(self, *, wait_s: float = WAIT_S) -> Pushed:
        """Make the previous version current again, once it is proven whole and runs.

        Raises:
            UsageError: there is none.
            StageError, GateFailed, DeviceUnavailable: it is damaged or does not run there; as push.
        """
        program, state = self._program(), self.state()
        if not state.previous:
            raise UsageError(
                "there is no earlier version to go back to",
                hint="`edgefuse status --target NAME` lists what lies there",
                where=self.where,
            )
        with (
            self._locked(state.boot, wait_s) as lock,
            tempfile.TemporaryDirectory(prefix="edgefuse-rollback-") as made,
        ):
            state = self.state()
            sha256 = state.previous
            if not sha256:
                raise UsageError("there is no earlier version to go back to", where=self.where)
            self._tell(f"verifying {sha256[:12]}")
            if fault := self._fault(sha256):
                raise StageError(
                    f"version {sha256[:12]} is not whole: {fault}",
                    hint="push its bundle again",
                    where=self.where,
                )
            self._at.sweep(lock.owner, "", "" if program is None else program.sha256)
            here = self._fetched(sha256, Path(made))
            golden = read_golden(here, installable(here / "manifest.json"))
            trial = self._trial(lock, program, here)
            folder = self._at.release_folder(sha256)
            self._tell(require_golden(trial, folder, golden, self.target.kernels, self.where))
            self._at.switch(lock.owner, sha256)
            after = self._at.state()
            return Pushed(after.current, after.previous, True)

    def prune(self, *, keep: int | None = None, wait_s: float = WAIT_S) -> tuple[str, ...]:
        """Remove what dead pushes left and versions beyond those that are kept; their names."""
        state = self.state()
        if not state.present:
            return ()
        with self._locked(state.boot, wait_s) as lock:
            self._at.sweep(lock.owner)
            return self._surplus(lock, self.target.keep_versions if keep is None else keep)

    def faults(self, state: State) -> dict[str, str]:
        """What is wrong with each version that lies there; empty for one that is whole."""
        return {sha256: self._fault(sha256) for sha256 in state.releases}

    def _locked(self, boot: str, wait_s: float) -> contextlib.AbstractContextManager[Lock]:
        return locked(self._transport, self._at.root, boot, wait_s=wait_s, tell=self._tell)

    def _program(self) -> Program | None:
        return program_of(self.target, prepared_folder()) if self._remote else None

    def _trial(self, lock: Lock, program: Program | None, unpacked: Path) -> Trial:
        if program is None:
            return HostTrial(self.target)
        board = Board(self._at, program, self.target.threads, self._tell)
        board.install(lock.owner)
        return BoardTrial(board, self._transport, self._at.root, unpacked)

    def _differences(self, parcel: Parcel) -> list[str]:
        return self._at.differences(self._at.release_folder(parcel.sha256), parcel.sums)

    def _upload(self, lock: Lock, parcel: Parcel) -> None:
        """From absent to verified."""
        sha256, folder = parcel.sha256, self._at.upload_folder(parcel.sha256)
        self._tell(f"uploading {parcel.archive.stat().st_size / 1e6:.1f} MB")
        put(self._transport, parcel.archive, f"{folder}/bundle.tar", sha256, self._tell)
        self._at.unpack(lock.owner, sha256)
        if wrong := self._at.differences(f"{folder}/files", parcel.sums):
            found = digest_there(self._transport, f"{folder}/bundle.tar")
            self._at.sweep(lock.owner)
            raise StageError(
                f"the files there are not the bundle's: {wrong[0]}",
                hint="the device's disk or memory is damaged"
                if found == sha256
                else "the upload was damaged on the device's disk: push again",
                where=self.where,
            )
        self._tell(f"verified {len(parcel.sums)} files")

    def _require_room(self, state: State, parcel: Parcel, program: Program | None) -> None:
        wanted = 2 * parcel.archive.stat().st_size + _MARGIN + (program.size if program else 0)
        if parcel.sha256 in state.uploads:
            wanted -= parcel.archive.stat().st_size
        if state.free_bytes is not None and state.free_bytes < wanted:
            raise DeviceUnavailable(
                f"no space left on the device: {state.free_bytes / 1e6:.1f} MB free, "
                f"{wanted / 1e6:.1f} MB needed",
                hint="free some there; `edgefuse prune --target NAME` removes old versions",
                where=self.where,
            )

    def _ended(self, lock: Lock, before: str, changed: bool) -> Pushed:
        removed = self._surplus(lock, self.target.keep_versions)
        after = self._at.state()
        return Pushed(after.current, after.previous, changed, removed)

    def _surplus(self, lock: Lock, keep: int) -> tuple[str, ...]:
        surplus = self._at.state().surplus(keep)
        self._at.remove(lock.owner, surplus)
        return surplus

    def _fault(self, sha256: str) -> str:
        """Why a version there is not whole; empty when it is."""
        try:
            data = self._at.manifest(sha256)
            files = json.loads(data)["files"]
            sums = {str(name): str(entry["sha256"]) for name, entry in files.items()}
        except StageError as error:
            return error.message
        except (ValueError, LookupError, TypeError, AttributeError):
            return "manifest.json lists no files"
        from edgefuse.artifact import digest_bytes

        sums["manifest.json"] = digest_bytes(data)
        wrong = self._at.differences(self._at.release_folder(sha256), sums)
        return wrong[0] if wrong else ""

    def _fetched(self, sha256: str, into: Path) -> Path:
        """What the golden vectors need of a version there, here."""
        if not self._remote:
            return Path(self._at.release_folder(sha256))
        work, folder = f"{self._at.root}/.trial", self._at.release_folder(sha256)
        text = f'mkdir -p "$1" && cd "$2" && tar -cf "$1/golden.tar" {_TRIED}'
        done = self._transport.run(["sh", "-c", text, "edgefuse", work, folder])
        if done.code:
            raise StageError(f"cannot read the version there: {done.err.strip()}", where=self.where)
        archive = into / "golden.tar"
        archive.write_bytes(self._transport.read(f"{work}/golden.tar", 1 << 30))
        here = into / "files"
        here.mkdir()
        unpack_files(archive, here)
        return here


def unpack_files(archive: Path, folder: Path) -> None:
    """Plain files of an archive that a device made; folders among them are made as needed.

    Raises:
        StageError: not a whole archive, or a member that would leave the folder.
    """
    import tarfile
    from pathlib import PurePosixPath

    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise StageError(f"member {member.name!r} would leave the folder")
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None:
                    place = folder / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(stream.read())
    except tarfile.TarError as error:
        raise StageError(f"what the device sent is no whole archive: {error}") from error


__all__ = ["Deployment", "Parcel", "Pushed", "opened_bundle"]
