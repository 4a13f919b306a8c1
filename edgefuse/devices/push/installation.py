"""What an installation looks like on a device, and the steps that change it.

Layout below a target's ``install_path``::

    current -> releases/<sha>    what the board's program opens; switched by renaming a link over it
    releases/<sha>/              the files of one bundle, whole from the moment it has this name
    releases/.tmp-<sha>/         an upload: bundle.tar, kept when it is cut, and files/ unpacked
    releases/.old-<sha>/         on its way out
    sums/<sha>                   SHA-256 of that release's manifest.json, which lists all others
    runtime/<sha>/               what runs models there, by the digest of its files
    history                      versions that became current, oldest first
    .trial, .gate                what golden vectors and gates read and write while they run
    .lock, .beat                 see device_lock

The state machine of a push; each arrow is one script, so one connection, and a failure anywhere
leaves ``current`` as it was::

    absent --put--> arrived --SHA-256 of the archive--> proven --tar--> unpacked
      --SHA-256 of every file--> verified --golden vectors--> tried
      --sync, rename--> released --history, then the link--> current

What is found half-way (cut, killed, rebooted) is either gone on with (bundle.tar) or made anew
(files/); a ``releases/<sha>`` is never trusted for its name: it is hashed again before it becomes
current, by a push as well as by a rollback. ``history`` is written before the link is switched:
entries behind the current one never became it, or were rolled back from, and are cut off by the
next push. The previous version is the nearest before the current one that still lies there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgefuse.artifact import digest_bytes
from edgefuse.devices.push.device_lock import GUARD, LOST
from edgefuse.devices.transport import Completed, Transport, refuse, script
from edgefuse.errors import DeviceUnavailable, StageError

LIMIT = 1 << 22
"""Bytes of a manifest."""
_PROGRAMS = "dd wc cat tar mv ln readlink find df rm mkdir tail head chmod sync uname"
_SHA = re.compile(r"[0-9a-f]{64}")
_MACHINES = {
    "x86_64": ("x86_64", "amd64"),
    "aarch64": ("aarch64", "arm64"),
    "armv7": ("armv7l", "armv7", "armv8l", "aarch64", "arm64"),
}
# Where `sync` takes no names it refuses them or writes everything; both keep the promise.
KEEP = 'keep() { find "$@" -exec sync {} + 2>/dev/null || sync; }\n'
_HASH = "if command -v sha256sum >/dev/null; then H=sha256sum; else H='shasum -a 256'; fi\n"

_PROBE = """
echo "machine $(uname -m)"
echo "boot $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
for p in $2; do command -v "$p" >/dev/null || echo "missing $p"; done
command -v sha256sum >/dev/null || command -v shasum >/dev/null || echo "missing sha256sum"
cd "$1" 2>/dev/null || { echo absent; exit 0; }
[ -L current ] && echo "current $(readlink current)"
[ -e current ] && [ ! -L current ] && echo blocked
[ -f history ] && while read -r line; do echo "history $line"; done <history
for d in releases/*; do [ -d "$d" ] && echo "release ${d#releases/}"; done
for d in releases/.tmp-*; do [ -d "$d" ] && echo "upload ${d#releases/.tmp-}"; done
[ -L .lock ] && echo "lock $(readlink .lock)"
echo "free $(df -Pk . | tail -n 1)"
exit 0
"""
_MAKE = """
mkdir -p "$1/releases" "$1/sums" "$1/runtime" || exit 1
for folder in "$1" "$1/releases"; do : >"$folder/.new" && rm "$folder/.new" || exit 1; done
"""
_SWEEP = (
    GUARD
    + """
rm -rf releases/.old-* .switch.* .trial .gate
for d in releases/.tmp-* runtime/.tmp-*; do
    [ "$d" = "releases/.tmp-$3" ] || [ "$d" = "runtime/.tmp-$4" ] || rm -rf "$d"
done
[ -z "$3" ] || mkdir -p "releases/.tmp-$3"
"""
)
_UNPACK = (
    GUARD
    + """
cd "releases/.tmp-$3" || exit 1
rm -rf files && mkdir files && tar -xf bundle.tar -C files && chmod -R u+rwX,go+rX files
"""
)
_SUMS = (
    _HASH
    + """
cd "$1" || exit 1
find . ! -type f ! -type d -exec echo odd {} \\; || exit 1
find . -type f -exec $H {} + || exit 1
"""
)
_RELEASE = (
    GUARD
    + KEEP
    + """
keep "releases/.tmp-$3/files"
rm -f "sums/$3"; printf '%s\\n' "$4" >sums/.new && mv -f sums/.new "sums/$3" || exit 1
if [ -e "releases/$3" ]; then mv "releases/$3" "releases/.old-$3" || exit 1; fi
mv "releases/.tmp-$3/files" "releases/$3" || exit 1
keep releases sums
rm -rf "releases/.tmp-$3" "releases/.old-$3"
exit 0
"""
)
# Renaming into a folder replaces a link of that name; renaming onto a link that leads to a folder
# would move into that folder, and not every `mv` has -T.
_SWITCH = (
    GUARD
    + KEEP
    + """
sha=$3; shift 3
[ -d "releases/$sha" ] || { echo "the version is gone" >&2; exit 1; }
if [ -e current ] && [ ! -L current ]; then echo "current is no link of edgefuse" >&2; exit 1; fi
if [ $# -gt 0 ]; then
    printf '%s\\n' "$@" >history.new && keep history.new && mv -f history.new history || exit 1
fi
rm -rf .switch.new && mkdir .switch.new && ln -s "releases/$sha" .switch.new/current || exit 1
mv -f .switch.new/current ./ || exit 1
rmdir .switch.new
keep . -prune
[ "$(readlink current)" = "releases/$sha" ]
"""
)
_REMOVE = (
    GUARD
    + """
shift 2
for sha in "$@"; do
    [ "$(readlink current)" = "releases/$sha" ] && continue
    mv "releases/$sha" "releases/.old-$sha" && rm -rf "releases/.old-$sha" "sums/$sha" || exit 1
done
exit 0
"""
)


@dataclass(frozen=True)
class State:
    """What lies on a device.

    Attributes:
        machine: as ``uname -m`` says.
        boot: the boot id; empty where the kernel tells none.
        present: whether there is an installation folder at all.
        blocked: whether ``current`` is something else than a link.
        current: the version that it leads to; empty when there is none.
        history: versions that became current, oldest first.
        releases: versions whose folder lies there, in no order.
        uploads: versions of which a part has arrived.
        lock: who holds the lock, as the link says; empty for nobody.
        free_bytes: on the file system; None where `df` says nothing that can be read.
    """

    machine: str
    boot: str
    present: bool
    blocked: bool
    current: str
    history: tuple[str, ...]
    releases: tuple[str, ...]
    uploads: tuple[str, ...]
    lock: str
    free_bytes: int | None

    @property
    def previous(self) -> str:
        """The version that a rollback would go to; empty when there is none."""
        if self.current not in self.history:
            return ""
        place = len(self.history) - 1 - self.history[::-1].index(self.current)
        earlier = [sha for sha in self.history[:place] if sha != self.current]
        return next((sha for sha in reversed(earlier) if sha in self.releases), "")

    def with_current(self, sha: str) -> tuple[str, ...]:
        """The history once ``sha`` is pushed: what was rolled back from is cut off."""
        if self.current in self.history:
            place = len(self.history) - self.history[::-1].index(self.current)
            kept = self.history[:place]
        else:
            kept = (self.current,) if self.current else ()
        return (*(one for one in kept if one != sha), sha)[-100:]

    def surplus(self, keep: int) -> tuple[str, ...]:
        """Versions beyond ``keep``: never the current or the previous one; the oldest go first,
        those that no history knows before all others."""
        rank = {sha: place for place, sha in enumerate(self.history)}
        others = [sha for sha in self.releases if sha not in (self.current, self.previous)]
        others.sort(key=lambda sha: (rank.get(sha, -1), sha))
        return tuple(others[: max(0, len(self.releases) - keep)])


class Installation:
    """The steps, over any transport. Those that change something need the lock's owner."""

    def __init__(self, transport: Transport, root: str) -> None:
        self.transport = transport
        self.root = root

    @property
    def where(self) -> str:
        return f"{self.transport.where}:{self.root}"

    def upload_folder(self, sha256: str) -> str:
        return f"{self.root}/releases/.tmp-{sha256}"

    def release_folder(self, sha256: str) -> str:
        return f"{self.root}/releases/{sha256}"

    def state(self) -> State:
        """Look, and change nothing.

        Raises:
            DeviceUnavailable: not reached, or it lacks a program.
        """
        done = self._script(_PROBE, _PROGRAMS, doing="cannot look at the installation")
        rows = [line.partition(" ")[::2] for line in done.text.splitlines()]
        lists: dict[str, list[str]] = {}
        for key, value in rows:
            lists.setdefault(key, []).append(value.strip())
        if missing := lists.get("missing"):
            raise DeviceUnavailable(
                f"the device has no {', '.join(missing)}",
                hint="install busybox, toybox or the system's own",
                where=self.transport.where,
            )
        link = lists.get("current", [""])[0]
        free = re.search(r"\s(\d+)\s+\d+%", lists.get("free", [""])[0])
        return State(
            machine=lists.get("machine", [""])[0],
            boot=lists.get("boot", [""])[0],
            present="absent" not in lists,
            blocked="blocked" in lists,
            current=link.removeprefix("releases/") if _is_ours(link) else "",
            history=_shas(lists.get("history", ())),
            releases=_shas(lists.get("release", ())),
            uploads=_shas(lists.get("upload", ())),
            lock=lists.get("lock", [""])[0],
            free_bytes=int(free[1]) * 1024 if free else None,
        )

    def require_machine(self, state: State, architecture: str | None) -> None:
        """Refuse a board of another instruction set than its target says."""
        if architecture is not None and state.machine not in _MACHINES[architecture]:
            raise DeviceUnavailable(
                f"the device is {state.machine}, its target says {architecture}",
                hint="is it the right board? else correct `architecture` in the target",
                where=self.transport.where,
            )

    def make(self) -> None:
        """The folders."""
        done = script(self.transport, _MAKE, self.root)
        if done.code:
            refuse(done, "cannot use the installation folder", self.where)

    def sweep(self, owner: str, sha256: str = "", program: str = "") -> None:
        """Remove what dead pushes left but the uploads of these two; the first's folder is made."""
        self._script(_SWEEP, owner, sha256, program, doing="cannot clear what a dead push left")

    def unpack(self, owner: str, sha256: str) -> None:
        self._script(_UNPACK, owner, sha256, doing="cannot unpack the bundle", timeout_s=600)

    def differences(self, folder: str, expected: Mapping[str, str]) -> list[str]:
        """What in a folder there is not as expected (name -> SHA-256); empty when it is whole."""
        done = script(self.transport, _SUMS, folder, timeout_s=600)
        if done.code:
            return [f"cannot be read: {(done.err or done.text).strip()[-200:]}"]
        found: dict[str, str] = {}
        wrong = []
        for line in done.text.splitlines():
            digest, _, name = line.partition(" ")
            name = name.lstrip(" *").removeprefix("./")
            if _SHA.fullmatch(digest):
                found[name] = digest
            else:
                wrong.append(f"{name or line} is no plain file")
        wrong += [f"{name} is missing" for name in expected if name not in found]
        wrong += [f"{name} is damaged" for name in expected if found.get(name, "") not in
                  ("", expected[name])]  # fmt: skip
        return sorted([*wrong, *(f"{name} does not belong there" for name in found.keys()
                                 - expected.keys())])  # fmt: skip

    def manifest(self, sha256: str) -> bytes:
        """The manifest of a release there, as it was when it was installed.

        Raises:
            StageError: it is missing or damaged.
        """
        folder = self.release_folder(sha256)
        recorded = self.transport.read(f"{self.root}/sums/{sha256}", 100).decode("ascii", "replace")
        data = self.transport.read(f"{folder}/manifest.json", LIMIT)
        if digest_bytes(data) != recorded.strip():
            raise StageError("manifest.json is damaged", where=f"{self.transport.where}:{folder}")
        return data

    def release(self, owner: str, sha256: str, manifest_sha256: str) -> None:
        """Give verified files their name, on the disk."""
        words = (owner, sha256, manifest_sha256)
        self._script(_RELEASE, *words, doing="cannot put the version in place", timeout_s=600)

    def switch(self, owner: str, sha256: str, history: Sequence[str] = ()) -> None:
        """Make a version current in one atomic step; a new history is written before."""
        self._script(_SWITCH, owner, sha256, *history, doing="cannot switch", timeout_s=600)

    def remove(self, owner: str, versions: Sequence[str]) -> None:
        if versions:
            self._script(_REMOVE, owner, *versions, doing="cannot remove old versions")

    def _script(self, text: str, *words: str, doing: str, timeout_s: float = 120.0) -> Completed:
        done = script(self.transport, text, self.root, *words, timeout_s=timeout_s)
        if done.code == LOST and "took the lock" in done.err + done.text:
            raise DeviceUnavailable(
                f"{doing}: another push took the lock",
                hint="this one was silent for too long: try again",
                where=self.where,
            )
        if done.code:
            refuse(done, doing, self.where)
        return done


def _is_ours(link: str) -> bool:
    return bool(re.fullmatch(r"releases/[0-9a-f]{64}", link))


def _shas(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(value for value in values if _SHA.fullmatch(value))
