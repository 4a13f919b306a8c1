"""``edgefuse release``: bundles of every recipe that is to ship, or none."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgefuse import publish
from edgefuse.bundle.signing import load_private
from edgefuse.commands.run import run_recipe
from edgefuse.errors import EdgefuseError, RecipeError, StoreError, UsageError
from edgefuse.plan import Selection
from edgefuse.recipe import Recipe
from edgefuse.yaml_file import load


class ReleaseStopped(EdgefuseError):
    """A recipe did not pass; carries that run's exit code."""

    def __init__(self, message: str, exit_code: int, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def release_all(
    recipes: Sequence[Path],
    out: Path,
    *,
    quiet: bool,
    command: str,
    sign: Path | None = None,
    passphrase_file: Path | None = None,
) -> Iterator[str]:
    """Build every recipe with ``release: true`` into ``out/<name>/``; yields a line for each.

    Earlier bundles of all of them are removed first: none stands for a release that stopped.

    Args:
        sign: a private key that every bundle is signed with.
        passphrase_file: that key's.

    Raises:
        ReleaseStopped: at the first that does not pass.
        RecipeError: a file that is no recipe; two of one name.
        UsageError: none is to be released; a key that cannot be used.
        StoreError: an earlier bundle cannot be removed.
    """
    chosen: dict[str, Path] = {}
    for path in recipes:
        recipe = load(path, Recipe)
        if not recipe.release:
            continue
        if recipe.name in chosen:
            raise RecipeError(
                f"{chosen[recipe.name]} has the name {recipe.name!r} too", where=str(path)
            )
        chosen[recipe.name] = path
    if not chosen:
        raise UsageError("no recipe has release: true", hint="set it in those that are to ship")
    if sign is not None:
        load_private(sign, passphrase_file)
    for name in chosen:
        publish.withdraw_report(out / name)
        publish.withdraw_bundle(out / name, name)
    for name, path in chosen.items():
        run = functools.partial(
            run_recipe,
            path,
            quiet=quiet,
            command=command,
            sign=sign,
            passphrase_file=passphrase_file,
        )
        yield _release(name, path, out / name, run)


def _release(name: str, path: Path, folder: Path, run: Callable[..., Any]) -> str:
    """Build one recipe; however this ends but with a pass, its bundle is absent."""
    try:
        document, _ = run(selection=Selection(measure=True), out=folder)
        if document["verdict"] != "pass":
            error = document["error"] or {"message": document["verdict"], "hint": ""}
            raise ReleaseStopped(
                f"{path}: {error['message']}", document["exit_code"] or 3, error["hint"]
            )
    except BaseException:
        with contextlib.suppress(StoreError):
            publish.withdraw_bundle(folder, name)
        raise
    bundle = next(a for a in document["artifacts"] if a["kind"] == "bundle")
    return f"{folder / bundle['file']}  {bundle['sha256']}"
