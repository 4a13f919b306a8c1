"""``edgefuse run``: one recipe into one output folder, with a log and a report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgefuse import console as consoles
from edgefuse.bundle.signing import load_private
from edgefuse.commands.sign import put_signature
from edgefuse.errors import UsageError
from edgefuse.fetch import Downloads
from edgefuse.job import make_job, output_folder
from edgefuse.keys import remember_imports
from edgefuse.log_file import logged
from edgefuse.plan import Selection, stages_of
from edgefuse.report import document as documents
from edgefuse.runner import Runner
from edgefuse.store import raise_disk_error

_EVERYTHING = Selection()


def run_recipe(
    recipe: Path,
    *,
    settings: Sequence[str] = (),
    target: str | None = None,
    selection: Selection = _EVERYTHING,
    out: Path | None = None,
    quiet: bool = False,
    verbose: bool = False,
    command: str = "",
    sign: Path | None = None,
    passphrase_file: Path | None = None,
) -> tuple[dict[str, Any], Path]:
    """Run and report.

    Args:
        sign: a private key; a bundle that passed is signed with it.
        passphrase_file: that key's.

    Returns:
        The report document, and the folder that holds report.json, report.html and the log.

    Raises:
        RecipeError, UsageError: before anything is run.
        StoreError: the output folder cannot be written.
    """
    key = load_private(sign, passphrase_file) if sign is not None else None
    job = make_job(recipe, settings, target)
    stages_of(job.recipe, selection, job.target)
    folder = output_folder(job, out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file", hint="give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise_disk_error(error, folder)
    log_file = (folder / "edgefuse.log").absolute()
    console = consoles.choose(quiet=quiet, verbose=verbose)
    with logged(log_file, command):

        def say(text: str) -> None:
            logging.getLogger("edgefuse").info("%s", text)
            console.tell(text)

        downloads = Downloads(job.store.root / "downloads", job.base, say)
        result = Runner(job, selection, folder, console, downloads, log_file).run()
        document = documents.build(job, result, command, selection.until is None, folder)
        documents.write(document, folder)
        if key is not None and document["verdict"] == "pass":
            say(put_signature(folder / f"{job.recipe.name}.bundle.tar", key))
    remember_imports()
    return document, folder
