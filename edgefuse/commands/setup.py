"""``edgefuse setup`` prepares targets; ``edgefuse targets`` lists them and what each needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edgefuse.devices.device import DEVICES, prepared_folder
from edgefuse.target import Target, list_targets, load_target


def set_up(names: Sequence[str], tell: Callable[[str], None]) -> Iterator[str]:
    """Prepare each target, in order; yields one line for each that is ready.

    Args:
        names: of targets, or paths of their files; all are loaded before anything is done.
        tell: given a line for each thing done.

    Raises:
        RecipeError: an unknown or wrong target.
        EdgefuseError: something that it needs cannot be had; what is prepared already stays.
    """
    targets = [load_target(name) for name in dict.fromkeys(names)]
    prepared = prepared_folder()
    for target in targets:
        kind = DEVICES.all()[target.device]
        if kind.prepare is None:
            yield f"{target.name}: nothing to set up"
            continue
        start = time.monotonic()
        for line in kind.prepare(target, prepared):
            tell(f"{target.name}: {line}")
        yield f"{target.name}: ready in {time.monotonic() - start:.1f} s, in {prepared}"


def target_lines() -> Iterator[str]:
    """Every target in a line, and below it what it needs and whether that is there."""
    prepared = prepared_folder()
    for name, path in list_targets().items():
        target = load_target(str(path))
        tried = "tried on hardware" if target.tried_on_hardware else "never tried on hardware"
        yield f"{name:<20} {target.summary} [{target.runtime}, {target.transport}; {tried}]"
        yield from _needs(target, prepared)


def _needs(target: Target, prepared: Path) -> Iterator[str]:
    kind = DEVICES.all()[target.device]
    needs = kind.needs(target, prepared) if kind.needs is not None else {}
    for what, there in needs.items():
        yield f"{'':<20} {'has' if there else 'needs'} {what}"
    if kind.prepare is not None and not all(needs.values()):
        yield f"{'':<20} not set up: edgefuse setup {target.name}"
