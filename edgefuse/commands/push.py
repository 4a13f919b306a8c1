"""``edgefuse push``, ``rollback``, ``status`` and ``prune``: versions on devices.

Only a bundle that passed every gate for a target goes there, and only whole, proven versions become
current (:mod:`edgefuse.devices.push.installation`). A fleet is several targets in one command: a
canary goes first, alone; where it fails, the others are left as they are. The others follow one by
one, and one that fails does not keep the rest waiting. Every device is told of; the exit code is
the worst.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from edgefuse.bundle.evidence import require_passing
from edgefuse.devices.push.deployment import WAIT_S, Deployment, opened_bundle
from edgefuse.devices.push.device_lock import Owner
from edgefuse.errors import EdgefuseError, StageError, UsageError
from edgefuse.target import Target, load_target

Tell = Callable[[str], None]
Result = TypeVar("Result")


class FleetFailed(EdgefuseError):
    """Some devices of a fleet failed; carries the worst of their exit codes."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, hint="each device's own line above says why")
        self.exit_code = exit_code


@dataclass(frozen=True)
class DeviceReport:
    """How one device of a command ended.

    Attributes:
        target: its name.
        where: its address and folder; empty when not even that is known.
        outcome: one word or two: installed, already current, rolled back, failed, not tried, ...
        exit_code: 0 when it went well.
        message, hint: what failed and the remedy; empty when nothing did.
        current, previous: versions there afterwards, where known.
        steps: what was done or would be done, a line each.
    """

    target: str
    where: str
    outcome: str
    exit_code: int = 0
    message: str = ""
    hint: str = ""
    current: str = ""
    previous: str = ""
    steps: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """For people."""
        version = f" {self.current[:12]}" if self.current else ""
        before = f", previous {self.previous[:12]}" if self.previous else ""
        failed = f": {self.message}" + (f" ({self.hint})" if self.hint else "")
        told = failed if self.message else f"{version} at {self.where}{before}"
        return f"{self.target}: {self.outcome}{told}"


def push_bundle(
    bundle: Path,
    names: Sequence[str],
    *,
    canary: str | None = None,
    wait_s: float = WAIT_S,
    dry_run: bool = False,
    key: Path | None = None,
    tell: Tell = lambda _: None,
) -> list[DeviceReport]:
    """Install a bundle on targets, the canary first; a report for each.

    Every target is read, and the bundle's evidence for it checked, before any device is touched.

    Args:
        key: a file with the only trusted public key; None: those of the user's configuration.

    Raises:
        UsageError: no such bundle, target or canary; a target twice; no evidence beside it.
        GateFailed: its evidence is of other bytes, or not every gate passed on one of the targets;
            its signature is wrong, or missing where keys are trusted.
        EdgefuseError: what failed, when there is one target only.
    """
    targets = _ordered(_loaded(names, bundle), canary)
    sha256 = ""
    for target in targets:
        cleared = require_passing(bundle, target.name, key)
        sha256 = cleared.sha256
        signed = cleared.signed.summary if cleared.signed else "not signed, and no key is trusted"
        tell("; ".join([f"{target.name}: {signed}", *cleared.permissions]))
    with opened_bundle(bundle, sha256) as parcel:

        def work(target: Target, say: Tell) -> DeviceReport:
            one = Deployment(target, tell=say)
            if dry_run:
                return DeviceReport(
                    target.name, one.where, "would be pushed", steps=tuple(one.plan(parcel))
                )
            done = one.push(parcel, wait_s=wait_s)
            outcome = "installed" if done.changed else "already current"
            steps = tuple(f"removed {old[:12]}" for old in done.removed)
            return DeviceReport(
                target.name, f"{one.where}/current", outcome,
                current=done.current, previous=done.previous, steps=steps,
            )  # fmt: skip

        return _each(targets, work, tell, canary=True)


def roll_back(
    names: Sequence[str], *, wait_s: float = WAIT_S, tell: Tell = lambda _: None
) -> list[DeviceReport]:
    """Make the previous version of each target current again.

    Raises:
        EdgefuseError: what failed, when there is one target only.
    """

    def work(target: Target, say: Tell) -> DeviceReport:
        one = Deployment(target, tell=say)
        done = one.rollback(wait_s=wait_s)
        return DeviceReport(
            target.name, f"{one.where}/current", "rolled back to",
            current=done.current, previous=done.previous,
        )  # fmt: skip

    return _each(_loaded(names), work, tell)


def prune(
    names: Sequence[str],
    *,
    keep: int | None = None,
    wait_s: float = WAIT_S,
    tell: Tell = lambda _: None,
) -> list[DeviceReport]:
    """Remove old versions and what dead pushes left; never the current and the previous one."""
    if keep is not None and keep < 2:
        raise UsageError("--keep is at least 2: the current version and the previous one")

    def work(target: Target, say: Tell) -> DeviceReport:
        one = Deployment(target, tell=say)
        removed = one.prune(keep=keep, wait_s=wait_s)
        state = one.state()
        return DeviceReport(
            target.name, one.where, f"removed {len(removed)} versions;",
            current=state.current, previous=state.previous,
            steps=tuple(f"removed {old[:12]}" for old in removed),
        )  # fmt: skip

    return _each(_loaded(names), work, tell)


@dataclass(frozen=True)
class Status:
    """What lies on one device.

    Attributes:
        versions: each version's fault; empty for one that is whole.
    """

    target: str
    where: str
    machine: str
    current: str
    previous: str
    versions: dict[str, str]
    uploads: tuple[str, ...]
    locked_by: str
    free_bytes: int | None

    @property
    def fault(self) -> str:
        """Why the current version is not what it should be; empty when it is whole."""
        return self.versions.get(self.current, "is missing") if self.current else ""

    @property
    def lines(self) -> list[str]:
        """For people."""
        if not self.versions and not self.current:
            lines = [f"{self.target}: nothing installed at {self.where}"]
        else:
            state = f"damaged: {self.fault}" if self.fault else "healthy"
            shown = f"{self.current[:12]} ({state})" if self.current else "none"
            lines = [f"{self.target}: current {shown} at {self.where}"]
            lines += [f"  previous  {self.previous[:12]}"] if self.previous else []
        for sha256, fault in self.versions.items():
            if sha256 not in (self.current, self.previous) or fault:
                lines.append(f"  version   {sha256[:12]}  {fault or 'healthy'}")
        lines += [f"  upload    {sha256[:12]}, cut" for sha256 in self.uploads]
        lines += [f"  locked    by {self.locked_by}"] if self.locked_by else []
        if self.free_bytes is not None:
            lines.append(f"  free      {self.free_bytes / 1e6:.0f} MB")
        return lines


def status(names: Sequence[str]) -> list[Status]:
    """What lies on each target; every file of every version is hashed there.

    Raises:
        DeviceUnavailable: one is not reached.
    """
    found = []
    for target in _loaded(names):
        one = Deployment(target)
        state = one.state()
        found.append(
            Status(
                target=target.name,
                where=one.where,
                machine=state.machine,
                current=state.current,
                previous=state.previous,
                versions=one.faults(state),
                uploads=state.uploads,
                locked_by=Owner(state.lock).who if state.lock else "",
                free_bytes=state.free_bytes,
            )
        )
    return found


def require_healthy(found: Sequence[Status]) -> None:
    """Raises StageError when a current version is damaged or missing."""
    for one in found:
        if one.fault:
            raise StageError(
                f"{one.target}: the current version {one.current[:12]} {_of(one.fault)}",
                hint="push its bundle again, or go back: edgefuse rollback --target NAME",
                where=one.where,
            )


def _of(fault: str) -> str:
    return fault if fault.startswith("is ") else f"is damaged: {fault}"


def require_all(reports: Sequence[DeviceReport]) -> None:
    """Raises FleetFailed with the worst exit code when a device of several failed."""
    failed = [one for one in reports if one.exit_code]
    if failed:
        raise FleetFailed(
            f"{len(failed)} of {len(reports)} devices failed: "
            f"{', '.join(one.target for one in failed)}",
            max(one.exit_code for one in failed),
        )


def as_json(rows: Sequence[DeviceReport | Status]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=1)


def _loaded(names: Sequence[str], bundle: Path | None = None) -> list[Target]:
    if not names:
        raise UsageError("no target given", hint="--target NAME; `edgefuse targets` lists them")
    targets = [load_target(name, [bundle.parent] if bundle is not None else []) for name in names]
    known: dict[str, Any] = {}
    for target in targets:
        if target.name in known:
            raise UsageError(f"target {target.name} is given twice")
        known[target.name] = target
    return targets


def _ordered(targets: list[Target], canary: str | None) -> list[Target]:
    """The canary first; without one named, the first that is given."""
    if canary is None:
        return targets
    first = [target for target in targets if target.name == canary]
    if not first:
        raise UsageError(
            f"the canary {canary!r} is none of the targets",
            hint=f"targets: {', '.join(target.name for target in targets)}",
        )
    return first + [target for target in targets if target.name != canary]


def _each(
    targets: Sequence[Target],
    work: Callable[[Target, Tell], DeviceReport],
    tell: Tell,
    *,
    canary: bool = False,
) -> list[DeviceReport]:
    """One device after another. One alone raises; of several each gets its report."""
    reports: list[DeviceReport] = []
    for place, target in enumerate(targets):

        def say(text: str, name: str = target.name) -> None:
            tell(f"{name}: {text}")

        try:
            reports.append(work(target, say))
        except EdgefuseError as error:
            if len(targets) == 1:
                raise
            reports.append(
                DeviceReport(
                    target.name, error.where, "failed", error.exit_code, error.message, error.hint
                )
            )
            if canary and place == 0:
                rest = "not tried: the canary failed"
                reports += [DeviceReport(other.name, "", rest) for other in targets[1:]]
                break
    return reports
