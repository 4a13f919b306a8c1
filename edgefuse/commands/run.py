"""``edgefuse run``: one recipe into one output folder, with a log and a report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefuse import console as consoles
from edgefuse.bundle.schemas import EVIDENCE, SIGNATURE
from edgefuse.bundle.signing import load_private
from edgefuse.commands.sign import put_signature
from edgefuse.errors import RecipeError, UsageError
from edgefuse.fetch import Downloads, local_path
from edgefuse.job import make_job, output_folder
from edgefuse.keys import remember_imports
from edgefuse.log_file import logged
from edgefuse.plan import Job, Selection, stages_of
from edgefuse.report import document as documents
from edgefuse.runner import Runner
from edgefuse.stage import REPRODUCER, STAGES
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
    _refuse_inputs_in(folder, job, recipe)
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


def _refuse_inputs_in(folder: Path, job: Job, recipe: Path) -> None:
    """Refuse an output folder where a run would write over the recipe's own files, or remove them.

    Any text of the recipe that names a file or folder counts as one of its files.
    """
    written = {stage.file_name.format(name=job.recipe.name) for stage in STAGES.all().values()}
    written |= {
        "bundle",
        "edgefuse.log",
        "report.html",
        "report.json",
        REPRODUCER,
        EVIDENCE,
        SIGNATURE,
    }
    top = folder.resolve()
    for text in (str(recipe.absolute()), *_texts(job.recipe.model_dump())):
        try:
            path = local_path(text, job.base).resolve()
            if not path.exists() or top not in path.parents:
                continue
        except (OSError, RecipeError, RuntimeError, ValueError):
            continue  # No name of a file.
        if path.relative_to(top).parts[0] in written:
            raise UsageError(
                f"--out {folder} holds {path}, which the recipe reads and a run would write over",
                hint="give another folder, or rename the file or the recipe",
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)
