"""Cuts, kills, corruptions and full disks while bundles are pushed over ssh and over adb.

usage: python tests/benchmarks/push_faults.py [--count 220] [--seed 0] [--over ssh,adb] [--print]

Needs openssh-server and adb; disk-full and read-only faults need root, for a file system in memory,
and are left out without (the table says so). Every fault is drawn by the seed and done to a push
through the real client; afterwards the device's current version must be one of the known bundles to
the last byte and give its golden vectors exactly, and every fifth time an undisturbed push must go
well at once. Writes push_faults.json and push_faults.md beside this file; exit code 1 when anything
is not as it must be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from devices.transports.adbd import Adbd
from devices.transports.boards import Proxy, adb_target, private_adb, running_sshd
from devices.transports.faults import Board, Faults, Outcome, quick_leases
from devices.transports.parcels import make_bundle, tiny_model

HERE = Path(__file__).with_suffix("")
PADDING = 400_000
DISK = "size=6m"


@contextlib.contextmanager
def installation(folder: Path) -> Iterator[tuple[Path, bool]]:
    """A folder for the installation, on a small file system of its own where that may be."""
    root = folder / "in stalled"
    root.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", DISK, "edgefuse-faults", str(root)]
    mounted = os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield root, mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(root)], check=True)


@contextlib.contextmanager
def board(over: str, folder: Path) -> Iterator[Board]:
    """A board over ssh or adb, behind a proxy that can cut."""
    model = tiny_model(folder)
    made = [
        make_bundle(folder / "bundles" / f"{n}.bundle.tar", model, n, padding=PADDING)
        for n in (1, 2, 3)
    ]
    bundles = {sha256: path for path, sha256 in made}
    with contextlib.ExitStack() as stack:
        root, mounted = stack.enter_context(installation(folder))
        if over == "ssh":
            program = shutil.which("sshd") or "/usr/sbin/sshd"
            sshd = stack.enter_context(running_sshd(program, folder / "keys"))
            proxy = Proxy(sshd.port)
            target = sshd.target(root, proxy.port).model_copy(update={"kernels": "reference"})
            shells = sshd.kill_shells
        else:
            adbd = Adbd()
            stack.callback(adbd.close)
            os.environ.update(stack.enter_context(private_adb(folder / "adb")))
            proxy = Proxy(adbd.port)
            target = adb_target(root, proxy.port, kernels="reference")
            shells = adbd.kill_shells
        stack.callback(proxy.close)
        yield Board(root, target, proxy, bundles, shells, mounted)


def run(over: str, count: int, seed: int) -> list[Outcome]:
    """``count`` faults over one transport, the kinds in turn."""
    outcomes: list[Outcome] = []
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgefuse-faults-"))
        stack.enter_context(quick_leases())
        one = stack.enter_context(board(over, Path(made)))
        faults = Faults(one, seed)
        faults.prepare()
        start = time.monotonic()
        for number in range(count):
            outcome = faults.run(faults.kinds[number % len(faults.kinds)])
            outcomes.append(outcome)
            if number % 5 == 4 and (trouble := faults.recover()):
                outcomes.append(Outcome("push afterwards", "", "", trouble, "", trouble))
            gone = time.monotonic() - start
            state = f"{outcome.ended}, {outcome.current} {outcome.trouble}".strip()
            print(
                f"{over} {number + 1:3d} {gone:6.0f} s  {outcome.fault}, {outcome.detail}: "
                f"{state} {outcome.message}",
                flush=True,
            )
    return outcomes


def table(found: dict[str, list[Outcome]], seed: int) -> str:
    """Markdown: a row for each kind of fault and transport."""
    rows = [
        "| over | fault | times | pushed all the same | failed with an error | killed "
        "| current is old | current is new | not whole |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for over, outcomes in found.items():
        for kind in dict.fromkeys(one.fault for one in outcomes):
            rows.append(_row(over, kind, [one for one in outcomes if one.fault == kind]))
        rows.append(_row(over, "**all**", outcomes))
    messages = Counter(
        (over, one.ended, _plain(one.message))
        for over, outcomes in found.items()
        for one in outcomes
        if one.message
    )
    said = [f"| {over} | {ended} | {text} | {n} |" for (over, ended, text), n in
            sorted(messages.items(), key=lambda item: (item[0][0], -item[1]))]  # fmt: skip
    return "\n".join(
        [
            "# Faults while bundles are pushed",
            "",
            "Written by `make bench-push`. After every fault the device's current version was "
            "compared with its bundle byte for byte and ran its golden vectors; *not whole* counts "
            "where it was not, or where something else than an error of edgefuse was raised. A cut "
            "once leaves the network up: an upload goes on where it was, another step fails. "
            f"In *two at once* the row tells of the second. Seed {seed}.",
            "",
            *rows,
            "",
            "What was said:",
            "",
            "| over | error | message | times |",
            "|---|---|---|---:|",
            *said,
            "",
        ]
    )


def _row(over: str, kind: str, outcomes: list[Outcome]) -> str:
    ended = Counter(
        "pushed" if one.ended == "pushed" else "killed" if one.ended == "killed" else "error"
        for one in outcomes
    )
    current = Counter(one.current for one in outcomes)
    cells: list[Any] = [over, kind, len(outcomes), ended["pushed"], ended["error"], ended["killed"]]
    cells += [current["old"], current["new"] + current["another"]]
    cells += [sum(1 for one in outcomes if one.trouble)]
    return f"| {' | '.join(map(str, cells))} |"


def _plain(message: str) -> str:
    """A message without what differs from run to run."""
    import re

    message = re.sub(r"\(.*", "", message)
    message = re.sub(r"[0-9a-f]{12,}", "<sha>", message)
    return re.sub(r"\d+(\.\d+)?", "n", message)[:90].strip().replace("|", "/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=220)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--over", default="ssh,adb")
    parser.add_argument("--print", action="store_true", help="print only")
    parser.add_argument("--from", dest="given", type=Path, nargs="*", help="JSON of earlier runs")
    options = parser.parse_args()
    found = {}
    for path in options.given or ():
        for over, rows in json.loads(path.read_text())["outcomes"].items():
            found[over] = [Outcome(**row) for row in rows]
    for over in [] if options.given else options.over.split(","):
        found[over] = run(over, options.count, options.seed)
    text = table(found, options.seed)
    print(text)
    if not options.print:
        rows = {over: [asdict(one) for one in outcomes] for over, outcomes in found.items()}
        name = HERE if len(found) > 1 else HERE.with_name(f"push_faults_{next(iter(found))}")
        document = {"seed": options.seed, "outcomes": rows}
        name.with_suffix(".json").write_text(json.dumps(document, indent=0) + "\n")
        name.with_suffix(".md").write_text(text)
    return int(any(one.trouble for outcomes in found.values() for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
