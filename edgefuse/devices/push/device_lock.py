"""One push at a time on a device: a lock whose dead holder is told from a slow one without clocks.

The lock is a symbolic link ``.lock`` in the installation's folder: making one is atomic, fails
when it is there, and its text carries who holds it, so there is never a lock without an owner.
While a push works, a thread renews a second link, ``.beat``, every few seconds.

A lock is broken when its holder is dead, and only then:

- the device's boot id is another than the owner's: it was restarted;
- the owner ran on this computer, and that process is gone;
- the beat did not change while this process watched for LEASE_S seconds of its own.

No time of day enters, neither the device's nor this computer's. Breaking is a rename, and what was
renamed is looked at: who took another's fresh lock by mistake puts it back. A holder that lost its
lock all the same finds out before its next change: each of these names its owner.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgefuse.devices.transport import Transport, refuse, script
from edgefuse.errors import DeviceUnavailable

LEASE_S = 30.0
BEAT_S = 5.0
LOST = 9
"""Exit code of a script that found another owner."""
GUARD = f"""
[ "$(readlink "$1/.lock")" = "$2" ] || {{ echo "another push took the lock" >&2; exit {LOST}; }}
cd "$1" || exit 1
"""
"""Begins every script that changes something; its words begin with the folder and the owner."""

_TAKE = """
cd "$1" || exit 1
said=$(ln -s "$2" .lock 2>&1); made=$?
[ $made = 0 ] && rm -f .beat
[ $made = 0 ] || [ -L .lock ] || { echo "$said" >&2; exit 1; }
echo "owner $(readlink .lock)"; echo "beat $(readlink .beat)"
"""
_BEAT = GUARD + 'rm -f .beat.new; ln -s "$3" .beat.new && mv -f .beat.new .beat'
_GIVE = GUARD + "rm -f .lock .beat .beat.new"
_BREAK = """
cd "$1" || exit 1
mv -f .lock ".broken.$3" 2>/dev/null || exit 0
found=$(readlink ".broken.$3")
[ "$found" = "$2" ] || ln -s "$found" .lock 2>/dev/null
rm -f ".broken.$3"
"""


@dataclass(frozen=True)
class Owner:
    """Who holds a lock; ``text`` is what the link says."""

    text: str

    @property
    def _fields(self) -> list[str]:
        return [*self.text.split("|"), "", "", "", "", ""][:5]

    @property
    def boot(self) -> str:
        return self._fields[1]

    @property
    def who(self) -> str:
        return re.sub(r"[^A-Za-z0-9@._-]", "?", self._fields[4]) or "somebody"

    def is_dead_here(self) -> bool:
        """Whether it was a process of this computer that has ended."""
        computer, process = self._fields[2], self._fields[3]
        if computer != _computer() or not re.fullmatch(r"[0-9]+-[0-9]+", process):
            return False
        pid, _, started = process.partition("-")
        return _started(int(pid)) != started


def this_owner(boot: str) -> Owner:
    """This process as the owner of a new lock on a device with that boot id."""
    who = re.sub(r"[^A-Za-z0-9@._-]", "-", f"{_user()}@{socket.gethostname()}")[:60]
    process = f"{os.getpid()}-{_started(os.getpid())}"
    return Owner("|".join([secrets.token_hex(6), boot, _computer(), process, who]))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _computer() -> str:
    """This computer since it was started, and the name space of its process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        names = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return secrets.token_hex(8)  # Not to be told: equal to no other, so never dead by this.
    return hashlib.sha256(f"{boot}|{names}".encode()).hexdigest()[:16]


def _started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; 0 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "0"
    return stat.rpartition(")")[2].split()[19]


class Lock:
    """A held lock. ``owner`` is what every changing script must be given."""

    def __init__(self, transport: Transport, root: str, owner: str) -> None:
        self._transport, self._root = transport, root
        self.owner = owner
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def _renew(self) -> None:
        count = 0
        while not self._stopped.wait(BEAT_S):
            count += 1
            with contextlib.suppress(DeviceUnavailable):
                done = script(self._transport, _BEAT, self._root, self.owner, str(count))
                if done.code == LOST:
                    return

    def start(self) -> None:
        self._thread.start()

    def give_back(self) -> None:
        """Remove the lock; where the device is gone it stays, and is broken by the next push."""
        self._stopped.set()
        self._thread.join(BEAT_S)
        with contextlib.suppress(DeviceUnavailable):
            script(self._transport, _GIVE, self._root, self.owner, timeout_s=10)


@contextlib.contextmanager
def locked(
    transport: Transport,
    root: str,
    boot: str,
    *,
    wait_s: float,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Lock]:
    """Hold the lock of an existing installation folder.

    Args:
        boot: the device's boot id.
        wait_s: how long another push is waited for once it is known to be alive.
        tell: told when a dead lock is broken, and that another is waited for.

    Raises:
        DeviceUnavailable: another push holds it still, or the folder cannot be written.
    """
    owner = this_owner(boot)
    begun = watched = time.monotonic()
    seen: tuple[str, str] | None = None
    alive = False
    while True:
        holder, beat = _take(transport, root, owner)
        if holder == owner.text:
            break
        now = time.monotonic()
        if seen != (holder, beat):
            if seen is None:
                tell(f"{Owner(holder).who} is pushing there: waiting")
            alive = seen is not None
            seen, watched = (holder, beat), now
        rebooted = Owner(holder).boot != boot
        if rebooted or Owner(holder).is_dead_here() or now - watched > LEASE_S:
            tell("breaking the lock of a push that is dead")
            done = script(transport, _BREAK, root, holder, secrets.token_hex(4))
            if done.code:
                refuse(done, "cannot break a dead lock", f"{transport.where}:{root}")
            continue
        # Until its beat has been seen to change it may be dead: then its lease decides.
        if alive and now - begun > wait_s:
            raise DeviceUnavailable(
                f"another push holds the lock: {Owner(holder).who}",
                hint="try again when it is done",
                where=f"{transport.where}:{root}",
            )
        time.sleep(min(0.5, LEASE_S / 4))
    lock = Lock(transport, root, owner.text)
    lock.start()
    try:
        yield lock
    finally:
        lock.give_back()


def _take(transport: Transport, root: str, owner: Owner) -> tuple[str, str]:
    """Try to make the lock; who holds it now, and the beat."""
    done = script(transport, _TAKE, root, owner.text)
    if done.code:
        refuse(done, "cannot lock", f"{transport.where}:{root}")
    found = dict(line.partition(" ")[::2] for line in done.text.splitlines())
    return found.get("owner", ""), found.get("beat", "")
