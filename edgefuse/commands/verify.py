"""``edgefuse verify``: what was checked of a bundle, as a table; the first thing that is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgefuse import console as consoles
from edgefuse.bundle.verify import NAMES, Finding, Verification, verify
from edgefuse.errors import EdgefuseError
from edgefuse.log_file import logged

SCHEMA = 1
REBUILD = "rebuild"
LOG = "verify.log"  # in the store: what a rebuild's tools say


def verify_bundle(
    bundle: Path,
    *,
    key: Path | None = None,
    target: str | None = None,
    rebuild: bool = False,
    sources: Path | None = None,
    quiet: bool = False,
    verbose: bool = False,
    command: str = "",
) -> tuple[dict[str, Any], EdgefuseError | None]:
    """Check a bundle, and build it again when asked to.

    Args:
        key: the only trusted public key; None: those of the user's configuration.
        target: that must have passed; None: any.
        sources: the folder that the recipe's relative paths start at; for ``rebuild``.

    Returns:
        The document (schema 1: ``bundle``, ``sha256``, ``verdict``, ``exit_code``, ``checks``), and
        the error of the first check that did not pass.

    Raises:
        UsageError: no such bundle.
    """
    start = time.monotonic()
    made = verify(bundle, key=key, target=target)
    if rebuild:
        made.check(
            REBUILD,
            lambda: _rebuilt(made, sources, quiet=quiet, verbose=verbose, command=command),
            *NAMES,
        )
    return _document(made, time.monotonic() - start), made.error


def _rebuilt(
    made: Verification, sources: Path | None, *, quiet: bool, verbose: bool, command: str
) -> str:
    from edgefuse.rebuild import rebuild
    from edgefuse.store import Store, default_root

    store = Store(default_root())
    with store.work_folder() as work:
        log = store.root / LOG
        with logged(log, command):
            console = consoles.choose(quiet=quiet, verbose=verbose)
            return rebuild(made, sources, work, console, log)


def _document(made: Verification, seconds: float) -> dict[str, Any]:
    error = made.error
    return {
        "schema": SCHEMA,
        "bundle": str(made.bundle),
        "sha256": made.sha256,
        "verdict": next((f.verdict for f in made.findings if f.error is not None), "pass"),
        "exit_code": 0 if error is None else error.exit_code,
        "seconds": round(seconds, 3),
        "checks": [_row(finding) for finding in made.findings],
    }


def _row(finding: Finding) -> dict[str, Any]:
    row = {"name": finding.name, "verdict": finding.verdict, "detail": finding.detail}
    if finding.error is not None:
        row |= {"kind": type(finding.error).__name__, "hint": finding.error.hint}
    return row


def verification_lines(document: Mapping[str, Any]) -> Iterable[str]:
    """The table for a terminal: a line for each check, and one for all."""
    checks = document["checks"]
    wide = max(len(row["verdict"]) for row in checks)
    yield f"{'check':<9}  {'verdict':<{wide}}  detail"
    for row in checks:
        yield f"{row['name']:<9}  {row['verdict']:<{wide}}  {row['detail']}"
    yield f"\n{document['verdict']}: {document['bundle']}  {document['sha256']}"
